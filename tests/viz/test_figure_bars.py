"""A table of bars: lengths in proportion, the spread and the floor in place, nothing outside of its cell."""

import itertools
import re
from xml.etree import ElementTree

import pytest

from nanovllm.viz.figure_bars import Bar, FigureBars, Row
from nanovllm.viz.svg import FULL, HALF

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*rows: Row, columns: int = 1) -> ElementTree.Element:
    table = FigureBars("t", [(f"c{i}", "ms") for i in range(columns)], rows, "words")
    return ElementTree.fromstring(table.svg(["a note"]))


def bars(picture: ElementTree.Element) -> list[tuple[float, float]]:
    """(x, width) of each bar: the rectangles with a tooltip."""
    found = [r for r in picture.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    return [(float(r.attrib["x"]), float(r.attrib["width"])) for r in found]


def test_lengths_are_in_proportion_and_columns_have_their_own_scale() -> None:
    rows = [Row("a", 0, [Bar("10", 10, 10, 10), Bar("1", 1, 1, 1)]), Row("b", 1, [Bar("5", 5, 5, 5), None])]
    (_, ten), (_, one), (_, five) = bars(drawn(*rows, columns=2))
    assert five == pytest.approx(ten / 2, abs=0.1)
    assert one == pytest.approx(ten, abs=0.1)


def test_spread_and_floor_are_in_place() -> None:
    picture = drawn(Row("a", 0, [Bar("8", 8, 4, 16, floor=20)]))
    ((x, width),) = bars(picture)
    unit = width / 8
    paths = [re.findall(r"[\d.]+", p.attrib["d"]) for p in picture.iter(f"{SVG}path")]
    spread, floor = ([float(v) for v in p] for p in paths)
    assert (spread[0], spread[2]) == pytest.approx((x + 4 * unit, x + 16 * unit), abs=0.2)
    assert floor[0] == floor[2] == pytest.approx(x + 20 * unit, abs=0.2)


def test_a_figure_of_zero_and_no_figures_can_be_drawn() -> None:
    ((_, width),) = bars(drawn(Row("a", 0, [Bar("0", 0, 0, 0)])))
    assert width < 1
    assert bars(drawn(Row("a", 0, [None]))) == []
    assert bars(drawn()) == []


@pytest.mark.parametrize("columns", [1, 4, 8, 12])
def test_no_bar_leaves_the_picture(columns: int) -> None:
    picture = drawn(Row("a point <of> some length", 3, [Bar("9", 9, 8, 9)] * columns), columns=columns)
    width = float(picture.attrib["width"])
    assert HALF <= width <= FULL
    ends = [(x, x + w) for x, w in bars(picture)]
    assert all(end < width - 8 for _, end in ends)
    assert all(after[0] > before[1] for before, after in itertools.pairwise(ends))
