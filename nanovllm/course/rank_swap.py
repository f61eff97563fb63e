"""A swap that travels: what each rank of an engine installs, with functions from files, modules and notebook cells."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle

from nanovllm.course.errors import SwapError
from nanovllm.course.exercise import Seam
from nanovllm.course.load import REFERENCE, find_file, load_source
from nanovllm.course.registry import EXERCISES
from nanovllm.course.swap import Calls, Implementation, Pieces, Swapped, pieces_of

FileText = tuple[str, str]  # path, content


class RankSwap:
    """One of the engine's `prepare` callables: it puts the pieces of `swaps` in before a rank builds its model.

    A worker's process belongs to one engine, so there they stay. Rank 0's process belongs to the caller: there they are
    in force inside `active` only, so that other engines of the process keep their own.
    Raises SwapError when it is made, before any rank exists, for whatever `course.swap` refuses.
    """

    def __init__(self, swaps: Mapping[str | Seam, Implementation]) -> None:
        self._sources = {what: _source(what, implementation) for what, implementation in swaps.items()}
        self.swapped = Swapped(_all_pieces(self._sources))

    def __call__(self, executor: Any) -> None:
        """Called by every rank before it builds."""
        if executor.rank > 0:
            self.swapped.put()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Rank 0's pieces are in force inside the block."""
        with self.swapped.active():
            yield

    @property
    def calls(self) -> Calls:
        """This rank's calls of each piece so far."""
        return self.swapped.calls

    def __getstate__(self) -> bytes:
        """What goes to another rank: texts of files, and functions by value where they could not be imported."""
        with _by_value(self._sources):
            return cloudpickle.dumps(self._sources)

    def __setstate__(self, state: bytes) -> None:
        self._sources = cloudpickle.loads(state)
        self.swapped = Swapped(_all_pieces(self._sources))


def calls_here(executor: Any) -> Calls:
    """The calls of this rank's pieces; for `ModelRanks.call`."""
    return next(prepare.calls for prepare in executor.plan.prepare if isinstance(prepare, RankSwap))


def _source(what: str | Seam, implementation: Implementation) -> Any:
    """The implementation in a form that every rank understands: a file's text is read once, here."""
    is_text = isinstance(implementation, str | Path)
    if isinstance(what, Seam) or what not in EXERCISES:
        if is_text:
            raise SwapError(f"{what!r} needs a function or a class; {str(implementation)!r} goes with an exercise")
        return implementation
    exercise = EXERCISES[what]
    if is_text and implementation != REFERENCE:
        path = find_file(exercise, implementation)  # type: ignore[arg-type]
        return path.resolve(), path.read_text(encoding="utf-8")
    if not is_text:  # a dict such as a notebook's globals(), of which only the exercise's pieces travel
        pieces = pieces_of(what, implementation)
        return {name: pieces[seam.name][1] for name, seam in exercise.pieces}
    return implementation


def _all_pieces(sources: Mapping[str | Seam, Any]) -> Pieces:
    pieces: Pieces = {}
    for what, source in sources.items():
        implementation = load_source(*source) if isinstance(source, tuple) else source
        for name, piece in pieces_of(what, implementation).items():
            if name in pieces:
                raise SwapError(f"{name} is given twice, the second time by {what!r}: give it once")
            pieces[name] = piece
    return pieces


@contextmanager
def _by_value(sources: Mapping[str | Seam, Any]) -> Iterator[None]:
    """Let cloudpickle write modules that were run from a learner's file by value: no other process can import them."""
    values = [source.values() if isinstance(source, dict) else [source] for source in sources.values()]
    pieces = [piece for some in values for piece in some]
    names = {getattr(piece, "__module__", None) for piece in pieces}
    modules = [sys.modules[name] for name in names if name in sys.modules and str(name).startswith("learner_")]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
