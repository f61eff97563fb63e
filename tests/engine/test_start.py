"""What starts beside what: an engine that compiles and records reads its tokenizer meanwhile. Here without a GPU."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import write_checkpoint

from nanovllm.config import EngineConfig
from nanovllm.engine import llm_engine
from nanovllm.engine.llm_engine import _start
from nanovllm.engine.startup import Plan, make_plan
from nanovllm.errors import CheckpointError, MemoryBudgetError


class Order:
    """What began and ended, as it happened; the real tokenizer, and ranks that only say so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, together: bool) -> None:
        self.seen: list[str] = []
        self.meeting = threading.Barrier(2, timeout=30) if together else None
        self.failure: Exception | None = None
        load = llm_engine.load_tokenizer

        def load_tokenizer(folder: Path) -> Any:
            self.begin("tokenizer")
            tokenizer = load(folder)
            self.seen.append("tokenizer ready")
            return tokenizer

        monkeypatch.setattr(llm_engine, "load_tokenizer", load_tokenizer)
        monkeypatch.setattr(llm_engine, "ModelRanks", self.ranks)

    def begin(self, what: str) -> None:
        self.seen.append(what)
        if self.meeting is not None:
            self.meeting.wait()  # for ever, if one began after the other's end

    def ranks(self, plan: Plan) -> "Order":
        self.begin("ranks")
        if self.failure is not None:
            raise self.failure
        return self

    def close(self) -> None:
        self.seen.append("ranks closed")


def plan_for(folder: Path, device_type: str, **limits: Any) -> Plan:
    """A plan made for a CPU that names `device_type`."""
    config = EngineConfig.from_limits(str(folder), device="cpu", **limits)
    return replace(make_plan(config, folder), device_type=device_type)


@pytest.mark.parametrize(
    ("device", "eager", "together"), [("cuda", False, True), ("cuda", True, False), ("cpu", False, False)]
)
def test_the_tokenizer_is_read_beside_ranks_that_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, eager: bool, together: bool
) -> None:
    folder = write_checkpoint(tmp_path, tokenizer=True)
    order = Order(monkeypatch, together)
    ranks, tokenizer, eos = _start(plan_for(folder, device, enforce_eager=eager))
    assert ranks is order
    assert tokenizer.eos_token_id in eos
    assert "ranks closed" not in order.seen
    if not together:
        assert order.seen == ["tokenizer", "tokenizer ready", "ranks"]


def test_without_a_tokenizer_only_the_ids_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_checkpoint(tmp_path, tokenizer=True)
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 7]}', encoding="utf-8")
    order = Order(monkeypatch, together=False)
    assert _start(plan_for(folder, "cuda", skip_tokenizer_init=True))[1:] == (None, {5, 7})
    assert order.seen == ["ranks"]


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_ranks_that_started_beside_a_damaged_tokenizer_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, name: str
) -> None:
    folder = write_checkpoint(tmp_path, tokenizer=True)
    (folder / name).write_text("{", encoding="utf-8")
    order = Order(monkeypatch, together=device == "cuda")
    with pytest.raises(CheckpointError, match="download the checkpoint again"):
        _start(plan_for(folder, device))
    assert order.seen.count("ranks closed") == order.seen.count("ranks") == (device == "cuda")


def test_what_the_ranks_raise_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_checkpoint(tmp_path, tokenizer=True)
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    order = Order(monkeypatch, together=True)
    order.failure = MemoryBudgetError("no room")
    with pytest.raises(MemoryBudgetError, match="no room"):
        _start(plan_for(folder, "cuda"))
