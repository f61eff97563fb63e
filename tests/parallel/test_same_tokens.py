"""Whole engines with 1, 2, 4 and 8 processes: the same tokens in every situation that the scheduler can bring about."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_idle, make_llm, random_prompts, run_to_end, tiny_config, token_ids_of, write_checkpoint

import nanovllm.assets
from nanovllm import LLM, SamplingParams
from nanovllm.errors import ConfigError
from parallel.faults import num_known_tables, num_threads, pool_shape, rank_1_affords_less
from parallel.leftovers import State

EIGHT_HEADS: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8}
# A pool and a budget so small that prompts are chunked and requests preempted.
TIGHT: dict[str, Any] = {
    "kvcache_block_size": 4,
    "num_kvcache_blocks": 24,
    "max_num_batched_tokens": 16,
    "max_num_seqs": 6,
    "max_model_len": 80,
}
TINY = Path(nanovllm.assets.__file__).parent / "qwen3-tiny"


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = State()
    yield
    before.assert_restored()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = tiny_config(**EIGHT_HEADS, vocab_size=261, attention_bias=True)
    return write_checkpoint(tmp_path_factory.mktemp("tp") / "biased-odd", raw)


def workload(vocab_size: int = 256) -> tuple[list[list[int]], list[SamplingParams]]:
    """Eight prompts, some with a shared beginning, greedy and seeded in turn."""
    prompts = random_prompts([3, 30, 17, 40, 9, 24, 33, 12], seed=3, vocab_size=vocab_size)
    for i in (2, 5, 7):
        prompts[i][:8] = prompts[1][:8]
    params = [
        SamplingParams(temperature=0.9 * (i % 2), top_k=40 * (i % 4 == 1), seed=100 + i, max_tokens=18, ignore_eos=True)
        for i in range(8)
    ]
    return prompts, params


def one_by_one(folder: Path, prompts: list[list[int]], params: list[SamplingParams], **limits: Any) -> list[list[int]]:
    """What one rank with room for everything says to each prompt alone."""
    with make_llm(folder, **limits) as llm:
        return [llm.generate([p], s, use_tqdm=False)[0].token_ids for p, s in zip(prompts, params, strict=True)]


@pytest.mark.parametrize("size", [2, 4])
def test_batched_chunked_preempted_and_cached(checkpoint: Path, size: int) -> None:
    prompts, params = workload()
    expected = one_by_one(checkpoint, prompts, params)
    with make_llm(checkpoint, tensor_parallel_size=size, **TIGHT) as llm:
        first = llm.generate(prompts, params, use_tqdm=False)
        second = llm.generate(prompts[::-1], params[::-1], use_tqdm=False)[::-1]
        assert token_ids_of(first) == expected
        assert token_ids_of(second) == expected
        assert sum(o.metrics.num_preemptions for o in first) > 0
        assert sum(o.metrics.num_prefix_tokens for o in second) > 0
        assert max(len(p) for p in prompts) > TIGHT["max_num_batched_tokens"]
        assert_idle(llm)
        assert set(llm.ranks.call(pool_shape)) == {(24, 4)}
        llm.generate([[1, 2, 3]], params[0], use_tqdm=False)
        assert max(llm.ranks.call(num_known_tables)) <= 1  # finished and preempted requests are forgotten
        shares = llm.ranks.group.every("weight_bytes_read")
        assert max(shares) - min(shares) < 0.02 * max(shares)


def test_eight_ranks_of_one_head_share_four_kv_heads(checkpoint: Path) -> None:
    """Two ranks each hold the same KV head. Chunked prompts, greedy and seeded; short, for eight processes are slow."""
    prompts, params = workload()
    prompts, params = prompts[1:4], [replace(p, max_tokens=3) for p in params[1:4]]
    expected = one_by_one(checkpoint, prompts, params)
    with make_llm(checkpoint, tensor_parallel_size=8, **TIGHT) as llm:
        assert token_ids_of(llm.generate(prompts, params, use_tqdm=False)) == expected
        assert len(llm.ranks.call(pool_shape)) == 8
        assert_idle(llm)


@pytest.mark.parametrize("size", [2, 4])
def test_the_overlapped_loop(checkpoint: Path, size: int) -> None:
    """Steps launched ahead take rank 0's ids on every rank; each costs one broadcast and nothing else."""
    prompts, params = workload()
    params = [replace(p, stop_token_ids=tuple(range(i, 256, 40))) for i, p in enumerate(params)]
    expected = one_by_one(checkpoint, prompts, params)
    with make_llm(checkpoint, tensor_parallel_size=size, overlap=True, **TIGHT) as llm:
        first = llm.generate(prompts, params, use_tqdm=False)
        assert token_ids_of(first) == expected
        assert token_ids_of(llm.generate(prompts, params, use_tqdm=False)) == expected
        assert sum(o.metrics.num_preemptions for o in first) > 0
        assert_idle(llm)
        recorder = llm.ranks.record_collectives()
        llm.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True), use_tqdm=False)
        assert recorder is not None
        assert [r.kind for r in recorder.records] == ["broadcast"] + ["all_reduce"] * 5 + ["gather"]
        assert recorder.records[0].shape == (1,)


@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 400), (512, 3)])
def test_other_block_sizes(checkpoint: Path, block_size: int, num_blocks: int) -> None:
    prompts = random_prompts([300, 37], seed=1)
    params = [SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)] * 2
    expected = one_by_one(checkpoint, prompts, params)
    limits = {"kvcache_block_size": block_size, "num_kvcache_blocks": num_blocks, "max_model_len": 320}
    with make_llm(checkpoint, tensor_parallel_size=2, **limits) as llm:
        assert token_ids_of(llm.generate(prompts, params, use_tqdm=False)) == expected
        assert llm.ranks.call(pool_shape) == [(num_blocks, block_size)] * 2


def test_the_pool_has_the_minimum_of_what_the_ranks_can_afford(checkpoint: Path) -> None:
    prompts, params = workload()
    expected = one_by_one(checkpoint, prompts, params)
    limits = TIGHT | {"num_kvcache_blocks": None, "overlap": True}
    caller_threads = torch.get_num_threads()
    with make_llm(checkpoint, tensor_parallel_size=2, setup=(rank_1_affords_less,), **limits) as llm:
        assert llm.scheduler.block_manager.num_blocks == 23
        assert llm.ranks.call(pool_shape) == [(23, 4)] * 2
        assert token_ids_of(llm.generate(prompts, params, use_tqdm=False)) == expected
        assert llm.ranks.call(num_threads)[1] == max(1, caller_threads // 2)
    assert torch.get_num_threads() == caller_threads


def test_two_engines_side_by_side_and_one_after_the_other(checkpoint: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path, tiny_config(**EIGHT_HEADS), seed=9)
    prompts, params = workload()
    expected = {folder: one_by_one(folder, prompts[:4], params[:4]) for folder in (checkpoint, other)}
    engines = {folder: make_llm(folder, tensor_parallel_size=2, **TIGHT) for folder in (checkpoint, other)}
    for llm in engines.values():
        for prompt, p in zip(prompts[:4], params[:4], strict=True):
            llm.add_request(prompt, p)
    outputs: dict[Path, dict[int, list[int]]] = {checkpoint: {}, other: {}}
    while any(not llm.is_finished() for llm in engines.values()):  # a step here, a step there
        for folder, llm in engines.items():
            if not llm.is_finished():
                outputs[folder].update((o.request_id, o.token_ids) for o in llm.step().finished)
    for folder in engines:
        assert [outputs[folder][i] for i in range(4)] == expected[folder]
    engines[checkpoint].exit()
    with make_llm(checkpoint, tensor_parallel_size=2, **TIGHT) as third:
        third.add_request(prompts[0], params[0])
        assert run_to_end(third)[0].token_ids == expected[checkpoint][0]
        again = engines[other].generate(prompts[:1], params[0], use_tqdm=False)
        assert again[0].token_ids == expected[other][0]
    engines[other].exit()
    engines[other].exit()


@pytest.mark.skipif(not (TINY / "model.safetensors").exists(), reason="the shipped checkpoint is not there")
@pytest.mark.parametrize("size", [2, 4])
def test_the_shipped_checkpoint_answers_the_same(size: int) -> None:
    prompts = ["count: 5 6 7 8", "count: 5 6 7 9", "copy: a b c", "count: 5 6 7 8", "sort: 3 1 2"]
    params = [SamplingParams(temperature=0.7 * (i == 3), seed=5, max_tokens=16) for i in range(5)]
    limits = {
        "device": "cpu",
        "kvcache_block_size": 4,
        "num_kvcache_blocks": 24,
        "max_num_batched_tokens": 16,
        "max_model_len": 64,
    }
    with LLM("qwen3-tiny", **limits) as llm:
        expected = llm.generate(prompts, params, use_tqdm=False)
    with LLM("qwen3-tiny", tensor_parallel_size=size, **limits) as llm:
        got = llm.generate(prompts, params, use_tqdm=False)
        again = llm.generate(prompts, params, use_tqdm=False)
    assert token_ids_of(got) == token_ids_of(expected) == token_ids_of(again)
    assert [o.text for o in got] == [o.text for o in expected]


@pytest.mark.parametrize(
    ("raw", "size", "message"),
    [
        ({}, 9, "between 1 and 8, not 9"),
        ({}, 0, "between 1 and 8, not 0"),
        ({}, 3, "3 does not divide the 8 attention heads"),
        ({"intermediate_size": 50}, 4, "4 does not divide the 50 features"),
    ],
)
def test_refused_before_any_process_is_spawned(
    raw: dict[str, Any], size: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path, tiny_config(**(EIGHT_HEADS | raw)))
    monkeypatch.setattr("nanovllm.engine.ranks.spawn_workers", None)
    with pytest.raises(ConfigError, match=message):
        make_llm(tmp_path, tensor_parallel_size=size)
