"""The garbage collector while tokens are generated: spared what was there before, and afterwards as it was."""

import gc
import weakref
from pathlib import Path

import pytest
from helpers import make_llm

from nanovllm import SamplingParams
from nanovllm.engine.collector import collector_spared


class Node:
    """Points to itself, so only the collector can free it."""

    def __init__(self) -> None:
        self.me = self


def test_what_was_there_is_frozen_inside_and_only_there() -> None:
    assert gc.get_freeze_count() == 0
    with collector_spared():
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0


def test_garbage_of_the_block_is_collected_in_it_and_older_garbage_after_it() -> None:
    older = weakref.ref(Node())
    with collector_spared():
        newer = weakref.ref(Node())
        gc.collect()
        assert newer() is None
        assert older() is not None
    gc.collect()
    assert older() is None


def test_what_others_froze_stays_frozen() -> None:
    """Told by what gets collected: the count of frozen objects falls by itself, when one of them is freed."""
    frozen = weakref.ref(Node())
    gc.freeze()
    try:
        later = weakref.ref(Node())
        with collector_spared():
            gc.collect()
            assert later() is None, "made after others froze, and frozen with it"
        gc.collect()
        assert frozen() is not None, "unfrozen with the block"
    finally:
        gc.unfreeze()
    gc.collect()
    assert frozen() is None


def test_a_generation_leaves_the_collector_as_it_was(tiny: Path) -> None:
    """Seen from a step in the middle, and after an error there."""
    with make_llm(tiny) as llm:
        counts = []
        llm.on_event = lambda name: counts.append(gc.get_freeze_count())
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2), use_tqdm=False)
        assert min(counts) > 1000
        assert gc.get_freeze_count() == 0

        def fail(name: str) -> None:
            raise RuntimeError(name)

        llm.on_event = fail
        with pytest.raises(RuntimeError):
            llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2), use_tqdm=False)
        assert gc.get_freeze_count() == 0
