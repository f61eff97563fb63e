"""The whole engine answers the same with the solutions of all exercises in place of its own functions."""

from contextlib import ExitStack

from nanovllm import LLM, SamplingParams
from nanovllm.course import swap
from nanovllm.course.registry import EXERCISES

PROMPTS = ["count: 17 18 19 20", "count: 17 18 19 20 21 22", "sort: 9 4 7 ->"]
NARROW = {"kvcache_block_size": 4, "num_kvcache_blocks": 28, "max_num_batched_tokens": 16, "device": "cpu"}


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
    needless = {"Sequence.last_block_num_tokens"}  # for readers and views
    assert {name for name, count in counts.items() if not count} <= needless, counts
