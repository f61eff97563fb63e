"""GPUs older or smaller than those at hand: what is chosen for them, and whether the kernels fit into them.

A Tesla T4 (compute capability 7.5, 64 KiB of shared memory a program) is what Colab lends; an L4 and many consumer
cards (8.6, 8.9) have 99 KiB, less than half of the 227 KiB of the GPU that the kernels were tuned on.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from nanovllm.engine.startup import choose_dtype
from nanovllm.errors import BackendError, ConfigError
from nanovllm.paged_kv.backends import choose_backend
from nanovllm.paged_kv.kernels import launch, prefill

CUDA = torch.device("cuda", 0)
ROOT = Path(__file__).resolve().parents[2]
T4, L4 = ("75", 64 * 1024), ("89", 99 * 1024)


def too_large(noted: list[tuple[str, int, int]], room: int) -> set[str]:
    """A line for each kernel and step that takes more than `room` bytes of shared memory."""
    large = [(kernel, rows, size) for kernel, rows, size in noted if size > room]
    return {f"{kernel} of a step of {rows} rows takes {size:,} bytes of {room:,}" for kernel, rows, size in large}


@pytest.mark.parametrize(("gpu", "model"), [(T4, "tiny"), (T4, "published"), (L4, "published")])
def test_every_kernel_of_a_step_fits(gpu: tuple[str, int], model: str, tmp_path: Path) -> None:
    capability, room = gpu
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.kernels.one_layer", capability, str(room), model]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    noted = json.loads(done.stdout)
    assert {rows for _, rows, _ in noted} >= {1, 4, 16, 256}
    assert any("prefill" in line for line in too_large(noted, 16 * 1024)), "this test could not see a kernel too large"
    assert too_large(noted, room) == set()


def let_there_be(gpu: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of that compute capability, and every package."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: gpu)
    monkeypatch.setattr(launch, "_properties", lambda index: SimpleNamespace(major=gpu[0]))


def test_dtype_and_backend_of_a_t4(monkeypatch: pytest.MonkeyPatch) -> None:
    """float16 where bf16 is missing, and our own kernels where flash-attn cannot run, though it is installed."""
    let_there_be((7, 5), monkeypatch)
    assert choose_dtype("auto", "bfloat16", CUDA) is torch.float16
    assert choose_dtype("auto", "float32", CUDA) is torch.float32
    with pytest.raises(ConfigError, match=r"needs compute capability 8\.0 or newer: use 'float16'"):
        choose_dtype("bfloat16", "bfloat16", CUDA)
    assert choose_backend("auto", CUDA, torch.float16, 256).name == "triton"
    with pytest.raises(BackendError, match=r"needs compute capability 8\.0 or newer. Usable here: triton, torch"):
        choose_backend("flash_attn", CUDA, torch.float16, 256)
    let_there_be((8, 0), monkeypatch)
    assert choose_dtype("auto", "bfloat16", CUDA) is torch.bfloat16
    assert choose_backend("auto", CUDA, torch.bfloat16, 256).name == "flash_attn"


@pytest.mark.parametrize(
    ("room", "num_tokens", "longest", "tiles"),
    [
        (227 * 1024, 16384, 1024, prefill.Tiles(queries=128)),
        (227 * 1024, 16384, 64, prefill.Tiles(stages=3)),
        (227 * 1024, 512, 512, prefill.Tiles(stages=3)),
        (99 * 1024, 16384, 1024, prefill.Tiles()),
    ],
)
def test_a_newer_gpu_with_less_shared_memory_gets_tiles_that_fit(
    room: int, num_tokens: int, longest: int, tiles: prefill.Tiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_gpu = SimpleNamespace(major=12, multi_processor_count=132, shared_memory_per_block_optin=room)
    monkeypatch.setattr(launch, "_properties", lambda index: a_gpu)
    q: Any = SimpleNamespace(shape=(num_tokens, 16, 128), device=CUDA)
    assert prefill.choose_tiles(q, longest, described=True) == tiles


@pytest.mark.parametrize("can_describe", [True, False])
def test_our_prefill_comes_first_where_it_is_the_faster_one(
    can_describe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_there_be((9, 0), monkeypatch)
    monkeypatch.setattr(launch, "CAN_START_EARLY", True)
    monkeypatch.setattr(prefill, "CAN_DESCRIBE", can_describe)
    chosen = choose_backend("auto", CUDA, torch.bfloat16, 256)
    assert chosen.name == ("triton" if can_describe else "flash_attn")
    assert ("faster" in chosen.reason) == can_describe
    assert choose_backend("flash_attn", CUDA, torch.bfloat16, 256).usable, "it can still be asked for"
    assert "faster" not in choose_backend("triton", CUDA, torch.bfloat16, 32).reason, "its tiles lie across blocks"
    assert "faster" not in choose_backend("triton", CUDA, torch.float32, 256).reason
    let_there_be((10, 0), monkeypatch)
    assert choose_backend("auto", CUDA, torch.bfloat16, 256).name == "flash_attn", "it was not measured there"


@pytest.mark.parametrize(("major", "starts_early"), [(7, False), (8, False), (9, launch.CAN_START_EARLY)])
def test_kernels_start_early_only_where_the_gpu_knows_how(
    monkeypatch: pytest.MonkeyPatch, major: int, starts_early: bool
) -> None:
    a_gpu = SimpleNamespace(major=major, multi_processor_count=40, shared_memory_per_block_optin=65536)
    monkeypatch.setattr(launch, "_properties", lambda index: a_gpu)
    assert launch.early(CUDA).get("launch_pdl", False) is starts_early
    assert launch.early(CUDA)["EARLY"] is starts_early
    assert launch.shared_memory(CUDA) == 65536
