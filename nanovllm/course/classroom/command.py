"""`nanovllm class release` and `nanovllm class grade`."""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanovllm.errors import NanoVLLMError

if TYPE_CHECKING:
    from nanovllm.course.classroom.bulk import Rows

_RELEASE = """\
Write a folder to hand out: the stubs of the exercises, the notebooks, and a README that says how to begin. Run it in a
checkout of the repository: the stubs are made from its solutions, which stay behind.

Learners need the package too. An open hand-out is complete once the wheel lies in it; the command for that is printed.
"""
_GRADE = """\
Grade every learner's folder in DIR, and print what each has earned. Name what you handed out: an exercise that is
graded and has no file is a zero, and without a name all are graded.

What has been graded already, under the same seed and limits and with the same files, is not graded again: a run that
was killed goes on where it was.

Each exercise runs in a process of its own. That keeps accidents apart and is no security boundary: run this in a
container when you do not trust the code (docs/instructors.md).
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser("class", help="hand-outs and grades for a class", description="Tools for a class.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="class_command", required=True)
    release = commands.add_parser(
        "release",
        help="write a hand-out without solutions",
        description=_RELEASE,
        epilog="exit codes: 0 written, 2 refused, with nothing written",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    release.add_argument("folder", metavar="DIR", help="a new or empty folder")
    _add_what(release)
    release.add_argument(
        "--closed-book",
        action="store_true",
        help="add a copy of the package in which these pieces are absent: it calls the learner's",
    )
    release.add_argument("--debug", action="store_true", help="show the traceback of a refusal")
    release.set_defaults(run=run_release)
    _add_grade(commands)


def _add_what(parser: argparse.ArgumentParser) -> None:
    """Parts and exercises. Without a default argparse says that they are required, although they are not."""
    parser.add_argument(
        "what", nargs="*", default=[], metavar="PART|EXERCISE", help="1 3 4.2, for example (default: all)"
    )


def _add_grade(commands: Any) -> None:
    grade = commands.add_parser(
        "grade",
        help="grade all submissions of a folder",
        description=_GRADE,
        epilog="exit codes: 0 all graded, 2 refused",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    grade.add_argument("folder", metavar="DIR", help="holds a folder for each learner; its name stands for the learner")
    _add_what(grade)
    grade.add_argument(
        "--csv", metavar="FILE", help="write a table: a line for each learner, a column for each exercise"
    )
    grade.add_argument(
        "--json", metavar="FILE", help="write every grade with its failures; - for stdout and nothing else"
    )
    grade.add_argument("--gradescope", metavar="DIR", help="write a file for each learner, as Gradescope reads it")
    grade.add_argument("--seed", type=int, default=0, metavar="N", help="other random checks than the learners know")
    grade.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes at once (default: %(default)s)",
    )
    grade.add_argument("--dask", metavar="ADDRESS", help="grade on the workers of this Dask scheduler instead")
    grade.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="that one exercise may take (default: %(default)s)"
    )
    grade.add_argument("--journal", metavar="FILE", help="what is graded already (default: a hidden file in DIR)")
    grade.add_argument("--fresh", action="store_true", help="grade everything again")
    grade.add_argument("--debug", action="store_true", help="show the traceback of a refusal")
    grade.set_defaults(run=run_class_grade)


def run_release(args: argparse.Namespace) -> int:
    """Write the hand-out and say what is in it."""
    from nanovllm.course.classroom.release import release, wheel_command
    from nanovllm.course.registry import select_all

    exercises = select_all(args.what)
    files = release(Path(args.folder), exercises, args.closed_book)
    kind = "closed-book hand-out" if args.closed_book else "hand-out"
    sys.stdout.write(f"{kind} of {_count(exercises, 'exercise')} in {args.folder}: {len(files)} files, no solutions\n")
    if not args.closed_book:
        sys.stdout.write(f"learners install the engine from its wheel; put it in: {wheel_command(Path(args.folder))}\n")
    return 0


def run_class_grade(args: argparse.Namespace) -> int:
    """Grade, and write the tables that were asked for."""
    from dataclasses import replace

    from tqdm import tqdm

    from nanovllm.course.classroom import bulk, tables
    from nanovllm.course.classroom.journal import NAME, Journal
    from nanovllm.course.classroom.submissions import find_submissions
    from nanovllm.course.command import check_limits
    from nanovllm.course.errors import CourseError
    from nanovllm.course.registry import select_all

    if args.jobs < 1:
        raise CourseError(f"--jobs must be at least 1, not {args.jobs}")
    check_limits(args.seconds, args.seed)
    folder, exercises = Path(args.folder), select_all(args.what)
    submissions = find_submissions(folder)
    run = bulk.on_dask(args.dask) if args.dask else bulk.on_cores(args.jobs)
    limits = replace(bulk.CLASS_LIMITS, seconds=args.seconds)
    start = time.monotonic()
    known: list[int] = []
    with (
        Journal(Path(args.journal) if args.journal else folder / NAME, args.fresh) as journal,
        tqdm(total=len(submissions) * len(exercises), unit="exercise", disable=None) as progress,
    ):

        def tell(done: int, total: int) -> None:
            known.append(done)
            progress.update(done - progress.n)

        rows = bulk.grade_class(submissions, exercises, folder, journal, run, args.seed, limits, tell)
    _write(args, rows, exercises)
    if args.json != "-":
        each = f"{_count(submissions, 'submission')}, {_count(exercises, 'exercise')} each"
        told = f"{known[-1] - known[0]} graded now, {known[0]} known or without a file"
        sys.stdout.write(f"{tables.as_text(rows)}{each}: {told}, in {time.monotonic() - start:.0f} s\n")
    return 0


def _count(things: list[Any], name: str) -> str:
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"


def _write(args: argparse.Namespace, rows: "Rows", exercises: list[Any]) -> None:
    from nanovllm.course.classroom import tables

    try:
        if args.csv:
            Path(args.csv).write_text(tables.as_csv(rows, exercises), encoding="utf-8")
        if args.json == "-":
            sys.stdout.write(tables.as_json(rows, exercises, args.seed))
        elif args.json:
            Path(args.json).write_text(tables.as_json(rows, exercises, args.seed), encoding="utf-8")
        if args.gradescope:
            tables.write_gradescope(rows, Path(args.gradescope))
    except OSError as error:
        raise NanoVLLMError(f"the grades cannot be written to {error.filename}: {error.strerror}") from error
