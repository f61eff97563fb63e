"""The grades of a class: a text for the terminal, and CSV, JSON and Gradescope's result files for other systems."""

import csv
import io
import json
from pathlib import Path
from typing import Any

from nanovllm.course.classroom.bulk import Rows
from nanovllm.course.classroom.task import Row
from nanovllm.course.exercise import Exercise

_STATUS = {True: "passed", False: "failed"}
_MOST_NAMED = 8  # exercises in a line of the text


def as_csv(rows: Rows, exercises: list[Exercise]) -> str:
    """A line a learner: name, points earned, points there are, then each exercise's, then remarks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numbers = [exercise.number for exercise in exercises]
    writer.writerow(["submission", "earned", "points", *numbers, "remarks"])
    points = sum(exercise.points for exercise in exercises)
    for name, grades in rows.items():
        earned = [grades[number]["earned"] for number in numbers]
        writer.writerow([_safe(name), sum(earned), points, *earned, _safe("; ".join(_remarks(grades)))])
    return text.getvalue()


def _remarks(grades: dict[str, Row]) -> list[str]:
    """Why there are no points, where there is more to say than that the answers are wrong."""
    reasons = {number: grade["reason"] for number, grade in grades.items() if grade["reason"]}
    missing = [number for number in reasons if grades[number]["status"] == "missing"]
    said = [f"{number}: {reason}" for number, reason in reasons.items() if number not in missing]
    return said + ([f"no file: {', '.join(missing)}"] if missing else [])


def _safe(text: str) -> str:
    """No spreadsheet takes it for a formula, and it stays on one line."""
    line = " ".join(text.split())
    return f"'{line}" if line[:1] in ("=", "+", "-", "@") else line


def as_text(rows: Rows) -> str:
    """A line a learner, in columns: name, points, and the exercises that lack some."""
    lines = [("submission", "points", "exercises with points lost")]
    for name, grades in rows.items():
        lost = [number for number, grade in grades.items() if grade["earned"] < grade["points"]]
        named = ", ".join(lost[:_MOST_NAMED]) + (f" and {len(lost) - _MOST_NAMED} more" if lost[_MOST_NAMED:] else "")
        named = "no file" if all(grade["status"] == "missing" for grade in grades.values()) else named
        points = f"{sum(g['earned'] for g in grades.values())}/{sum(g['points'] for g in grades.values())}"
        lines.append(("".join(c if c.isprintable() else "?" for c in name), points, named))
    left, middle = (max(len(line[column]) for line in lines) for column in (0, 1))
    return "".join(f"{name:<{left}}  {points:>{middle}}  {lost}".rstrip() + "\n" for name, points, lost in lines)


def as_json(rows: Rows, exercises: list[Exercise], seed: int) -> str:
    """Everything that is known of every grade. The same submissions give the same text."""
    document = {
        "seed": seed,
        "points": sum(exercise.points for exercise in exercises),
        "exercises": {e.number: {"title": e.title, "points": e.points} for e in exercises},
        "submissions": [
            {
                "submission": name,
                "earned": sum(g["earned"] for g in grades.values()),
                "exercises": list(grades.values()),
            }
            for name, grades in rows.items()
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def as_gradescope(grades: list[Row]) -> str:
    """One learner's grades as `results.json` of a Gradescope autograder: a test a behaviour group."""
    tests: list[dict[str, Any]] = []
    for grade in grades:
        tests += _tests(grade)
    document = {
        "score": sum(grade["earned"] for grade in grades),
        "output": f"{sum(g['earned'] for g in grades)} of {sum(g['points'] for g in grades)} points",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _tests(grade: Row) -> list[dict[str, Any]]:
    if grade["reason"] or not grade["groups"]:
        return [_test(grade["number"], grade["title"], 0, grade["points"], f"No points: {grade['reason']}")]
    found = []
    for index, group in enumerate(grade["groups"], 1):
        name = f"{grade['title']}: {group['name']}"
        said = _said(group["failure"], grade["bug"]) if group["failure"] else ""
        found.append(_test(f"{grade['number']}.{index}", name, group["earned"], group["points"], said))
    return found


def _test(number: str, name: str, score: int, most: int, output: str) -> dict[str, Any]:
    return {
        "number": number,
        "name": f"{number} {name}",
        "score": score,
        "max_score": most,
        "status": _STATUS[score == most],
        "output": output,
        "output_format": "text",
    }


def _said(failure: dict[str, Any], bug: str) -> str:
    lines = [f"Think about: {failure['think']}", f"expected: {failure['expected']}", f"actual:   {failure['actual']}"]
    lines += [f"  {line}" for line in failure["history"]]
    lines += [f"Code that does this behaves the same: it {bug}."] if bug else []
    return "\n".join(lines)


def write_gradescope(rows: Rows, folder: Path) -> None:
    """A file a learner, named after the submission."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, grades in rows.items():
        (folder / f"{name}.json").write_text(as_gradescope(list(grades.values())), encoding="utf-8")
