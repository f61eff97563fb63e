"""Write the table of planted bugs and harmless variants into docs/exercises.md, from the exercises themselves.

python scripts/exercise_table.py            # writes; with --check it only says whether the table is stale
"""

import argparse
import re
import sys
from pathlib import Path

from nanovllm.course.registry import EXERCISES

PAGE = Path(__file__).resolve().parents[1] / "docs" / "exercises.md"
COUNTS = re.compile(r"^[A-Z].* \d+ planted bugs and \d+ harmless variants\.$", re.MULTILINE)
HEAD = "| exercise | points | planted | must be |\n|---|---|---|---|\n"


def table() -> str:
    """All rows; number and points stand in the first row of each exercise only."""
    rows = []
    for exercise in EXERCISES.values():
        start = f"| {exercise.number} {exercise.title} | {exercise.points} "
        for variants, verdict in ((exercise.bugs, "rejected"), (exercise.harmless, "accepted")):
            for variant in variants:
                rows.append(f"{start}| `{variant.function}` {variant.about} | {verdict} |\n")
                start = "|  |  "
    return HEAD + "".join(rows)


def counts() -> str:
    """The sentence above the table."""
    bugs = sum(len(exercise.bugs) for exercise in EXERCISES.values())
    harmless = sum(len(exercise.harmless) for exercise in EXERCISES.values())
    return f"The {len(EXERCISES)} exercises have {bugs} planted bugs and {harmless} harmless variants."


def renewed(page: str) -> str:
    """The page with a new table and a new sentence."""
    if page.count(HEAD) != 1 or len(COUNTS.findall(page)) != 1:
        raise SystemExit(f"{PAGE.name} has no single table of variants with its sentence above: put them back")
    before, _, after = page.partition(HEAD)
    rest = re.sub(r"\A(\|.*\n)*", "", after)
    return COUNTS.sub(counts(), before) + table() + rest


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the table is stale")
    args = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    new = renewed(page)
    if args.check:
        sys.stdout.write("" if new == page else "stale: run python scripts/exercise_table.py\n")
        return int(new != page)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
