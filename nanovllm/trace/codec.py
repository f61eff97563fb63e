"""Small lossless codecs for state that changes little from step to step: a record stores only what changed.

Each `encode_*` returns None when nothing changed and plain JSON values otherwise; `decode_*` gives back exactly the new
value. Where a change has no short form, the whole value is stored.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Patch = dict[str, Any]


def encode_queue(old: Sequence[int], new: Sequence[int]) -> Patch | None:
    """A list of distinct ids that loses members and grows at its ends (a deque, the free list, a block table)."""
    if old == new:
        return None
    if len(new) > len(old) and new[: len(old)] == old:
        return {">": list(new[len(old) :])}
    members = set(new)
    kept = [x for x in old if x in members]
    removed = [x for x in old if x not in members]
    first = new.index(kept[0]) if kept else 0
    if len(members) == len(new) and new[first : first + len(kept)] == kept:
        parts = {"-": removed, "<": list(new[:first]), ">": list(new[first + len(kept) :])}
        return {key: part for key, part in parts.items() if part}
    return {"=": list(new)}


def decode_queue(old: Sequence[int], patch: Patch | None) -> list[int]:
    """The new list."""
    if patch is None:
        return list(old)
    if "=" in patch:
        return list(patch["="])
    removed = set(patch.get("-", ()))
    return [*patch.get("<", ()), *(x for x in old if x not in removed), *patch.get(">", ())]


def encode_column(old: Sequence[Any], new: Sequence[Any]) -> Patch | None:
    """Two columns of equal length: one difference that most rows share, and the rows that differ from it."""
    if old == new:
        return None
    if len(old) != len(new):
        return {"=": list(new)}
    shift = 0
    if isinstance(new[0], int) and isinstance(new[-1], int) and new[0] - old[0] == new[-1] - old[-1]:
        shift = new[0] - old[0]
        rows = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if b != a + shift]
    else:
        rows = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
    if 2 * len(rows) > len(new):
        return {"=": list(new)}
    patch: Patch = {"d": shift} if shift else {}
    return patch | ({"i": rows, "v": [new[i] for i in rows]} if rows else {})


def decode_column(old: Sequence[Any], patch: Patch | None) -> list[Any]:
    """The new column."""
    if patch is None:
        return list(old)
    if "=" in patch:
        return list(patch["="])
    shift = patch.get("d", 0)
    new = [x + shift for x in old] if shift else list(old)
    for row, value in zip(patch.get("i", ()), patch.get("v", ()), strict=True):
        new[row] = value
    return new


def encode_map(old: Mapping[int, Any], new: Mapping[int, Any], lists: bool = False) -> Patch | None:
    """A mapping from ids; `lists`: its values are lists of distinct ids, which change as queues do."""
    if old == new:
        return None
    removed = [key for key in old if key not in new]
    changed: dict[str, Any] = {}
    for key, value in new.items():
        before = old.get(key)
        if before != value or key not in old:
            changed[str(key)] = encode_queue(before or [], value) if lists else value
    return {k: v for k, v in {"-": removed, "+": changed}.items() if v}


def decode_map(old: Mapping[int, Any], patch: Patch | None, lists: bool = False) -> dict[int, Any]:
    """The new mapping; order follows the old one, new ids last."""
    new = dict(old)
    if patch is None:
        return new
    for key in patch.get("-", ()):
        del new[key]
    for name, value in patch.get("+", {}).items():
        key = int(name)
        new[key] = decode_queue(new.get(key, []), value) if lists else value
    return new


def encode_array(old: np.ndarray | None, new: np.ndarray | None) -> Any:
    """A one-dimensional integer array: against the old one, as rising runs, or whole, whichever is shortest."""
    if new is None:
        return None
    if old is not None and old.shape == new.shape and len(new):
        deltas = new - old
        shift = int(deltas[0])
        rows = np.flatnonzero(deltas != shift)
        if 3 * len(rows) <= len(new):
            patch: Patch = {"d": shift}
            return patch | ({"i": rows.tolist(), "v": new[rows].tolist()} if len(rows) else {})
    starts = np.flatnonzero(np.diff(new, prepend=new[:1] - 2) != 1)
    if 3 * len(starts) <= len(new):
        lengths = np.diff(starts, append=len(new))
        return {"r": [x for pair in zip(new[starts].tolist(), lengths.tolist(), strict=True) for x in pair]}
    return new.tolist()


def decode_array(old: Sequence[int] | None, patch: Any) -> list[int] | None:
    """The new array as a list, or None for an absent one."""
    if patch is None or isinstance(patch, list):
        return patch
    if "r" in patch:
        runs = patch["r"]
        return [x for s, n in zip(runs[::2], runs[1::2], strict=True) for x in range(s, s + n)]
    assert old is not None
    return decode_column(old, patch)
