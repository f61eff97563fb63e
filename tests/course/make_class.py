"""A class of generated submissions: right, wrong, empty, hostile and mixed, with what each must earn.

    python -m tests.course.make_class DIR --count 100 --seed 1

writes DIR/<learner>/exercises/..., and DIR/../<DIR's name>-expected.json, which `check` compares grades with.
"""

import argparse
import inspect
import json
import random
import sys
import textwrap
from pathlib import Path
from typing import Any

from nanovllm.course.exercise import Exercise, Variant
from nanovllm.course.originals import original
from nanovllm.course.registry import EXERCISES
from nanovllm.course.reveal import solution_text
from nanovllm.course.stubs import stub_of
from tests.course.hostile import FAST, RIGHT, SLOW

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("right", "harmless", "bug", "stub", "missing", "hostile")
# How a learner of each kind fills the exercises: weights of KINDS.
LEARNERS = {
    "good": (90, 6, 4, 0, 0, 0),
    "middling": (50, 5, 30, 10, 3, 2),
    "weak": (10, 0, 50, 30, 10, 0),
    "empty": (0, 0, 0, 60, 40, 0),
    "hostile": (20, 0, 10, 5, 5, 60),
}
SHARES = {"good": 30, "middling": 35, "weak": 15, "empty": 8, "hostile": 12}
UNSTEADY = "uses Python's hash"  # hash(None) is an address before Python 3.12: wrong in another way every time
SLOW_SHARE = 0.06  # of the hostile ones
Expected = dict[str, dict[str, list[str]]]  # learner -> exercise -> [kind, about]


def bug_file(exercise: Exercise, variant: Variant) -> str:
    """The solution with one function in the variant's words."""
    function = original(exercise.seam(variant.function))
    source = textwrap.dedent(variant.source or inspect.getsource(function)).removeprefix("@property\n")
    source = source.removeprefix("@staticmethod\n")
    for old, new in variant.changes:
        source = source.replace(old, new)
    if not variant.source:
        source = source.replace(f"def {function.__name__}(", f"def {variant.function}(", 1)
    if function.__module__.startswith("nanovllm.course."):
        names = ""  # a submission may not import it, and needs nothing of it that the solution has not
    else:
        names = f"import {function.__module__} as _engine\nglobals().update({{k: v for k, v in vars(_engine).items()"
        names += " if k not in globals()})\n"
    return f"{_solution(exercise)}\n{names}\n{source}"


def _solution(exercise: Exercise) -> str:
    return solution_text((ROOT / "solutions" / exercise.file).read_text(encoding="utf-8"))


def _hostile(exercise: Exercise, rng: random.Random) -> tuple[str, str]:
    table = SLOW if rng.random() < SLOW_SHARE else FAST
    whole = {name: text for name, (text, _) in table.items()}
    if exercise.number != "1.1":
        whole = {name: text for name, text in whole.items() if not _needs_1_1(text.replace(RIGHT, ""))}
    name = rng.choice(sorted(whole))
    return whole[name].replace(RIGHT, f"\n{_solution(exercise)}\n"), name


def _needs_1_1(text: str) -> bool:
    return "def num_blocks" in text or "\nblock = " in f"\n{text}"


def file_of(exercise: Exercise, kind: str, rng: random.Random) -> tuple[str | None, str, str]:
    """(text or None for no file, kind, what it is about)."""
    if kind in ("bug", "harmless"):
        chosen = exercise.bugs if kind == "bug" else exercise.harmless
        variants = [variant for variant in chosen if not variant.about.startswith(UNSTEADY)]
        if variants:
            variant = rng.choice(variants)
            return bug_file(exercise, variant), kind, variant.about
        kind = "right" if kind == "harmless" else "stub"
    if kind == "hostile":
        text, about = _hostile(exercise, rng)
        return text, kind, about
    if kind == "stub":
        return stub_of((ROOT / "solutions" / exercise.file).read_text(encoding="utf-8")), kind, ""
    return (_solution(exercise) if kind == "right" else None), kind, ""


def make_class(target: Path, count: int, seed: int, exercises: list[Exercise] | None = None) -> Expected:
    """Write `count` submissions; the same for the same seed."""
    rng = random.Random(seed)
    learners = rng.choices(list(SHARES), list(SHARES.values()), k=count)
    expected: Expected = {}
    for index, learner in enumerate(learners):
        name = f"{index:03}-{learner}"
        expected[name] = {}
        (target / name).mkdir(parents=True)
        for exercise in exercises or EXERCISES.values():
            (kind,) = rng.choices(KINDS, LEARNERS[learner])
            text, kind, about = file_of(exercise, kind, rng)
            expected[name][exercise.number] = [kind, about]
            if text is not None:
                path = target / name / "exercises" / exercise.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    return expected


def check(document: dict[str, Any], expected: Expected) -> list[str]:
    """What is wrong with the grades of `nanovllm class grade --json`; [] when each learner got what is due."""
    wrong = []
    given = {row["submission"]: {g["number"]: g for g in row["exercises"]} for row in document["submissions"]}
    for name, exercises in expected.items():
        for number, (kind, about) in exercises.items():
            grade = given[name][number]
            earned, points = grade["earned"], grade["points"]
            fits = {
                "right": earned == points,
                "harmless": earned == points,
                "bug": earned < points and grade["status"] in ("partial", "failed", "void"),
                "stub": grade["status"] == "todo" and earned == 0,
                "missing": earned == 0 and grade["status"] == "missing",
                "hostile": earned == 0 and grade["status"] in ("void", "failed"),
            }[kind]
            if not fits:
                wrong.append(f"{name} {number} {kind} {about!r}: {earned}/{points} {grade['status']} {grade['reason']}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", metavar="GRADES", type=Path, help="compare these grades with what is due")
    args = parser.parse_args()
    due = args.folder.with_name(f"{args.folder.name}-expected.json")
    if args.check:
        wrong = check(json.loads(args.check.read_text()), json.loads(due.read_text()))
        print("\n".join(wrong) or "every learner got what is due")
        return 1 if wrong else 0
    expected = make_class(args.folder, args.count, args.seed)
    due.write_text(json.dumps(expected, indent=1), encoding="utf-8")
    kinds = [kind for exercises in expected.values() for kind, _ in exercises.values()]
    print(f"{args.count} submissions:", ", ".join(f"{kinds.count(kind)} {kind}" for kind in KINDS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
