"""What stands at a seam now, and what the engine itself had put there."""

import functools
import inspect
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


def current(seam: Seam) -> Callable[..., Any]:
    """The function that stands at the seam now (a property's getter)."""
    found: Any = inspect.getattr_static(resolve(seam.owner), seam.attribute)
    function: Any = found.fget if isinstance(found, property) else found
    return cast(Callable[..., Any], function)


@functools.cache
def original(seam: Seam) -> Callable[..., Any]:
    """The engine's own function at the seam; `swap` asks for it before it installs anything."""
    return current(seam)
