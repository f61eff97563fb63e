"""What an exercise consists of, as plain data: seams, hints, checks, planted bugs."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any


@dataclass(frozen=True, slots=True)
class Seam:
    """A place where a learner's function can stand instead of the engine's.

    owner: "module" or "module:Class". attribute: its name there. signature: its parameters, as `inspect` writes them
    without annotations. defaults_of: functions ("module:name") that hold the object as the default of a parameter, and
    so would not notice that the attribute changed.
    """

    owner: str
    attribute: str
    signature: str
    is_property: bool = False
    defaults_of: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A short name: "BlockManager.allocate"."""
        return f"{self.owner.replace(':', '.').rsplit('.', 1)[-1]}.{self.attribute}"


@dataclass(frozen=True, slots=True)
class Example:
    """A small case worked out by hand. code: Python that leaves its answer, a plain value, in `result`."""

    code: str
    expected: Any


@dataclass(frozen=True, slots=True)
class Group:
    """One behaviour: earned whole or not at all.

    think: what to think about when it fails. traces: random traces of the slot oracle to play, 0 for none.
    """

    name: str
    points: int
    think: str
    examples: tuple[Example, ...] = ()
    traces: int = 0


@dataclass(frozen=True, slots=True)
class Variant:
    """A piece that differs from the engine's own: a planted bug, or a harmless other way to do it.

    about: the difference as a sentence. function: the learner's name of the piece. changes: (old, new) texts in the
    engine's source, each of which occurs once; or source: a whole function to use instead.
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
    """

    number: str
    title: str
    file: str
    pieces: tuple[tuple[str, Seam], ...]
    hints: tuple[str, str, str]
    groups: tuple[Group, ...]
    bugs: tuple[Variant, ...]
    harmless: tuple[Variant, ...]

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
