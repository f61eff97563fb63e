"""Planted bugs and harmless variants, made from the engine's own source by small changes."""

import inspect
import textwrap
from typing import Any

from nanovllm.course.exercise import Exercise, Variant
from nanovllm.course.originals import original


def build(exercise: Exercise, variant: Variant) -> dict[str, Any]:
    """The exercise's pieces with the variant's in place. Raises ValueError when a text to change is not there."""
    pieces: dict[str, Any] = {name: original(seam) for name, seam in exercise.pieces}
    function = pieces[variant.function]
    source = textwrap.dedent(variant.source) or textwrap.dedent(inspect.getsource(function))
    source = source.removeprefix("@property\n")
    for old, new in variant.changes:
        if source.count(old) != 1:
            raise ValueError(f"{exercise.name}: {variant.function} has {old!r} {source.count(old)} times, not once")
        source = source.replace(old, new)
    namespace = dict(function.__globals__)
    exec(source, namespace)
    pieces[variant.function] = namespace[function.__name__ if not variant.source else variant.function]
    return pieces
