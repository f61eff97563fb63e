"""Recorded steps without a GPU: a graph that runs its function again and overwrites what it returned at first."""

from collections.abc import Callable
from typing import Any

import pytest

from nanovllm import LLM
from nanovllm.paged_kv import cuda_graphs
from nanovllm.paged_kv.in_flight import PendingTokens


class Replayed:
    """Stands for a torch.cuda.CUDAGraph: it reads the same tensors again and overwrites its first result."""

    def __init__(self, function: Callable[[], Any], output: Any) -> None:
        self.function, self.output = function, output

    def replay(self) -> None:
        result = self.function()
        if result is not None:
            self.output.copy_(result)

    def pool(self) -> int:
        return 1


def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let steps be recorded on this machine."""

    def record(function: Callable[[], Any], pool: Any) -> tuple[Any, Any]:
        output = function()
        return Replayed(function, output), output

    monkeypatch.setattr(cuda_graphs, "record", record)
    # As on a GPU, the ids must be copied before the next step overwrites them.
    monkeypatch.setattr(PendingTokens, "leaves_device", staticmethod(lambda sampled: True))


def capture(llm: LLM, prefill_tokens: int = 0) -> list[tuple[bool, int, int]]:
    """Record the decode steps of a started engine, and prefills of up to prefill_tokens.

    Returns a list that grows with every replayed body: (is it a prefill, its size, rows or tokens in it).
    """
    runner, seen = llm.model_runner, []
    assert runner.capture_graphs(llm.config.max_num_seqs, llm.plan.max_model_len)
    if prefill_tokens:
        assert runner.capture_prefill_graphs(prefill_tokens, llm.plan.max_model_len)
    for graphs, is_prefill in ((runner.graphs, False), (runner.prefill_graphs, True)):
        if graphs is None:
            continue
        run = graphs.run_body

        def watched(size: int, run: Any = run, is_prefill: bool = is_prefill) -> Any:
            assert runner.last_batch is not None
            seen.append((is_prefill, size, len(runner.last_batch.input_ids)))
            return run(size)

        graphs.run_body = watched  # type: ignore[method-assign]
    return seen
