"""Where two plain values differ: by name, shape, dtype or number, within a tolerance."""

import math
from dataclasses import dataclass
from typing import Any

from nanovllm.course.numeric.values import is_array, shape_of

Path = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where an answer differs. path: field names and indices; what: in words."""

    path: Path
    expected: str
    actual: str


def difference(expected: Any, actual: Any, tolerance: float, path: Path = ()) -> Difference | None:
    """The first difference of two values of `plain`, or None when they agree.

    Where `expected` is a tensor the dtype must be the same; where it is a list, an equally shaped tensor agrees.
    Numbers agree when they differ by at most tolerance x max(1, |expected|); whole numbers, texts and None exactly.
    """
    if isinstance(expected, dict) and not is_array(expected):
        return _fields_differ(expected, actual, tolerance, path)
    if isinstance(expected, dict | list):
        return _arrays_differ(expected, actual, tolerance, path)
    return None if same_number(expected, actual, tolerance) else Difference(path, show(expected), show(actual))


def _fields_differ(expected: dict[str, Any], actual: Any, tolerance: float, path: Path) -> Difference | None:
    if not isinstance(actual, dict) or is_array(actual) or not expected.keys() <= actual.keys():
        return Difference(path, f"values named {', '.join(expected)}", show(actual))
    for name, value in expected.items():
        if found := difference(value, actual[name], tolerance, (*path, name)):
            return found
    return None


def _arrays_differ(expected: Any, actual: Any, tolerance: float, path: Path) -> Difference | None:
    values, given = numbers_in(expected), numbers_in(actual)
    if not isinstance(given, list) and isinstance(values, list):
        return Difference(path, show(expected), show(actual))
    if is_array(actual) and shape_of(values) != actual["shape"] and not _ragged(values):
        return Difference(path, f"shape {shape_of(values)}", f"shape {actual['shape']}")
    if is_array(expected) and is_array(actual) and expected["dtype"] != actual["dtype"]:
        return Difference(path, f"dtype {expected['dtype']}", f"dtype {actual['dtype']}")
    return _lists_differ(values, given, tolerance, path)


def _lists_differ(expected: Any, actual: Any, tolerance: float, path: Path) -> Difference | None:
    """Walks nested lists; a list may hold values of any kind."""
    if not isinstance(expected, list):
        return difference(expected, actual, tolerance, path)
    if not isinstance(actual, list):
        return difference(expected, actual, tolerance, path) if is_array(actual) else _unlike(expected, actual, path)
    if len(expected) != len(actual):
        return Difference(path, f"{len(expected)} values: {show(expected)}", f"{len(actual)} values: {show(actual)}")
    for index, (one, other) in enumerate(zip(expected, actual, strict=True)):
        if found := _lists_differ(one, other, tolerance, (*path, index)):
            return found
    return None


def _unlike(expected: Any, actual: Any, path: Path) -> Difference:
    return Difference(path, show(expected), show(actual))


def _ragged(values: Any) -> bool:
    """True for lists that no tensor can hold, so that their shape says nothing."""
    if not isinstance(values, list) or not values:
        return False
    return len({str(shape_of(item)) for item in values}) > 1 or any(_ragged(item) for item in values)


def numbers_in(value: Any) -> Any:
    """The nested lists of a tensor; any other value as it is."""
    return value["values"] if is_array(value) else value


def same_number(expected: Any, actual: Any, tolerance: float) -> bool:
    """Whether two single values agree; a bool is no number."""
    if isinstance(expected, float) and type(actual) in (int, float):
        if not math.isfinite(expected) or not math.isfinite(actual):
            return expected == actual or (math.isnan(expected) and math.isnan(actual))
        return abs(expected - actual) <= tolerance * max(1.0, abs(expected))
    return type(expected) is type(actual) and bool(expected == actual)


def show(value: Any) -> str:
    """A value in short: numbers with four digits, a tensor as its numbers."""
    if is_array(value):
        return show(value["values"])
    if isinstance(value, dict) and value.keys() == {"object"}:
        return f"({value['object']})"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, list):
        return f"[{', '.join(show(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {show(item)}' for name, item in value.items())}}}"
    return repr(value)


def place(path: Path) -> str:
    """A path in words: "slot_mapping[2]", "[1, 0, 3]", or "" for the whole value."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text = f"{text[:-1]}, {part}]" if text.endswith("]") else f"{text}[{part}]"
        else:
            text = f"{text}.{part}" if text else part
    return text
