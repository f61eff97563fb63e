"""Put a learner's function where the engine's own stands, count its calls, and put the original back."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from nanovllm.course.errors import SwapError
from nanovllm.course.exercise import Seam
from nanovllm.course.load import load_pieces
from nanovllm.course.originals import current, original, resolve
from nanovllm.course.registry import EXERCISES, get_exercise
from nanovllm.course.seams import SEAMS

Calls = dict[str, int]
Implementation = Callable[..., Any] | Mapping[str, Any] | ModuleType | str | Path


@contextmanager
def swap(what: str, implementation: Implementation) -> Iterator[Calls]:
    """Use `implementation` in the running engine inside the `with` block; yields the calls of each piece so far.

    what: a seam ("BlockManager.allocate"), with a function; or an exercise ("1.3"), with its functions by name (a dict
    such as `globals()`, or a module), with "exercises", "solutions", "reference", or the path of a file or folder.

        with swap("BlockManager.allocate", my_allocate) as calls:
            llm.generate(prompts)
        assert calls["BlockManager.allocate"] > 0

    The original returns when the block is left, by an error too. Raises SwapError, with nothing installed, when a
    function is missing or its parameters are not those of the seam.
    """
    if what in SEAMS:
        seams = {what: (SEAMS[what], implementation)}
    elif what in EXERCISES:
        exercise = get_exercise(what)
        pieces = load_pieces(exercise, implementation)
        seams = {seam.name: (seam, pieces[name]) for name, seam in exercise.pieces}
    else:
        known = ", ".join([*SEAMS, *EXERCISES])
        raise SwapError(f"there is no seam or exercise {what!r}; there are {known}")
    with install(seams) as calls:
        yield calls


@contextmanager
def install(pieces: Mapping[str, tuple[Seam, Any]]) -> Iterator[Calls]:
    """Install every (seam, function) of `pieces`; the keys are those of the counts that it yields."""
    for seam, function in pieces.values():
        original(seam)  # remembered from before anything is installed
        check_signature(seam, function)
    calls = dict.fromkeys(pieces, 0)
    with ExitStack() as stack:
        for key, (seam, function) in pieces.items():
            _put(stack, seam, _counted(function, calls, key))
        yield calls


def plain_signature(function: Callable[..., Any]) -> str:
    """The parameters without annotations."""
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(inspect.Signature(parameters))


def check_signature(seam: Seam, function: Any) -> None:
    """Raise SwapError, showing both signatures, unless `function` takes what the seam's callers pass.

    The first parameter of a method may have any name: `manager` reads better than `self` in a function of its own.
    """
    if not callable(function):
        raise SwapError(f"{seam.name} needs a function{seam.signature}, not {type(function).__name__} {function!r:.80}")
    try:
        given = plain_signature(function)
    except (TypeError, ValueError):
        raise SwapError(f"{seam.name} needs a function{seam.signature}; {function!r:.80} has no signature") from None
    wanted = seam.signature
    is_method = ":" in seam.owner
    if is_method and inspect.signature(function).parameters:
        first = next(iter(inspect.signature(function).parameters))
        wanted = wanted.replace("self", first, 1)
    if given != wanted:
        name = getattr(function, "__name__", "the function")
        raise SwapError(f"{seam.name} is called as {seam.attribute}{wanted}; yours is {name}{given}: make them equal")


def _counted(function: Callable[..., Any], calls: Calls, key: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[key] += 1
        return function(*args, **kwargs)

    return counted


def _put(stack: ExitStack, seam: Seam, function: Callable[..., Any]) -> None:
    """Install one function; the stack puts the original back."""
    owner, original = resolve(seam.owner), current(seam)
    stored = inspect.getattr_static(owner, seam.attribute)
    stack.callback(setattr, owner, seam.attribute, stored)
    setattr(owner, seam.attribute, property(function) if seam.is_property else function)
    for path in seam.defaults_of:
        _put_default(stack, resolve(path), original, function)


def _put_default(stack: ExitStack, holder: FunctionType, original: Any, function: Any) -> None:
    defaults = holder.__defaults__ or ()
    stack.callback(setattr, holder, "__defaults__", defaults)
    holder.__defaults__ = tuple(function if value is original else value for value in defaults)
