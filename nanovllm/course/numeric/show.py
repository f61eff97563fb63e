"""Expected above actual, with a mark under what differs: as text, because a grade card is text."""

from typing import Any

from nanovllm.course.numeric.compare import Path, difference, numbers_in, place, same_number, show
from nanovllm.course.numeric.values import is_array

MOST_COLUMNS = 10
MOST_ROWS = 3
LONGEST_INPUT = 160


def side_by_side(expected: Any, actual: Any, tolerance: float) -> list[str]:
    """Lines that hold the rows of `actual` that differ, each below the row it should be; [] when there are no rows.

    Long rows are cut to the columns around the first difference.
    """
    rows = [row for row in _rows(expected, actual, ()) if _row_differs(row, tolerance)]
    lines: list[str] = []
    for path, wanted, given in rows[:MOST_ROWS]:
        lines += _row_lines(place(path), wanted, given, tolerance)
    if len(rows) > MOST_ROWS:
        lines.append(f"and {len(rows) - MOST_ROWS} more rows differ")
    return lines


def _row_differs(row: tuple[Path, list[Any], list[Any]], tolerance: float) -> bool:
    _, wanted, given = row
    return difference(wanted, given, tolerance) is not None


def _rows(expected: Any, actual: Any, path: Path) -> list[tuple[Path, list[Any], list[Any]]]:
    """Every innermost list of `expected` with the one at the same place of `actual`."""
    if isinstance(expected, dict) and not is_array(expected):
        if not isinstance(actual, dict) or is_array(actual):
            return []
        shared = [name for name in expected if name in actual]
        return [row for name in shared for row in _rows(expected[name], actual[name], (*path, name))]
    wanted, given = numbers_in(expected), numbers_in(actual)
    if not isinstance(wanted, list) or not isinstance(given, list):
        return []
    if not any(isinstance(item, list | dict) for item in (*wanted, *given)):
        return [(path, wanted, given)]
    pairs = enumerate(zip(wanted, given, strict=False))
    return [row for index, (one, other) in pairs for row in _rows(one, other, (*path, index))]


def _row_lines(name: str, wanted: list[Any], given: list[Any], tolerance: float) -> list[str]:
    longest = max(len(wanted), len(given))
    same = [i < min(len(wanted), len(given)) and same_number(wanted[i], given[i], tolerance) for i in range(longest)]
    first = max(0, same.index(False) - MOST_COLUMNS // 2) if longest > MOST_COLUMNS else 0
    columns = range(first, min(longest, first + MOST_COLUMNS))
    cells = [(str(i), _cell(wanted, i), _cell(given, i), "" if same[i] else "^") for i in columns]
    width = max(len(text) for cell in cells for text in cell)
    heads = (name, "expected", "actual", "")
    left = max(len(head) for head in heads)
    lines = [
        f"{head:<{left}}  " + "  ".join(f"{cell[line]:>{width}}" for cell in cells) for line, head in enumerate(heads)
    ]
    return [line.rstrip() for line in lines]


def _cell(row: list[Any], index: int) -> str:
    return show(row[index]) if index < len(row) else "none"


def describe_inputs(inputs: dict[str, Any]) -> list[str]:
    """One line an input; long ones are cut."""
    lines = []
    for name, value in inputs.items():
        text = f"{name} = {value!r}"
        lines.append(text if len(text) <= LONGEST_INPUT else f"{text[:LONGEST_INPUT]} ...")
    return lines
