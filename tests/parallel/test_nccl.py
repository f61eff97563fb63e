"""Two GPUs and NCCL: the same tokens in eager mode and with graphs, and the same care when a rank fails."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import greedy, make_llm, random_prompts, tiny_config, token_ids_of, write_checkpoint

from nanovllm import SamplingParams
from nanovllm.errors import NanoVLLMError, RankError
from parallel.faults import Fault, pool_shape
from parallel.leftovers import State

pytestmark = pytest.mark.gpu(count=2)

HEADS: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 261}
TIGHT: dict[str, Any] = {
    "device": "cuda",
    "dtype": "float32",
    "num_kvcache_blocks": 24,
    "max_num_batched_tokens": 16,
    "max_num_seqs": 6,
    "max_model_len": 80,
}


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = State()
    yield
    before.assert_restored()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("nccl") / "tiny", tiny_config(**HEADS))


@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graph"])
def test_the_same_tokens_as_one_gpu(checkpoint: Path, enforce_eager: bool) -> None:
    prompts = random_prompts([3, 30, 17, 40, 9, 24, 33, 12], seed=3)
    params = [
        SamplingParams(temperature=0.9 * (i % 2), top_k=40 * (i % 4 == 1), seed=100 + i, max_tokens=18, ignore_eos=True)
        for i in range(8)
    ]
    with make_llm(checkpoint, **(TIGHT | {"num_kvcache_blocks": 512}), enforce_eager=True) as llm:
        expected = token_ids_of(llm.generate(prompts, params, use_tqdm=False))
    with make_llm(checkpoint, tensor_parallel_size=2, enforce_eager=enforce_eager, **TIGHT) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert sum(o.metrics.num_preemptions for o in outputs) > 0
        assert token_ids_of(outputs) == expected
        assert token_ids_of(llm.generate(prompts, params, use_tqdm=False)) == expected
        assert llm.ranks.call(pool_shape) == [(24, 4)] * 2
        if enforce_eager:
            recorder = llm.ranks.record_collectives()
            llm.generate(prompts[:1], params[0], use_tqdm=False)
            assert recorder is not None
            assert [r.kind for r in recorder.records] == ["all_reduce"] * 5 + ["gather"]
            assert all(r.seconds is not None and r.seconds > 0 for r in recorder.records)


def test_two_engines_on_the_same_gpus(checkpoint: Path) -> None:
    with (
        make_llm(checkpoint, tensor_parallel_size=2, **TIGHT) as first,
        make_llm(checkpoint, tensor_parallel_size=2, **TIGHT) as second,
    ):
        outputs = [llm.generate(random_prompts([9]), greedy(8), use_tqdm=False) for llm in (first, second, first)]
    assert token_ids_of(outputs[0]) == token_ids_of(outputs[1]) == token_ids_of(outputs[2])


@pytest.mark.parametrize("enforce_eager", [True, False], ids=["eager", "graph"])
@pytest.mark.parametrize(
    ("phase", "kind"),
    [("start", "raise"), ("prefill", "raise"), ("decode", "kill"), ("decode", "stop"), ("exit", "kill")],
)
def test_a_failing_rank_is_named_and_the_process_goes_on(
    checkpoint: Path, phase: str, kind: str, enforce_eager: bool
) -> None:
    fault = Fault(1, phase, kind)
    limits = TIGHT | {"rank_timeout": 3.0, "enforce_eager": enforce_eager}
    with pytest.raises(RankError, match="rank 1") as caught:  # noqa: PT012
        llm = make_llm(checkpoint, tensor_parallel_size=2, setup=(fault,), **limits)
        began = time.monotonic()
        llm.generate(random_prompts([5, 9]), greedy(4), use_tqdm=False)
        llm.exit()
        assert time.monotonic() - began < 20
    assert caught.value.rank == 1
    del caught
    assert torch.ones(3, device="cuda").sum().item() == 3  # this process's GPU still computes
    with make_llm(checkpoint, tensor_parallel_size=2, **TIGHT) as fresh:
        fresh.generate(random_prompts([5]), greedy(4), use_tqdm=False)


def test_a_worker_killed_between_steps(checkpoint: Path) -> None:
    llm = make_llm(checkpoint, tensor_parallel_size=2, **TIGHT)
    llm.generate(random_prompts([5]), greedy(4), use_tqdm=False)
    os.kill(llm.ranks.group.processes[0].pid, signal.SIGKILL)
    with pytest.raises(RankError, match="rank 1 was killed by SIGKILL"):
        llm.generate(random_prompts([5]), greedy(4), use_tqdm=False)
    with pytest.raises(NanoVLLMError, match="this engine is closed"):
        llm.generate(random_prompts([5]), greedy(4), use_tqdm=False)
