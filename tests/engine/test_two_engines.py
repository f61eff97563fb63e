"""No global state: engines live side by side, and torch's defaults stay as they were."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_idle, assert_same_greedy, greedy, make_llm, tiny_config, token_ids_of, write_checkpoint

from nanovllm import LLM
from nanovllm.errors import CheckpointError

Prompts = list[list[int]]


def test_interleaved_steps(tiny: Path, judge: Any, prompts: Prompts, expected: Prompts) -> None:
    """Different block sizes, budgets and pools, one step each in turn."""
    one = make_llm(tiny, kvcache_block_size=3, num_kvcache_blocks=30, max_num_batched_tokens=11)
    other = make_llm(tiny, kvcache_block_size=16, max_num_seqs=2)
    got: dict[tuple[int, int], list[int]] = {}
    for llm in (one, other):
        for prompt in prompts:
            llm.add_request(prompt, greedy(14))
    while not (one.is_finished() and other.is_finished()):
        for number, llm in enumerate((one, other)):
            got.update(((number, o.request_id), o.token_ids) for o in llm.step().finished)
    for number in range(2):
        assert_same_greedy(judge, prompts, expected, [got[number, i] for i in range(len(prompts))])
    one.exit()
    assert_same_greedy(judge, prompts, expected, token_ids_of(other.generate(prompts, greedy(14), use_tqdm=False)))
    other.exit()


def test_two_models(tiny: Path, tmp_path: Path, prompts: Prompts, expected: Prompts) -> None:
    """Another shape, another vocabulary: neither sees the other."""
    raw = tiny_config(num_attention_heads=6, num_key_value_heads=3, hidden_size=48, tie_word_embeddings=True)
    folder = write_checkpoint(tmp_path, raw, seed=5)
    with make_llm(folder) as alone:
        others = token_ids_of(alone.generate(prompts, greedy(9), use_tqdm=False))
    with make_llm(tiny) as one, make_llm(folder) as other:
        assert token_ids_of(one.generate(prompts, greedy(14), use_tqdm=False)) == expected
        assert token_ids_of(other.generate(prompts, greedy(9), use_tqdm=False)) == others
        assert token_ids_of(one.generate(prompts, greedy(14), use_tqdm=False)) == expected


def test_a_notebook_cell_run_twice(tiny: Path, prompts: Prompts, expected: Prompts) -> None:
    """The name is bound again without closing the first engine."""
    for _ in range(3):
        llm = make_llm(tiny)
        assert token_ids_of(llm.generate(prompts, greedy(14), use_tqdm=False)) == expected
        assert_idle(llm)


def state() -> tuple[Any, ...]:
    """What a library must not change behind its caller's back."""
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_num_threads(),
        torch.get_rng_state().tolist(),
    )


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_the_defaults_of_torch_stay(tiny: Path, prompts: Prompts, load_format: str) -> None:
    before = state()
    with make_llm(tiny, dtype="bfloat16", load_format=load_format) as llm:
        assert state() == before
        llm.generate(prompts, greedy(3), use_tqdm=False)
        assert state() == before
    assert state() == before


def test_they_stay_after_a_failed_construction(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    before = state()
    with pytest.raises(CheckpointError):
        make_llm(folder, dtype="bfloat16")
    assert state() == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_callers_default_dtype_changes_nothing(
    tiny: Path, prompts: Prompts, expected: Prompts, dtype: torch.dtype
) -> None:
    with default_dtype(dtype), make_llm(tiny) as llm:
        assert token_ids_of(llm.generate(prompts, greedy(14), use_tqdm=False)) == expected
        assert torch.get_default_dtype() == dtype


def test_exit_gives_the_pool_back(tiny: Path) -> None:
    with make_llm(tiny) as llm:
        runner = llm.model_runner
        assert runner.cache is not None
        pool = weakref.ref(runner.cache.tensor)
        weights = weakref.ref(runner.model)
    assert llm.is_finished()  # the engine itself is still referred to
    gc.collect()
    assert pool() is None
    assert weights() is None


@pytest.mark.parametrize("gib", [0.001, 0.01])
def test_the_pool_on_a_cpu_takes_what_it_may(tiny: Path, gib: float) -> None:
    """As many whole blocks as the limit pays for, and no more than full-length requests could fill."""
    with make_llm(tiny, num_kvcache_blocks=None, cpu_kvcache_gib=gib) as llm:
        blocks = llm.scheduler.block_manager.num_blocks
        per_block = llm.model_runner.spec.bytes_per_block
        assert blocks == min(int(gib * 2**30) // per_block, 16 * 128)
        assert llm.model_runner.cache is not None
        assert llm.model_runner.cache.num_blocks == blocks


def test_weights_read_once(tiny: Path) -> None:
    """Building an engine changes nothing on disk."""
    before = {p.name: p.stat().st_mtime_ns for p in tiny.iterdir()}
    LLM(str(tiny), device="cpu", num_kvcache_blocks=2).exit()
    assert {p.name: p.stat().st_mtime_ns for p in tiny.iterdir()} == before
