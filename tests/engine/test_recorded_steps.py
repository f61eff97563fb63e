"""Recorded decode steps and prefills, emulated on the CPU: buffers, padding and feeding give the eager tokens."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import make_llm

from nanovllm import SamplingParams
from nanovllm.paged_kv.batch import prepare_prefill
from nanovllm.paged_kv.prefill_graphs import MAX_SEQS, PrefillBuffers, PrefillGraphs, prefill_graph_sizes
from nanovllm.scheduler import ScheduledSlice

from .recorded import capture, without_a_gpu

LIMITS: dict[str, Any] = {"skip_tokenizer_init": True, "max_num_seqs": 9, "max_model_len": 96}


def workload(seed: int, cut: bool) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts with shared prefixes; greedy and seeded, some with top-k beside (`cut`), some that stop early."""
    rng = random.Random(seed)
    shared = [rng.randint(2, 60) for _ in range(12)]
    prompts = [
        shared[: rng.randint(0, 12)] + [rng.randint(2, 60) for _ in range(rng.randint(1, 30))] for _ in range(14)
    ]
    params = [
        SamplingParams(
            temperature=rng.choice([0.0, 1.0]),
            seed=i,
            top_k=rng.choice([0, 5]) if cut else 0,
            max_tokens=rng.randint(1, 16),
            stop_token_ids=tuple(rng.sample(range(264), rng.choice([0, 60]))),
        )
        for i in range(14)
    ]
    return prompts, params


@pytest.mark.parametrize("cut", [False, True], ids=["all", "top-k"])
@pytest.mark.parametrize("limits", [{}, {"max_num_batched_tokens": 24}, {"num_kvcache_blocks": 30}], ids=str)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("prefill_tokens", [0, 40, 128])
def test_the_same_tokens_recorded_and_eager(
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    cut: bool,
    limits: dict[str, int],
    overlap: bool,
    prefill_tokens: int,
) -> None:
    """Twice each, the second time with a filled prefix cache."""
    without_a_gpu(monkeypatch)
    prompts, params = workload(3, cut)
    results = []
    for recorded in (False, True):
        with make_llm(tiny, overlap=overlap, kvcache_block_size=4, **LIMITS, **limits) as llm:
            seen = capture(llm, prefill_tokens) if recorded else []
            outputs = [o for _ in range(2) for o in llm.generate(prompts, params, use_tqdm=False)]
            llm.scheduler.check_integrity()
        results.append([(o.token_ids, o.finish_reason) for o in outputs])
    assert results[0] == results[1]
    sizes = {(is_prefill, size) for is_prefill, size, _ in seen}
    assert {is_prefill for is_prefill, _ in sizes} == ({False, True} if prefill_tokens else {False})
    assert any(size > used for is_prefill, size, used in seen if not is_prefill), "no decode step was padded"
    if prefill_tokens == 128:
        assert {size for is_prefill, size in sizes if is_prefill} <= {64, 128}
        assert any(size > used for is_prefill, size, used in seen if is_prefill), "no prefill was padded"


def test_prefill_sizes() -> None:
    assert prefill_graph_sizes(0) == []
    assert prefill_graph_sizes(40) == [40]
    assert prefill_graph_sizes(64) == [64]
    assert prefill_graph_sizes(500) == [64, 128, 192, 256, 384, 500]
    assert prefill_graph_sizes(1024) == [64, 128, 192, 256, 384, 512, 768, 1024]
    assert prefill_graph_sizes(300) == [64, 128, 192, 256, 300]
    assert prefill_graph_sizes(1100) == [*prefill_graph_sizes(1024), 1100]
    finer = [1280, 1536, 1792, 2048, 2560, 3072, 3584]
    assert prefill_graph_sizes(4000) == [*prefill_graph_sizes(1024), *finer, 4000]


def slices(lengths: list[int], start: int = 0) -> list[ScheduledSlice]:
    return [
        ScheduledSlice(i, list(range(10 * i, 10 * i + n)), start, start + n, [3 * i + 1, 3 * i + 2, 3 * i + 3])
        for i, n in enumerate(lengths)
    ]


def test_what_does_not_fit_runs_eagerly() -> None:
    import torch

    graphs = PrefillGraphs(None, None, PrefillBuffers(8, 3, torch.device("cpu")), 12)  # type: ignore[arg-type]
    assert not graphs.holds(prepare_prefill(slices([1]), 4)), "nothing is recorded"
    graphs.sizes = [4, 8]
    assert graphs.holds(prepare_prefill(slices([5, 3]), 4))
    assert not graphs.holds(prepare_prefill(slices([5, 4]), 4))
    assert graphs.padded_size(3) == 4
    graphs.sizes = [4 * MAX_SEQS]
    assert graphs.holds(prepare_prefill(slices([1] * MAX_SEQS), 4))
    assert not graphs.holds(prepare_prefill(slices([1] * (MAX_SEQS + 1)), 4))


def test_a_short_prefill_after_a_long_one_leaves_nothing_of_it() -> None:
    """Tokens past the end store nothing, sequences past the end have none, and their tables are empty."""
    import torch

    buffers = PrefillBuffers(16, 3, torch.device("cpu"))
    for lengths, start in (([6, 5, 5], 2), ([4, 7], 0), ([3], 4)):  # the pinned buffers are used in turn
        host = prepare_prefill(slices(lengths, start), 4)
        tables = np.array([s.block_table for s in slices(lengths)], np.int32)
        temperature, keys = np.full(len(lengths), 0.5, np.float32), np.full((len(lengths), 2), 7)
        buffers.fill(host, tables, temperature, keys, 16)
        d = {name: tensor.tolist() for name, tensor in buffers.device.items()}
        num_tokens, num_seqs = sum(lengths), len(lengths)
        assert d["slot_mapping"] == [*host.slot_mapping, *[-1] * (16 - num_tokens)]
        assert d["input_ids"] == [*host.input_ids, *[0] * (16 - num_tokens)]
        assert d["cu_seqlens_q"] == [*host.cu_seqlens_q, *[num_tokens] * (MAX_SEQS - num_seqs)]
        assert d["cu_seqlens_k"] == [*host.cu_seqlens_k, *[host.cu_seqlens_k[-1]] * (MAX_SEQS - num_seqs)]
        assert d["context_lens"] == [*host.context_lens, *[0] * (MAX_SEQS - num_seqs)]
        assert d["block_tables"] == [*tables.tolist(), *[[0] * 3] * (MAX_SEQS - num_seqs)]
        assert d["temperature"] == [0.5] * num_seqs + [0.0] * (MAX_SEQS - num_seqs)
        assert d["last_token_rows"] == [*host.last_token_rows, *[0] * (MAX_SEQS - num_seqs)]
        real = buffers.real_part(host)
        assert real.input_ids.tolist() == host.input_ids.tolist()
        assert real.context.query_bounds == host.cu_seqlens_q.tolist()
        assert real.context.max_seqlen_q == max(lengths)


def test_a_failed_recording_is_dropped_with_a_warning(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_a_gpu(monkeypatch)
    with make_llm(tiny, kvcache_block_size=4, **LIMITS) as llm:
        capture(llm)
        monkeypatch.setattr(PrefillGraphs, "_draws", lambda self, size: 1 / 0)
        with pytest.warns(RuntimeWarning, match=r"capture failed \(ZeroDivisionError.*prefilling without graphs"):
            assert not llm.model_runner.capture_prefill_graphs(64, 96)
        assert llm.model_runner.prefill_graphs is None
        assert llm.model_runner.graphs is not None
        assert len(llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4), use_tqdm=False)[0].token_ids) == 4
