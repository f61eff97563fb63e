"""`nanovllm info`: true on this machine, and right on machines that are not this one."""

import json
from collections.abc import Callable

import pytest
import torch

from nanovllm.cli import machine


def test_json_names_everything(cli: Callable) -> None:
    found = json.loads(cli("info", "--json").out)
    assert {"nanovllm", "torch", "triton", "transformers", "flash-attn", "jupyterlab", "dot"} <= {
        piece["name"] for piece in found["pieces"]
    }
    assert found["checkpoint"]["present"]
    assert found["host"]["cpu_cores"] >= 1
    assert {b["name"] for b in found["backends"]} == {"torch", "triton", "flash_attn"}
    assert [b["name"] for b in found["backends"] if b["chosen"]] == [found["backend"]]
    assert all(b["reason"] for b in found["backends"])


def test_it_says_what_the_engine_does(cli: Callable) -> None:
    from nanovllm import LLM

    found = json.loads(cli("info", "--json").out)
    llm = LLM("qwen3-tiny", num_kvcache_blocks=8, max_model_len=64, max_num_batched_tokens=64, max_num_seqs=2)
    assert (llm.plan.device_type, llm.plan.backend.name) == (found["device"], found["backend"])
    assert str(llm.plan.dtype) == f"torch.{found['dtype']}"
    llm.exit()


def test_the_table(cli: Callable) -> None:
    ran = cli("info")
    assert ran.code == 0
    assert "\x1b" not in ran.out
    assert 'LLM("qwen3-tiny") runs here on' in ran.out


def test_a_missing_piece_comes_with_its_command(cli: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("jupyterlab", "fastapi"):
            raise machine.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(machine, "version", version)
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    found = {piece.name: piece for piece in machine.pieces(has_gpu=False)}
    assert found["jupyterlab"].add == 'pip install "nanovllm[notebooks]"'
    assert found["fastapi"].add == 'pip install "nanovllm[serve]"'
    assert found["dot"].version is None
    assert found["dot"].add
    assert found["torch"].add is None
    assert "nanovllm[notebooks]" in " ".join(cli("info").out.split())  # brackets are not markup


def test_flash_attn_is_offered_only_where_it_is_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise machine.PackageNotFoundError(name)

    monkeypatch.setattr(machine, "version", version)
    for has_gpu in (True, False):
        found = {piece.name: piece for piece in machine.pieces(has_gpu)}
        assert (found["flash-attn"].add is not None) == has_gpu


@pytest.mark.parametrize(
    ("told", "has"),
    [({"avx512_bf16": True, "avx2": True}, True), ({"avx512_bf16": False, "avx2": True}, False), (None, None)],
)
def test_a_cpu_with_bfloat16_instructions_is_told_so(
    cli: Callable, monkeypatch: pytest.MonkeyPatch, told: dict[str, bool] | None, has: bool | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if told is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    else:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: told, raising=False)
    assert machine.has_bfloat16_instructions() is has
    assert ('dtype="bfloat16"' in " ".join(cli("info").out.split())) == bool(has)


def test_a_missing_checkpoint_is_told(cli: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"name": "qwen3-tiny", "present": False, "why": "model.safetensors missing", "add": "reinstall nanovllm"}
    monkeypatch.setattr(machine, "checkpoint", lambda: missing)
    ran = cli("info")
    assert ran.code == 0
    assert "No model can be loaded" in ran.out
