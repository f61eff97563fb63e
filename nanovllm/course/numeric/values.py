"""Tensors and the like as plain values, which travel between processes and compare as what they are."""

import random
import sys
from dataclasses import fields, is_dataclass
from typing import Any

MOST_NUMBERS = 20_000  # of one tensor: an exercise's cases are small
DEEPEST = 8


def numbers(rng: random.Random, *shape: int) -> Any:
    """Nested lists of that shape, of numbers between -2 and 2 with two digits: short to print, exact in fp32 enough."""
    if not shape:
        return round(rng.uniform(-2, 2), 2)
    return [numbers(rng, *shape[1:]) for _ in range(shape[0])]


def plain(value: Any, depth: int = 0) -> Any:
    """`value` as numbers, texts, lists and dicts.

    A tensor or array becomes {"dtype": "float32", "shape": [2, 3], "values": nested list}, a dataclass a dict of its
    fields. Anything else becomes {"object": name of its type}, which equals no answer: an object of a learner's own
    class cannot claim to be equal.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth > DEEPEST:
        return {"object": "something nested too deeply"}
    if type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return [plain(item, depth + 1) for item in value]
    if type(value) is dict:
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    array = _array(value)
    if array is not None:
        return array
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name), depth + 1) for f in fields(value)}
    return {"object": type(value).__name__}


def _array(value: Any) -> Any:
    """A tensor, array or number of torch or numpy, if it is one and those libraries are loaded."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
        tensor = value.detach().cpu()
        shown = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
        return _described(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), tensor.numel(), shown)
    if numpy is not None and type(value) is numpy.ndarray:
        return _described(str(value.dtype), list(value.shape), value.size, value)
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    return None


def _described(dtype: str, shape: list[int], count: int, array: Any) -> dict[str, Any]:
    if count > MOST_NUMBERS:
        return {"object": f"a tensor of {count:,} numbers"}
    return {"dtype": dtype, "shape": shape, "values": array.tolist()}


def is_array(value: Any) -> bool:
    """True for what `plain` makes of a tensor."""
    return isinstance(value, dict) and value.keys() == {"dtype", "shape", "values"}


def shape_of(values: Any) -> list[int]:
    """The shape of nested lists, by their first elements; [] for a number."""
    shape = []
    while isinstance(values, list):
        shape.append(len(values))
        values = values[0] if values else None
    return shape
