"""`nanovllm grade` and `nanovllm hint`."""

import argparse
import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanovllm.errors import NanoVLLMError

if TYPE_CHECKING:
    from nanovllm.course.judge import Grade

_GRADE = """\
Run the checks of your exercises, each in a process of its own, and say what each one is worth and what to think about
next. Progress is kept in $NANOVLLM_DATA_DIR, or else in nanovllm/ of the user's data folder.

Separate processes keep accidents apart; they are no security boundary.
"""
_DAY = 24 * 60 * 60


def add_parser(subparsers: Any) -> None:
    """Add both commands to the command line."""
    grade = subparsers.add_parser(
        "grade",
        help="grade the course's exercises",
        description=_GRADE,
        epilog="exit codes: 0 full points, 1 not yet, 2 refused",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    grade.add_argument("what", nargs="?", metavar="PART|EXERCISE", help="1, or 1.3 (default: all)")
    grade.add_argument(
        "--impl",
        default="exercises",
        metavar="IMPL",
        help="exercises (default), solutions, reference (the engine's own), or the path of a folder or file",
    )
    grade.add_argument(
        "--not-mine", action="store_true", help="IMPL is somebody else's work: your own progress stays as it is"
    )
    grade.add_argument("--json", metavar="FILE", help="also write the grades as JSON; - for stdout and nothing else")
    grade.add_argument("--gradescope", metavar="FILE", help="also write the results.json of a Gradescope autograder")
    grade.add_argument("--seed", type=int, default=0, metavar="N", help="other random checks of the same kind")
    grade.add_argument("--html", metavar="FILE", help="also write the grade card as one HTML page")
    grade.add_argument(
        "--seconds", type=float, default=20.0, metavar="S", help="of each exercise (default: %(default)s)"
    )
    grade.add_argument("--debug", action="store_true", help="show the traceback of a refusal")
    grade.set_defaults(run=run_grade)
    hint = subparsers.add_parser(
        "hint",
        help="a hint for an exercise",
        description="A hint for an exercise. There are three levels of rising help.",
    )
    hint.add_argument("exercise", metavar="EXERCISE", help="1.3, for example")
    hint.add_argument("--level", type=int, default=1, choices=(1, 2, 3), help="default: %(default)s")
    hint.add_argument("--solution", action="store_true", help="your file beside the solution, once you have passed")
    hint.add_argument("--show-me", action="store_true", help="with --solution: before you have passed, too")
    hint.add_argument("--impl", default="exercises", metavar="IMPL", help="where your file is (default: %(default)s)")
    hint.add_argument("--debug", action="store_true", help="show the traceback of a refusal")
    hint.set_defaults(run=run_hint)
    import_module("nanovllm.course.classroom.command").add_parser(subparsers)


def check_limits(seconds: float, seed: int) -> None:
    """Raise CourseError unless an exercise may take so many seconds and `seed` may choose its random checks."""
    from nanovllm.course.errors import CourseError

    if not 0 < seconds <= _DAY:
        raise CourseError(f"--seconds must be above 0 and at most {_DAY:,}, a day, not {seconds:g}")
    if seed < 0:
        raise CourseError(f"--seed must be at least 0, not {seed}")


def run_grade(args: argparse.Namespace) -> int:
    """Grade, show the card, keep the progress. 0 for full points, 1 otherwise."""
    from nanovllm.course.grade import grade_all
    from nanovllm.course.process import Limits
    from nanovllm.course.registry import select

    check_limits(args.seconds, args.seed)
    if "triton" not in sys.modules:  # for the planted bugs of kernels, which the diagnosis runs in this process
        os.environ.setdefault("TRITON_INTERPRET", "1")
    limits = Limits(seconds=args.seconds)
    grades = grade_all(select(args.what), args.impl, limits, _tell_if_terminal(), args.seed)
    if args.json:
        _write_json(args, grades)
    if args.gradescope:
        from nanovllm.course.classroom.tables import as_gradescope

        _write(args.gradescope, as_gradescope([grade.as_dict() for grade in grades]))
    if args.html:
        from nanovllm.course.card_html import grade_page

        _write(args.html, grade_page(grades, note=f"implementation: {args.impl}"))
    if args.json != "-":
        _show(args, grades)
    return 0 if all(grade.earned == grade.points for grade in grades) else 1


def _tell_if_terminal() -> Any:
    """A line on stderr after each exercise, where somebody watches."""
    if not sys.stderr.isatty():
        return lambda grade: None
    return lambda grade: sys.stderr.write(f"graded {grade.name}\n")


def _show(args: argparse.Namespace, grades: "list[Grade]") -> None:
    from nanovllm.cli.terminal import make_console
    from nanovllm.course.card import bar, show_card
    from nanovllm.course.progress import Progress
    from nanovllm.course.registry import COURSE_POINTS

    console = make_console()
    show_card(console, grades)
    earned, points = sum(g.earned for g in grades), sum(g.points for g in grades)
    console.print(f"\n{earned} of {points} points in this run", markup=False)
    if args.not_mine or args.impl in ("solutions", "reference"):
        return  # somebody else's work is nobody's progress
    progress = Progress()
    progress.record(grades)
    console.print("Course:", bar(progress.points, COURSE_POINTS))


def _write_json(args: argparse.Namespace, grades: "list[Grade]") -> None:
    document = {
        "impl": args.impl,
        "earned": sum(g.earned for g in grades),
        "points": sum(g.points for g in grades),
        "exercises": [grade.as_dict() for grade in grades],
    }
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if args.json == "-":
        sys.stdout.write(text)
    else:
        _write(args.json, text)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise NanoVLLMError(f"the grades cannot be written to {path}: {error.strerror}") from error


def run_hint(args: argparse.Namespace) -> int:
    """Print the hint, or the difference to the solution."""
    from nanovllm.course.registry import get_exercise

    exercise = get_exercise(args.exercise)
    if args.solution or args.show_me:
        from nanovllm.course.progress import Progress
        from nanovllm.course.reveal import solution_diff

        lines = solution_diff(exercise, args.impl, args.show_me, Progress())
        sys.stdout.write("\n".join(lines) + "\n" if lines else "your file is the solution, word for word\n")
        return 0
    sys.stdout.write(f"{exercise.name}, hint {args.level} of 3: {exercise.hints[args.level - 1]}\n")
    if args.level < 3:
        sys.stdout.write(f"More: nanovllm hint {exercise.number} --level {args.level + 1}\n")
    return 0
