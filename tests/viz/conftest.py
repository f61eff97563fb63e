"""One engine whose state the tests disturb, and one recorded run of the shipped tasks."""

from collections.abc import Iterator

import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.trace import Trace
from nanovllm.trace.workload import arrivals, record_run, small_llm, task_prompts


@pytest.fixture(scope="package")
def llm() -> Iterator[LLM]:
    with small_llm() as engine:
        yield engine


@pytest.fixture(scope="package")
def trace(llm: LLM) -> Trace:
    """The run that `nanovllm trace` records by default."""
    return record_run(llm, arrivals(task_prompts(), max_tokens=12))


@pytest.fixture
def busy(llm: LLM, trace: Trace) -> Iterator[LLM]:
    """The engine in the middle of things: two requests that share a prefix decode, a third waits."""
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    shared = list(range(40, 52))
    llm.add_request([*shared, 7, 8], params)
    llm.step()
    llm.add_request([*shared, 9], params)
    llm.step()
    llm.step()
    llm.add_request(list(range(60, 110)), SamplingParams(temperature=0, max_tokens=60))
    yield llm
    for request_id in list(llm.scheduler.sequences):
        llm.abort(request_id)
    llm.scheduler.block_manager.reset_prefix_cache()
