"""Put a learner's function or class where the engine's own stands, count its calls, and put the original back."""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from nanovllm.course.errors import SwapError
from nanovllm.course.exercise import Seam
from nanovllm.course.load import load_pieces
from nanovllm.course.originals import current, holders, original, resolve, stored, wrapped_like
from nanovllm.course.registry import EXERCISES, get_exercise
from nanovllm.course.seams import SEAMS
from nanovllm.course.signatures import check_signature, plain_signature

Calls = dict[str, int]
Implementation = Callable[..., Any] | Mapping[str, Any] | ModuleType | str | Path
Pieces = dict[str, tuple[Seam, Any]]

__all__ = ["Calls", "Implementation", "Swapped", "check_signature", "install", "pieces_of", "plain_signature", "swap"]


@contextmanager
def swap(what: str | Seam, implementation: Implementation) -> Iterator[Calls]:
    """Use `implementation` in the running engine inside the `with` block; yields the calls of each piece so far.

    what: a seam ("BlockManager.allocate", or a `Seam` of your own), with a function or class; or an exercise ("1.3"),
    with its pieces by name (a dict such as `globals()`, or a module), or with "exercises", "solutions", "reference", or
    the path of a file or folder.

        with swap("BlockManager.allocate", my_allocate) as calls:
            llm.generate(prompts)
        assert calls["BlockManager.allocate"] > 0

    The original returns when the block is left, by an error too. Raises SwapError, with nothing installed, when a
    piece is missing or its parameters are not those of the seam. This concerns the calling process: for an engine
    of several ranks use `LLM(..., swap={what: implementation})`.
    """
    with install(pieces_of(what, implementation)) as calls:
        yield calls


def pieces_of(what: str | Seam, implementation: Implementation) -> Pieces:
    """(seam, learner's piece) by the seam's name. Raises SwapError for an unknown name or a missing piece."""
    if isinstance(what, Seam):
        return {what.name: (what, implementation)}
    if what in SEAMS:
        return {what: (SEAMS[what], implementation)}
    if what in EXERCISES:
        exercise = get_exercise(what)
        pieces = load_pieces(exercise, implementation)
        return {seam.name: (seam, pieces[name]) for name, seam in exercise.pieces}
    known = ", ".join([*SEAMS, *EXERCISES])
    raise SwapError(f"there is no seam or exercise {what!r}; there are {known}")


@contextmanager
def install(pieces: Mapping[str, tuple[Seam, Any]]) -> Iterator[Calls]:
    """Install every (seam, piece) of `pieces`; the keys are those of the counts that it yields."""
    swapped = Swapped(pieces)
    with swapped.active():
        yield swapped.calls


class Swapped:
    """Pieces that can be put in and taken out again and again; `calls` counts over all of these times.

    A class counts how often it was built under its key, and each method that the engine calls under "key.method".
    """

    def __init__(self, pieces: Mapping[str, tuple[Seam, Any]]) -> None:
        for seam, piece in pieces.values():
            original(seam)  # remembered from before anything is installed
            check_signature(seam, piece)
        self.calls: Calls = dict.fromkeys(pieces, 0)
        self._counted: list[tuple[Seam, Any]] = []
        for key, (seam, piece) in pieces.items():
            wrap = self._counted_class if seam.is_class else self._counted_function
            self._counted.append((seam, wrap(piece, key, seam)))
        self._depth = 0
        self._stack = ExitStack()

    @contextmanager
    def active(self) -> Iterator[None]:
        """In force inside the block; entering it again inside changes nothing."""
        if self._depth == 0:
            self.put()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self.take_out()

    def put(self) -> None:
        """Put every piece in; nothing stays behind when one cannot be."""
        with ExitStack() as stack:
            for seam, counted in self._counted:
                _put(stack, seam, counted)
            self._stack = stack.pop_all()

    def take_out(self) -> None:
        """Put back what stood there before `put`."""
        self._stack.close()

    def _counted_function(self, function: Callable[..., Any], key: str, seam: Seam) -> Callable[..., Any]:
        calls = self.calls

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            calls[key] += 1
            return function(*args, **kwargs)

        return counted

    def _counted_class(self, cls: type, key: str, seam: Seam) -> type:
        members: dict[str, Any] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
        members["__init__"] = self._counted_function(cls.__init__, key, seam)  # type: ignore[misc]
        for name, _ in seam.methods:
            self.calls[f"{key}.{name}"] = 0
            members[name] = self._counted_function(getattr(cls, name), f"{key}.{name}", seam)
        return type(cls)(cls.__name__, (cls,), members)


def _put(stack: ExitStack, seam: Seam, piece: Any) -> None:
    """Install one piece wherever the engine holds the original; the stack puts the original back."""
    before, kind = current(seam), stored(seam)
    for owner, attribute in holders(seam):
        if attribute in vars(owner):
            stack.callback(setattr, owner, attribute, vars(owner)[attribute])
        else:  # inherited
            stack.callback(delattr, owner, attribute)
        setattr(owner, attribute, wrapped_like(kind, piece))
    for path in seam.defaults_of:
        _put_default(stack, resolve(path), before, piece)
    if not seam.is_method:
        stack.callback(_leave_nowhere, seam, before)


def _leave_nowhere(seam: Seam, before: Any) -> None:
    """Modules that were first imported while the piece was in hold it by name too: give them the original."""
    for owner, attribute in holders(seam):
        setattr(owner, attribute, before)


def _put_default(stack: ExitStack, holder: FunctionType, original: Any, piece: Any) -> None:
    defaults = holder.__defaults__ or ()
    stack.callback(setattr, holder, "__defaults__", defaults)
    holder.__defaults__ = tuple(piece if value is original else value for value in defaults)
