"""Planted bugs and harmless variants, made from the engine's own source by small changes."""

import inspect
import linecache
import sys
import textwrap
from types import CodeType
from typing import Any

from nanovllm.course.exercise import Exercise, Variant
from nanovllm.course.originals import original


def build(exercise: Exercise, variant: Variant) -> dict[str, Any]:
    """The exercise's pieces with the variant's in place. Raises ValueError when a text to change is not there."""
    pieces: dict[str, Any] = {name: original(seam) for name, seam in exercise.pieces}
    piece = pieces[variant.function]
    module = sys.modules[piece.__module__]
    source = textwrap.dedent(variant.source) or inspect.getsource(piece)
    source = textwrap.dedent(source).removeprefix("@property\n")
    for old, new in variant.changes:
        if source.count(old) != 1:
            raise ValueError(f"{exercise.name}: {variant.function} has {old!r} {source.count(old)} times, not once")
        source = source.replace(old, new)
    namespace = dict(vars(module))
    exec(_compiled(source, f"<{exercise.number} {variant.function} {variant.about}>"), namespace)
    pieces[variant.function] = namespace[piece.__name__ if not variant.source else variant.function]
    return pieces


def _compiled(source: str, name: str) -> CodeType:
    """Code whose source Triton and tracebacks can look up, as a notebook's cells are."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return compile(source, name, "exec")
