"""One tiny checkpoint for all tests of the engine, transformers' view of it, and the completions to reproduce."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures import one_thread as one_thread
from fixtures import tiny as tiny
from helpers import assert_greedy, greedy, make_llm, random_prompts, token_ids_of, transformers_model

from nanovllm import LLM

LENGTHS = [1, 5, 8, 12, 17, 30, 41]
COMPLETION = 14


@pytest.fixture(scope="session")
def judge(tiny: Path) -> Any:
    """The tiny checkpoint in transformers."""
    return transformers_model(tiny)


@pytest.fixture
def llm(tiny: Path) -> Iterator[LLM]:
    """An engine with blocks of 4 tokens."""
    with make_llm(tiny) as engine:
        yield engine


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Prompts of several lengths; the last two share 16 tokens with the longest one."""
    made = random_prompts(LENGTHS)
    return [*made, [*made[-1][:16], 7, 9, 11], made[-1][:16]]


@pytest.fixture(scope="session")
def expected(tiny: Path, judge: Any, prompts: list[list[int]]) -> list[list[int]]:
    """Each prompt's greedy completion, alone in an engine with one large block, found right by transformers."""
    completions = []
    for prompt in prompts:
        with make_llm(tiny, kvcache_block_size=256, num_kvcache_blocks=2) as engine:
            completions += token_ids_of(engine.generate([prompt], greedy(COMPLETION), use_tqdm=False))
        assert_greedy(judge, prompt, completions[-1])
    return completions
