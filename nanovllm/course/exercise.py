"""What an exercise consists of, as plain data: seams, hints, checks, planted bugs."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

SEEDS_APART = 10_000  # more than one exercise uses


@dataclass(frozen=True, slots=True)
class Seam:
    """A place where a learner's function or class can stand instead of the engine's.

    owner: "module" or "module:Class". attribute: its name there. signature: its parameters, as `inspect` writes them
    without annotations; of a class, those of its constructor, without self. defaults_of: functions ("module:name")
    that hold the object as the default of a parameter, and so would not notice that the attribute changed. methods: of
    a class, (name, signature with self) of each method that the engine calls.

    Modules of the engine that hold a function or class of a module under a name of their own (`from ... import`) are
    found by `swap`; they need no mention.
    """

    owner: str
    attribute: str
    signature: str
    is_property: bool = False
    defaults_of: tuple[str, ...] = ()
    methods: tuple[tuple[str, str], ...] = ()
    is_class: bool = False

    @property
    def is_method(self) -> bool:
        """True where the owner is a class."""
        return ":" in self.owner

    @property
    def name(self) -> str:
        """A short name: "BlockManager.allocate"."""
        return f"{self.owner.replace(':', '.').rsplit('.', 1)[-1]}.{self.attribute}"


@dataclass(frozen=True, slots=True)
class Example:
    """A small case worked out by hand. code: Python that leaves its answer, a plain value, in `result`.

    think: what to think about when this one fails; "" for the words of its group.
    """

    code: str
    expected: Any
    think: str = ""


def seeds(count: int, seed: int) -> range:
    """The seeds of `count` random traces or cases: 0, 1, 2 ... for seed 0, and others for every other seed."""
    return range(seed * SEEDS_APART, seed * SEEDS_APART + count)


@dataclass(frozen=True, slots=True)
class Numeric:
    """Random cases whose answers are numbers; see `nanovllm.course.numeric`.

    sizes: (name, smallest, largest) of what makes a case small or large.
    inputs: called with a random generator and the sizes by name; the case as plain values by name (numbers, texts,
    nested lists), so that a case can be printed.
    code: Python that may use those names and leaves its answer in `result`; lines of imports come first.
    expected: called with the inputs by name; the answer, worked out without the function under test.
    """

    sizes: tuple[tuple[str, int, int], ...]
    inputs: Callable[..., dict[str, Any]]
    code: str
    expected: Callable[..., Any]
    cases: int = 24
    tolerance: float = 1e-4

    def sizes_of(self, index: int, seed: int = 0) -> dict[str, int]:
        """The sizes of case `index`: the smallest of all first, then the largest of all, then random ones."""
        if index < 2:
            return {name: (low, high)[index] for name, low, high in self.sizes}
        rng = random.Random(seeds(self.cases, seed)[index])
        return {name: rng.randint(low, high) for name, low, high in self.sizes}

    def inputs_of(self, seed: int, sizes: dict[str, int]) -> dict[str, Any]:
        """The inputs of one case: the same for the same seed and sizes."""
        return self.inputs(random.Random(1000 + seed), **sizes)


@dataclass(frozen=True, slots=True)
class Group:
    """One behaviour: earned whole or not at all.

    think: what to think about when it fails. traces: random traces of the slot oracle to play, 0 for none.
    numeric: random cases of the numeric oracle.
    """

    name: str
    points: int
    think: str
    examples: tuple[Example, ...] = ()
    traces: int = 0
    numeric: Numeric | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """A piece that differs from the engine's own: a planted bug, or a harmless other way to do it.

    about: the difference as a sentence. function: the learner's name of the piece. source: a function to use instead of
    the engine's, with whatever stands beside it (a kernel, say). changes: (old, new) texts in `source`, or else in the
    engine's, each of which occurs once.
    """

    about: str
    function: str
    changes: tuple[tuple[str, str], ...] = ()
    source: str = ""


@dataclass(frozen=True, slots=True)
class Exercise:
    """One exercise.

    number: "1.3". file: below exercises/ and solutions/. pieces: (the learner's function, the seam it goes to).
    hints: three, of rising help.
    uses_torch: its checks run tensors or the whole engine, which takes more memory and time.
    """

    number: str
    title: str
    file: str
    pieces: tuple[tuple[str, Seam], ...]
    hints: tuple[str, str, str]
    groups: tuple[Group, ...]
    bugs: tuple[Variant, ...]
    harmless: tuple[Variant, ...]
    uses_torch: bool = False

    @property
    def points(self) -> int:
        """Points of all groups."""
        return sum(group.points for group in self.groups)

    @property
    def part(self) -> int:
        """The part it belongs to."""
        return int(self.number.split(".")[0])

    @property
    def name(self) -> str:
        """Number and short name, as its stub says it: "1.3 allocate"."""
        return f"{self.number} {PurePosixPath(self.file).stem.split('_', 1)[1]}"

    def seam(self, function: str) -> Seam:
        """The seam that the learner's function of that name goes to."""
        return dict(self.pieces)[function]
