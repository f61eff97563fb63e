"""Write docs/planted_bugs.md, the table of planted bugs and harmless variants, from the exercises themselves.

python scripts/exercise_table.py            # writes; with --check it only says whether the page is stale
"""

import argparse
import sys
from pathlib import Path

from nanovllm.course.registry import EXERCISES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "planted_bugs.md"
TEXT = """\
# Planted bugs and harmless variants

A planted bug is a plausible wrong implementation that an exercise's checks must reject; a harmless variant does the
same as the solution in another way and must be accepted. Every test run tries all of them. A learner's failure is
compared with the planted bugs, and the one that fails the same checks in the same way is named.

This page is written by `python scripts/exercise_table.py`. {counts}

| exercise | points | planted | must be |
|---|---|---|---|
"""


def page() -> str:
    """The whole page; number and points stand in the first row of each exercise only."""
    rows = []
    for exercise in EXERCISES.values():
        start = f"| {exercise.number} {exercise.title} | {exercise.points} "
        for variants, verdict in ((exercise.bugs, "rejected"), (exercise.harmless, "accepted")):
            for variant in variants:
                rows.append(f"{start}| `{variant.function}` {variant.about} | {verdict} |\n")
                start = "|  |  "
    return TEXT.format(counts=counts()) + "".join(rows)


def counts() -> str:
    """How many there are, as a sentence."""
    bugs = sum(len(exercise.bugs) for exercise in EXERCISES.values())
    harmless = sum(len(exercise.harmless) for exercise in EXERCISES.values())
    return f"The {len(EXERCISES)} exercises have {bugs} planted bugs and {harmless} harmless variants."


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is stale")
    args = parser.parse_args()
    new = page()
    if args.check:
        is_stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != new
        sys.stdout.write("stale: run python scripts/exercise_table.py\n" if is_stale else "")
        return int(is_stale)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
