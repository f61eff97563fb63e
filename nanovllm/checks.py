"""Type and range checks whose failures read as sentences; shared by the configuration and the sampling parameters."""

import difflib
import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any


def check_int(name: str, value: Any, low: int, high: int | None = None, error: type[Exception] = ValueError) -> int:
    """Return `value` as an int in [low, high], or raise `error` naming the value and the range.

    Anything that answers `__index__` (a numpy integer, say) counts as an integer; a bool does not.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise error(f"{name} must be an integer, not {value!r} ({type(value).__name__})")
    if number < low or (high is not None and number > high):
        span = f"between {low:,} and {high:,}" if high is not None else f"at least {low:,}"
        raise error(f"{name} must be {span}, not {number:,}")
    return number


def check_float(
    name: str, value: Any, low: float, high: float, error: type[Exception] = ValueError, *, open_low: bool = False
) -> float:
    """Return `value` as a float in [low, high] (or (low, high] with `open_low`), or raise `error`."""
    if isinstance(value, bool):
        raise error(f"{name} must be a number, not {value!r} (bool)")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise error(f"{name} must be a number, not {value!r} ({type(value).__name__})") from None
    except OverflowError:  # an integer beyond the range of a float
        number = math.inf if value > 0 else -math.inf
    below = number <= low if open_low else number < low
    if isinstance(value, str) or math.isnan(number) or below or number > high:
        kind = "above" if open_low else "at least"
        limit = "" if math.isinf(high) else f" and at most {high:g}"
        raise error(f"{name} must be a number {kind} {low:g}{limit}, not {value!r}")
    return number


def check_bool(name: str, value: Any, error: type[Exception] = ValueError) -> bool:
    """Return `value` if it is True or False, or raise `error`."""
    if not isinstance(value, bool):
        raise error(f"{name} must be True or False, not {value!r} ({type(value).__name__})")
    return value


def check_choice(name: str, value: Any, choices: tuple[str, ...], error: type[Exception] = ValueError) -> str:
    """Return `value` if it is one of `choices`, or raise `error` naming them."""
    if value not in choices:
        raise error(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")
    return value


def check_names(kind: str, given: Iterable[str], known: Sequence[str], error: type[Exception] = ValueError) -> None:
    """Raise `error` for the first of `given` that is not in `known`, with the nearest that is, or else with all.

    kind: what the names are, in the singular: "engine option", "sampling parameter".
    """
    for name in given:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near!r}?" if near else f"the {kind}s are {', '.join(known)}"
            raise error(f"unknown {kind} {name!r}: {hint}")


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The first known name that begins with `name`, or else the most alike; None where none is near."""
    begins = [k for k in known if len(name) > 1 and k.startswith(name)]
    return next(iter(begins or difflib.get_close_matches(name, known, n=1)), None)
