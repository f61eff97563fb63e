"""One recorded run that several tests look at, with what it was recorded from."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.trace import Recorder, Trace
from nanovllm.trace.workload import small_llm


@pytest.fixture(scope="package")
def llm() -> Iterator[LLM]:
    with small_llm(num_kvcache_blocks=36, max_num_seqs=6) as engine:
        yield engine


class Watched:
    """A trace, and what the engine's own objects said at the end of each step, copied without the recorder."""

    def __init__(self) -> None:
        self.trace: Trace | None = None
        self.scheduler: list[dict[str, Any]] = []
        self.blocks: list[dict[str, Any]] = []
        self.tensors: list[dict[str, Any] | None] = []
        self.prompts: dict[int, list[int]] = {}


def _own_copy(llm: LLM, had_rows: bool) -> dict[str, Any] | None:
    if not had_rows:
        return None
    batch = llm.model_runner.last_batch
    context = batch.context
    found = {"input_ids": batch.input_ids, "positions": batch.positions, "slot_mapping": context.slot_mapping}
    found |= {"context_lens": context.context_lens, "block_tables": context.block_tables}
    found |= {"cu_seqlens_q": context.cu_seqlens_q, "cu_seqlens_k": context.cu_seqlens_k}
    found["sampled"] = llm.model_runner.last_sampled
    return {name: None if t is None else t.tolist() for name, t in found.items()}


@pytest.fixture(scope="package")
def watched(llm: LLM) -> Watched:
    """200 steps with arrivals, shared prefixes, chunks and preemptions."""
    rng = random.Random(5)
    result = Watched()
    params = SamplingParams(temperature=0, max_tokens=18, ignore_eos=True)
    starts = [[rng.randrange(300) for _ in range(16)] for _ in range(3)]
    with Recorder(llm, watch_cache=True) as recorder:
        for step in range(200):
            if step % 3 == 0 and len(llm.scheduler.waiting) < 3:
                tail = [rng.randrange(300) for _ in range(rng.randrange(1, 40))]
                prompt = [*rng.choice(starts), *tail]
                result.prompts[llm.add_request(prompt, params)] = prompt
            if step == 120:
                llm.abort(llm.scheduler.running[0].seq_id)
            output = llm.step()
            result.scheduler.append(llm.scheduler.snapshot())
            result.blocks.append(llm.scheduler.block_manager.snapshot())
            result.tensors.append(_own_copy(llm, output.num_seqs > 0))
    result.trace = recorder.trace
    for request_id in list(llm.scheduler.sequences):
        llm.abort(request_id)
    return result
