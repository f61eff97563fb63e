"""The whole engine answers the same with the solutions of all exercises in place of its own functions."""

from contextlib import ExitStack

from nanovllm import LLM, SamplingParams
from nanovllm.course import swap
from nanovllm.course.registry import EXERCISES

PROMPTS = ["count: 17 18 19 20", "count: 17 18 19 20 21 22", "sort: 9 4 7 ->"]
NARROW = {"kvcache_block_size": 4, "num_kvcache_blocks": 28, "max_num_batched_tokens": 16, "device": "cpu"}

# What greedy requests on a CPU do not use; test_part3.py and test_part4.py run most of it in an engine of their own.
NEEDLESS = {
    "Sequence.last_block_num_tokens",  # for readers and views
    *("KVCacheSpec.blocks_in", "MemoryBudget.for_cache"),  # the number of blocks is given
    *("triton_backend.store_kv", "triton_backend.paged_decode"),
    *("StepEncoder._change", "StepEncoder._drop_released", "StepDecoder.decode"),  # a single rank sends nothing
    *("plain_backend.grouped_attention", "sampler.keep_top", "Sampler.race"),
    *("cuda_graphs.graph_batch_sizes", "DecodeGraphs.padded_size", "cuda_graphs.write_padded"),
    *("RequestMetrics.ttft", "RequestMetrics.tpot", "stats.percentile", "RequestRecord.meets", "LoadReport.goodput"),
    *("BoundedPrefill.__call__", "policy._give_up_half_computed"),
}


def answers() -> tuple[list[list[int]], int]:
    with LLM("qwen3-tiny", max_model_len=64, **NARROW) as llm:
        outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True), use_tqdm=False)
    return [output.token_ids for output in outputs], sum(output.metrics.num_preemptions for output in outputs)


def test_the_engine_runs_on_the_solutions() -> None:
    wanted, preemptions = answers()
    assert preemptions > 0, "the pool is meant to be too small"
    with ExitStack() as stack:
        calls = [stack.enter_context(swap(number, "solutions")) for number in EXERCISES]
        assert answers() == (wanted, preemptions)
    counts = {name: count for one in calls for name, count in one.items()}
    assert {name for name, count in counts.items() if not count} <= NEEDLESS, counts
