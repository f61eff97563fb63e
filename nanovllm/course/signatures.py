"""Whether a learner's function or class takes what the seam's callers pass."""

import inspect
from collections.abc import Callable
from typing import Any

from nanovllm.course.errors import SwapError
from nanovllm.course.exercise import Seam


def plain_signature(function: Callable[..., Any]) -> str:
    """The parameters without annotations; of a class, those of its constructor without self."""
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(parameters))


def check_signature(seam: Seam, piece: Any) -> None:
    """Raise SwapError, showing both signatures, unless `piece` takes what the seam's callers pass.

    The first parameter of a method may have any name: `manager` reads better than `self` in a function of its own.
    """
    if seam.is_class:
        _check_class(seam, piece)
        return
    if not callable(piece):
        raise SwapError(f"{seam.name} needs a function{seam.signature}, not {type(piece).__name__} {piece!r:.80}")
    _compare(seam.name, seam.attribute, seam.signature, piece, free_first=seam.is_method)


def _check_class(seam: Seam, piece: Any) -> None:
    if not isinstance(piece, type):
        raise SwapError(
            f"{seam.name} needs a class {seam.attribute}{seam.signature}, not {type(piece).__name__} {piece!r:.80}"
        )
    _compare(seam.name, seam.attribute, seam.signature, piece, free_first=False)
    for name, wanted in seam.methods:
        method = getattr(piece, name, None)
        if not callable(method):
            raise SwapError(f"{seam.name} needs a method {name}{wanted}; your {piece.__name__} has none")
        _compare(f"{seam.name}.{name}", name, wanted, method, free_first=True)


def _compare(where: str, attribute: str, wanted: str, piece: Any, free_first: bool) -> None:
    """free_first: the first parameter may have any name."""
    try:
        given = plain_signature(piece)
    except (TypeError, ValueError):
        raise SwapError(f"{where} needs a function{wanted}; {piece!r:.80} has no signature") from None
    parameters = list(inspect.signature(piece).parameters)
    if free_first and parameters:
        first = wanted.removeprefix("(").split(",")[0].rstrip(")")
        wanted = wanted.replace(first, parameters[0], 1) if first in ("self", "cls") else wanted
    if given != wanted:
        name = getattr(piece, "__name__", "the function")
        raise SwapError(f"{where} is called as {attribute}{wanted}; yours is {name}{given}: make them equal")
