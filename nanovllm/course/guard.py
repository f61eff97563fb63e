"""Notices when a submission replaced what it is graded by: the engine, the grader, the clock, a builtin.

This catches tricks and accidents. It is no security boundary: code in the same process can always do more.
"""

import os
import sys
from types import FunctionType, ModuleType
from typing import Any

_WATCHED = (
    *(
        "builtins",
        "collections",
        "functools",
        "json",
        "json.encoder",
        "math",
        "operator",
        "os",
        "random",
        "signal",
        "sys",
    ),
    *("time", "numpy", "torch", "torch.nn.functional", "torch.testing"),
)
_CLASSES = (("torch", "Tensor"), ("json.encoder", "JSONEncoder"))  # beside those of the engine
_CHANGE_BY_THEMSELVES = {
    *("__annotations__", "__doc__", "__slotnames__"),  # the last one is pickle's note on a class
    *("last_value", "last_type", "last_traceback", "last_exc"),
}


class Guard:
    """Remembers the modules of the engine and a few of Python's as they are now."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, Any]] = {}
        self._classes: dict[str, tuple[type, dict[str, Any]]] = {}
        self._functions: dict[str, tuple[FunctionType, tuple[Any, Any]]] = {}
        for name, module in list(sys.modules.items()):
            if name in _WATCHED or name.split(".")[0] == "nanovllm":
                self._remember(name, module)
        for name, attribute in _CLASSES:
            cls = getattr(sys.modules.get(name), attribute, None)
            if cls is not None:
                self._classes[f"{name}.{attribute}"] = (cls, dict(vars(cls)))
        self._out, self._files = (sys.stdout, sys.stderr), _standard_files()

    def closed(self) -> str:
        """What became of standard output, in words; "" while it goes where it went."""
        is_open = not any(stream.closed for stream in self._out if stream is not None)
        return "" if is_open and _standard_files() == self._files else "closed its standard output"

    def _remember(self, name: str, module: ModuleType) -> None:
        self._seen[name] = dict(vars(module))
        for attribute, value in self._seen[name].items():
            if getattr(value, "__module__", "").startswith("nanovllm") if isinstance(value, type) else False:
                self._classes[f"{name}.{attribute}"] = (value, dict(vars(value)))
                for inner, found in vars(value).items():
                    self._remember_function(f"{name}.{attribute}.{inner}", getattr(found, "fget", found))
            self._remember_function(f"{name}.{attribute}", value)

    def _remember_function(self, name: str, value: Any) -> None:
        if isinstance(value, FunctionType):
            self._functions[name] = (value, (value.__code__, value.__defaults__))

    def changes(self) -> list[str]:
        """Dotted names of what is no longer what it was."""
        found = []
        for name, before in self._seen.items():
            found += _replaced(name, before, vars(sys.modules[name]) if name in sys.modules else {})
        for name, (cls, members) in self._classes.items():
            found += _replaced(name, members, dict(vars(cls)))
            found += [f"{name}.{new}" for new in vars(cls) if new not in members and new not in _CHANGE_BY_THEMSELVES]
        for name, (function, (code, defaults)) in self._functions.items():
            if function.__code__ is not code or function.__defaults__ is not defaults:
                found.append(name)
        return list(dict.fromkeys(found))


def _standard_files() -> list[tuple[int, int] | None]:
    """What the descriptors of standard output and error lead to."""
    found: list[tuple[int, int] | None] = []
    for fd in (1, 2):
        try:
            status = os.fstat(fd)
            found.append((status.st_dev, status.st_ino))
        except OSError:
            found.append(None)
    return found


def _replaced(owner: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    gone = object()
    return [
        f"{owner}.{name}"
        for name, value in before.items()
        if name not in _CHANGE_BY_THEMSELVES and now.get(name, gone) is not value
    ]
