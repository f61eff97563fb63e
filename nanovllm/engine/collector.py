"""Keep Python's cyclic garbage collector out of the way while tokens are generated, by `generate` or by the server."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

BY_PYTHON = 10_000  # objects that may be frozen before anyone asked for it: Python 3.12 begins with some hundred


@contextmanager
def collector_spared() -> Iterator[None]:
    """Inside the block the collector leaves alone what was there before it: torch, transformers, the engine, your data.

    A decode step makes a few short-lived objects for each sequence, so a large batch sets the collector off several
    times a step; now and then it then walks all objects of the process, about a million, for tens of milliseconds in
    which nothing is launched. Objects that are made inside the block are collected as ever. Afterwards everything is as
    it was. Where others have frozen their objects already (`gc.freeze`) nothing is done.
    """
    if gc.get_freeze_count() > BY_PYTHON:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
