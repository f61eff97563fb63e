"""One engine for all tests of the lessons; float32, so that comparisons can be sharp."""

from collections.abc import Iterator

import pytest

from nanovllm import LLM


@pytest.fixture(scope="package")
def llm() -> Iterator[LLM]:
    limits = {"kvcache_block_size": 4, "num_kvcache_blocks": 30, "max_model_len": 100}
    with LLM("qwen3-tiny", dtype="float32", enforce_eager=True, **limits) as engine:
        yield engine
