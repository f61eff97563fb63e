"""One small engine for the tests of part 4's lessons."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanovllm import LLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the diagrams are no part of the installed package


@pytest.fixture(scope="package")
def llm() -> Iterator[LLM]:
    limits = {"kvcache_block_size": 4, "num_kvcache_blocks": 64, "max_num_seqs": 9, "enforce_eager": True}
    with LLM("qwen3-tiny", device="cpu", **limits) as engine:
        yield engine


@pytest.fixture
def busy(llm: LLM) -> Iterator[LLM]:
    """Three requests decode."""
    from nanovllm import SamplingParams

    for first in (20, 60, 100):
        llm.add_request(list(range(first, first + 11)), SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    llm.step()
    yield llm
    for request_id in list(llm.scheduler.sequences):
        llm.abort(request_id)
    llm.scheduler.block_manager.reset_prefix_cache()
