"""A hand-out for learners: stubs, notebooks and how to begin, without solutions."""

import re
import shlex
import shutil
import tempfile
import tomllib
from pathlib import Path

import nanovllm
from nanovllm.course.classroom.closed_book import close_book
from nanovllm.course.classroom.links import unlink_missing
from nanovllm.course.errors import CourseError
from nanovllm.course.exercise import Exercise
from nanovllm.course.registry import COURSE_POINTS
from nanovllm.course.stubs import stub_of

_README = """\
# nanovllm: exercises

You write {count} pieces of a small LLM inference engine, worth {points} points:

{table}

```sh
{install}
nanovllm grade{part}            # what each exercise is worth now, and what to think about next
nanovllm grade {first}          # one of them
nanovllm hint {first}           # the first of three hints
```

{notebooks}Each file in `exercises/` says what its functions take and return, with an example worked out by
hand. Fill them in and hand in the whole `exercises/` folder.
{closed}"""
_NOTEBOOKS = """\
The notebooks explain them: `jupyter lab notebooks/00_start_here.ipynb`.

A page that they name and that is not in this folder, such as `docs/gpu.md`, is in the repository that the hand-out was
made from.
{sources}
"""
_SOURCES = """\
A file of the package, such as `nanovllm/scheduler/sequence.py`, is where the package is installed:

```sh
python -c "import nanovllm; print(nanovllm.__path__[0])"        # prints that folder
```
"""
_CLOSED = """
This is a closed-book hand-out: `nanovllm/` is the engine without the pieces above. It runs on yours: until a piece is
written, whatever needs it stops with the exercise's name. The checks need the pieces of other exercises too, so go in
order.
"""
# The package is on no index: an open hand-out is installed from the wheel that lies in it, as `wheel_command` puts it.
_INSTALL_OPEN = (
    "pip install './{wheel}[notebooks]'      # the engine's wheel, in this folder; not where nanovllm is there"
)
_INSTALL_CLOSED = "pip install -c constraints.txt -e '.[notebooks]'"
_LINKED = re.compile(r"\]\(\.\./((?:diagrams|docs)/[\w./-]+)")
_KEPT = ("pyproject.toml", "LICENSE", "constraints.txt")


def release(target: Path, exercises: list[Exercise], closed_book: bool = False, root: Path | None = None) -> list[Path]:
    """Write the hand-out into the new or empty folder `target`; returns its files.

    The stubs are made from the solutions of the checkout at `root` (default: the one that this package runs from), so
    that nothing somebody wrote into `exercises/` gets out. closed_book: add a copy of the package in which the
    engine's own version of the exercises' pieces is absent. Raises CourseError with nothing written.
    """
    root = root or Path(nanovllm.__file__).resolve().parents[1]
    missing = [e.file for e in exercises if not (root / "solutions" / e.file).is_file()]
    if missing:
        raise CourseError(f"{root} has no solutions/{missing[0]}, from which its stub is made: run this in a checkout")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CourseError(f"{target} is there already and not empty: name a new folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".nanovllm-") as folder:
        whole = Path(folder) / "whole"
        _write(whole, exercises, closed_book, root)
        whole.replace(target)
    return sorted(path for path in target.rglob("*") if path.is_file())


def _write(target: Path, exercises: list[Exercise], closed_book: bool, root: Path) -> None:
    for exercise in exercises:
        stub = target / "exercises" / exercise.file
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text(stub_of((root / "solutions" / exercise.file).read_text(encoding="utf-8")), encoding="utf-8")
    if (root / "notebooks").is_dir():
        shutil.copytree(root / "notebooks", target / "notebooks", ignore=shutil.ignore_patterns(".*", "*.py"))
        _copy_linked(target, root)
    if closed_book:
        close_book(target / "nanovllm", exercises, root / "nanovllm")
        for name in _KEPT:
            shutil.copy(root / name, target / name)
    unlink_missing(target)
    install = _INSTALL_CLOSED if closed_book else _INSTALL_OPEN.format(wheel=_wheel(root))
    text = _readme(exercises, closed_book, install, (target / "notebooks").is_dir())
    (target / "README.md").write_text(text, encoding="utf-8")


def _copy_linked(target: Path, root: Path) -> None:
    """The diagrams that the notebooks show, and the pages that they link: no notebook loses a picture."""
    for notebook in (target / "notebooks").glob("*.ipynb"):
        for name in _LINKED.findall(notebook.read_text(encoding="utf-8")):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, target / name)


def wheel_command(target: Path, root: Path | None = None) -> str:
    """The shell command that completes an open hand-out: it builds the wheel of the checkout at `root` into it."""
    root = root or Path(nanovllm.__file__).resolve().parents[1]
    return shlex.join(["pip", "wheel", "--no-deps", "-w", str(target), str(root)])


def _wheel(root: Path) -> str:
    """The file name of the checkout's wheel. It is pure Python, so that the version is all that changes."""
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return f"nanovllm-{version}-py3-none-any.whl"


def _readme(exercises: list[Exercise], closed_book: bool, install: str, has_notebooks: bool) -> str:
    rows = [f"| {e.number} | {e.title} | {e.points} | `exercises/{e.file}` |" for e in exercises]
    points = sum(e.points for e in exercises)
    return _README.format(
        count=sum(len(e.pieces) for e in exercises),
        points=points if points != COURSE_POINTS else f"all {points}",
        table="\n".join(["| | exercise | points | file |", "|---|---|---|---|", *rows]),
        install=install,
        first=exercises[0].number,
        part=f" {exercises[0].part}" if len({e.part for e in exercises}) == 1 else "  ",
        closed=_CLOSED if closed_book else "",
        notebooks=_NOTEBOOKS.format(sources="" if closed_book else _SOURCES) if has_notebooks else "",
    )
