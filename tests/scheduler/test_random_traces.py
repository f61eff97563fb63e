"""Thousands of random traces: the scheduler's requests answer as if each had run alone, and every rule holds."""

import random
from collections import Counter

import pytest
from planted_faults import HARMLESS, Variant

from nanovllm.course.oracle import Request, Trace, explain, find_failure, random_trace, run_trace

NUM_TRACES = 6000
NUM_SHARDS = 12


@pytest.mark.parametrize("shard", range(NUM_SHARDS))
def test_random_traces_pass(shard: int) -> None:
    failure = find_failure(range(shard, NUM_TRACES, NUM_SHARDS))
    assert failure is None, explain(failure)


def test_random_traces_reach_the_hard_places() -> None:
    """What 600 traces contain; a generator that never preempts would prove nothing."""
    seen: Counter[str] = Counter()
    for seed in range(600):
        trace = random_trace(seed)
        result = run_trace(trace)
        seen["preemptions"] += result.num_preemptions
        seen["refused"] += len(result.refused)
        seen["collisions"] += trace.hash_range is not None
        seen["tiny vocabulary"] += trace.vocab_size <= 3
        seen["resets"] += bool(trace.cache_resets)
        seen["in flight"] += any(r.cancel_in_flight for r in trace.requests)
        seen[f"block size {trace.block_size}"] += 1
        seen.update(result.finish_reasons.values())
        for step, (is_prefill, batch) in enumerate(result.batches):
            seen["failed steps"] += step in trace.failing_steps
            for seq_id, start, count in batch if is_prefill else []:
                length = len(trace.requests[seq_id].prompt)
                seen["chunks"] += start + count < length
                seen["hits"] += start > 0 and start % trace.block_size == 0
                whole = length % trace.block_size == 0 and start == length - trace.block_size > 0
                seen["fully cached prompts"] += whole and start + count == length
    least = {
        "preemptions": 100, "refused": 20, "collisions": 60, "tiny vocabulary": 100, "resets": 60, "in flight": 60,
        "stop": 100, "length": 500, "abort": 50, "failed steps": 100, "chunks": 100, "hits": 300,
        "fully cached prompts": 50, **{f"block size {n}": 60 for n in range(1, 6)},
    }  # fmt: skip
    too_few = {name: (seen[name], count) for name, count in least.items() if seen[name] < count}
    assert not too_few, f"(seen, wanted): {too_few}"


def test_the_same_trace_gives_the_same_batches() -> None:
    for seed in range(100):
        trace = random_trace(seed)
        assert trace == random_trace(seed)
        assert run_trace(trace) == run_trace(trace)


def test_neither_chunks_nor_memory_nor_company_change_an_answer() -> None:
    """The same requests in wide and in narrow limits."""
    rng = random.Random(5)
    for _ in range(50):
        shared = tuple(rng.randrange(5) for _ in range(8))
        prompts = [(*shared[: rng.randrange(9)], rng.randrange(5)) for _ in range(5)]
        requests = tuple(Request(prompt, max_tokens=rng.randint(1, 8)) for prompt in prompts)
        alone = [run_trace(Trace(4, 100, (r,))).completions[0] for r in requests]
        for blocks, seqs, budget in ((100, 5, 100), (5, 5, 100), (4, 2, 3), (100, 1, 1)):
            together = run_trace(Trace(4, blocks, requests, max_num_seqs=seqs, max_num_batched_tokens=budget))
            assert [together.completions[i] for i in range(5)] == alone


@pytest.mark.parametrize("variant", HARMLESS, ids=lambda v: v.name)
def test_harmless_variants_pass(variant: Variant) -> None:
    failure = find_failure(range(400), variant.make_scheduler, variant.sequence)
    assert failure is None, explain(failure)
