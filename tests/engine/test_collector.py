"""The garbage collector while tokens are generated: spared what was there before, and afterwards as it was."""

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
from helpers import make_llm

from nanovllm import SamplingParams
from nanovllm.engine.collector import BY_PYTHON, collector_spared

PATHS = f"import sys; sys.path[:] = {sys.path!r}"


class Node:
    """Points to itself, so only the collector can free it."""

    def __init__(self) -> None:
        self.me = self


def test_what_was_there_is_frozen_inside_and_only_there() -> None:
    assert gc.get_freeze_count() < BY_PYTHON
    with collector_spared():
        assert gc.get_freeze_count() > BY_PYTHON
    assert gc.get_freeze_count() == 0


def test_the_few_objects_that_python_itself_freezes_are_not_taken_for_a_programs() -> None:
    """Python 3.12 begins with some; here it is made sure of, before anything is imported."""
    program = """
import gc
gc.freeze()
few = gc.get_freeze_count()
from nanovllm.engine.collector import collector_spared
yours = [[] for _ in range(20_000)]
with collector_spared():
    print(few, gc.get_freeze_count())
"""
    done = subprocess.run([sys.executable, "-S", "-c", PATHS + program], capture_output=True, text=True, check=True)
    few, inside = map(int, done.stdout.split())
    assert 0 < few < BY_PYTHON < inside


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
        assert min(counts) > BY_PYTHON
        assert gc.get_freeze_count() == 0

        def fail(name: str) -> None:
            raise RuntimeError(name)

        llm.on_event = fail
        with pytest.raises(RuntimeError):
            llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2), use_tqdm=False)
        assert gc.get_freeze_count() == 0
