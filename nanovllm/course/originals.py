"""What stands at a seam now, and what the engine itself had put there."""

import functools
import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from nanovllm.course.exercise import Seam


def resolve(path: str) -> Any:
    """The object behind "module:Class.attribute"."""
    module, _, names = path.partition(":")
    found: Any = import_module(module)
    for name in filter(None, names.split(".")):
        found = getattr(found, name)
    return found


def stored(seam: Seam) -> Any:
    """What the owner holds, unbound: a property, staticmethod or classmethod is not taken apart."""
    return inspect.getattr_static(resolve(seam.owner), seam.attribute)


def current(seam: Seam) -> Callable[..., Any]:
    """The function or class that stands at the seam now (a property's getter, a class method's function)."""
    found: Any = stored(seam)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    return cast(Callable[..., Any], found)


@functools.cache
def original(seam: Seam) -> Callable[..., Any]:
    """The engine's own at the seam; `swap` asks for it before it installs anything."""
    return current(seam)


def wrapped_like(kind: Any, piece: Any) -> Any:
    """The piece in the wrapping that `kind`, what was stored, has: a property, a static or a class method."""
    if isinstance(kind, property):
        return property(piece)
    if isinstance(kind, staticmethod | classmethod):
        return type(kind)(piece)
    return piece


def holders(seam: Seam) -> list[tuple[Any, str]]:
    """Every (object, attribute) through which the engine reaches what stands at the seam; the owner comes first.

    A function or class of a module is also held by the modules that imported it by name. Those of the course are left
    out: its oracles and worked answers keep the engine's own.
    """
    owner = resolve(seam.owner)
    found = [(owner, seam.attribute)]
    if seam.is_method:
        return found
    wanted = current(seam)
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] == "nanovllm" and not name.startswith("nanovllm.course") and module is not owner:
            found += [(module, attribute) for attribute, value in vars(module).items() if value is wanted]
    return found
