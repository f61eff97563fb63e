"""Whether a dotted name exists: a module, a class, a function, or a field that a class declares or sets on itself."""

import ast
import importlib
import inspect
import textwrap
from types import ModuleType
from typing import Any


def problem(dotted: str) -> str | None:
    """What is wrong with a name, or None if it exists."""
    parts = dotted.split(".")
    value, rest = _module(parts)
    if value is None:
        return f"{dotted}: there is no module {parts[0]!r}"
    for index, part in enumerate(rest):
        if hasattr(value, part):
            value = getattr(value, part)
        elif inspect.isclass(value) and index == len(rest) - 1 and part in _fields(value):
            return None
        else:
            owner = ".".join(parts[: len(parts) - len(rest) + index])
            return f"{dotted}: {owner} has no {part!r}"
    return None


def _module(parts: list[str]) -> tuple[Any, list[str]]:
    """The longest importable front of the name, and what is left of it."""
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        try:
            module: ModuleType = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and not name.startswith(error.name):
                raise  # the module is there; something that it needs is not
            continue
        return module, parts[end:]
    return None, parts


def _fields(owner: type) -> set[str]:
    """Names that a class annotates, or sets on self in any of its methods; its bases' included."""
    names: set[str] = set()
    for base in owner.__mro__[:-1]:
        names |= set(getattr(base, "__annotations__", {})) | set(getattr(base, "__slots__", ()))
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name):
                names |= {node.attr} if node.value.id == "self" else set()
    return names
