"""Dataclasses to plain values and back, checked against their type hints."""

import types
import typing
from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any, TypeVar

from nanovllm.bench.errors import BenchError

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """A dataclass as dictionaries and lists."""
    return asdict(value)


def from_plain(cls: type[T], value: Any, where: str = "result") -> T:
    """The dataclass of these plain values. Raises BenchError naming the place where they do not fit."""
    if not isinstance(value, dict):
        raise BenchError(f"{where} must be a JSON object, not {type(value).__name__}")
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(value.keys() - known.keys())
    if unknown:
        raise BenchError(f"{where} has a field {unknown[0]!r} that this version of nanovllm does not know")
    needed = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    missing = [n for n in needed if n not in value]
    if missing:
        raise BenchError(f"{where} lacks the field {missing[0]!r}: the file is no complete result")
    return cls(**{name: _convert(hints[name], item, f"{where}.{name}") for name, item in value.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in args:
            return None
        return _convert(next(a for a in args if a is not type(None)), value, where)
    if origin is list:
        if not isinstance(value, list):
            raise BenchError(f"{where} must be a list, not {type(value).__name__}")
        return [_convert(args[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            raise BenchError(f"{where} must be a JSON object, not {type(value).__name__}")
        return {key: _convert(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if is_dataclass(hint):
        return from_plain(hint, value, where)  # type: ignore[arg-type]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise BenchError(f"{where} must be a {hint.__name__}, not {value!r}")
    return value
