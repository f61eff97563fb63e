"""Running a batch of each kind before the first recording, here without a GPU: what runs, and on which inputs."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import make_llm

from nanovllm import SamplingParams
from nanovllm.paged_kv.compile_ahead import compile_ahead, compile_lanes, side_by_side
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.cuda_graphs import DecodeBuffers, DecodeGraphs

CPU = torch.device("cpu")


@pytest.mark.parametrize("max_num_seqs", [1, 5, 20, 512])
def test_every_kind_of_batch_runs_once_as_padding(max_num_seqs: int) -> None:
    seen: list[int] = []

    def body(ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        assert torch.is_inference_mode_enabled()
        assert (context.slot_mapping == -1).all()
        assert not context.context_lens.any()
        seen.append(len(ids))
        return ids

    def head(hidden: torch.Tensor, context: ForwardContext, temperature: torch.Tensor, keys: torch.Tensor) -> None:
        assert len(hidden) == len(temperature) == len(keys)
        sampled.append(len(hidden))

    sampled: list[int] = []
    graphs = DecodeGraphs(body, head, DecodeBuffers(max_num_seqs, 2, CPU), 64)
    graphs.buffers.device["slot_mapping"].fill_(3)  # of an earlier step
    lanes = compile_lanes(max_num_seqs)
    side_by_side([graphs.lane(sizes) for sizes in lanes], lambda: None, CPU)
    assert sorted(seen) == sorted(sampled) == sorted(size for lane in lanes for size in lane)
    assert {1, min(8, max_num_seqs), max_num_seqs} <= set(seen)
    assert max(seen) == max_num_seqs
    assert graphs.sizes == []  # nothing was recorded


def test_lanes_run_at_the_same_time() -> None:
    """Each waits for all of them: one after the other they would wait for ever."""
    meeting, met = threading.Barrier(4, timeout=30), []

    def lane() -> None:
        met.append(meeting.wait())

    side_by_side([lane] * 3, lane, CPU)
    assert sorted(met) == [0, 1, 2, 3]


def test_what_runs_meanwhile_may_fail() -> None:
    """It is the warm-up, whose error ends the start; the lanes come to their end first."""
    ended: list[int] = []
    with pytest.raises(MemoryError, match="no room"):
        side_by_side([lambda: ended.append(1)] * 2, fail, CPU)
    assert ended == [1, 1]


def test_lanes_without_a_handle_of_the_library_do_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_handle() -> None:
        raise RuntimeError("no memory for a handle")

    for name in ("set_device", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_blas_handle", no_handle)
    ran: list[int] = []
    side_by_side([lambda: ran.append(1)] * 3, lambda: ran.append(0), torch.device("cuda", 0))
    assert ran == [0]


def fail() -> None:
    raise MemoryError("no room")


def test_an_error_is_left_to_the_recording() -> None:
    ran: list[int] = []

    def body(ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        ran.append(len(ids))
        raise RuntimeError("this kernel does not compile")

    graphs = DecodeGraphs(body, lambda *a: None, DecodeBuffers(40, 2, CPU), 64)
    side_by_side([graphs.lane([1]), graphs.lane([8, 16])], lambda: None, CPU)
    assert sorted(ran) == [1, 8]  # the lane ends there, the others go on


@pytest.mark.parametrize(("prefill_graph_tokens", "prefills"), [(0, []), (40, [40]), (200, [64, 200])])
def test_steps_of_every_kind_run_and_store_nothing(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, prefill_graph_tokens: int, prefills: list[int]
) -> None:
    """Decode by lanes, recorded prefills through block tables, and without any a short prefill and the longest."""
    with make_llm(tiny, max_num_seqs=9, max_model_len=64) as llm:
        runner, seen = llm.model_runner, []
        [before] = llm.generate(["abc"], SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
        assert runner.cache is not None
        stored = runner.cache.tensor.clone()
        model = type(runner.model).forward

        def watched(self: Any, ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
            assert (context.slot_mapping == -1).all()
            seen.append((context.is_prefill, context.block_tables is not None, len(ids)))
            return model(self, ids, positions, context)

        monkeypatch.setattr(type(runner.model), "forward", watched)
        compile_ahead(runner, 100, 9, 64, prefill_graph_tokens)
        monkeypatch.undo()
        assert sorted(n for is_prefill, _, n in seen if not is_prefill) == sorted(
            size for lane in compile_lanes(9) for size in lane
        )
        assert sorted(n for is_prefill, paged, n in seen if is_prefill and paged) == prefills
        assert sorted(n for is_prefill, paged, n in seen if is_prefill and not paged) == [64, 100]
        assert torch.equal(runner.cache.tensor, stored)
        assert llm.generate(["abc"], SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)[0].text == before.text
