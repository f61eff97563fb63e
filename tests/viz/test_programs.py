"""Programs that wait for a place: when each runs, what the picture and its text say, and which orders are refused."""

import re

import pytest

from nanovllm.course.lessons_part2 import begun_in_order
from nanovllm.viz.programs import Programs, Run, runs_of

LENGTHS = [4, 2, 7]


def test_each_begins_where_a_place_is_free_first() -> None:
    assert runs_of(LENGTHS, [0, 1, 2], 2) == [Run(0, 0, 0, 4), Run(1, 1, 0, 2), Run(2, 1, 2, 9)]
    assert runs_of(LENGTHS, [2, 0, 1], 2) == [Run(2, 0, 0, 7), Run(0, 1, 0, 4), Run(1, 1, 4, 6)]


def test_room_for_all_makes_the_order_indifferent() -> None:
    shown = Programs(LENGTHS, {"a": [0, 1, 2], "b": [2, 1, 0]}, 5)
    assert (shown.end("a"), shown.end("b")) == (7, 7)
    assert "place 4: nothing" in shown.text()


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3]])
def test_an_order_that_is_none_is_refused(order: list[int]) -> None:
    with pytest.raises(
        ValueError, match=rf"there are 3 rows and the order is \[{', '.join(map(str, order))}\]: name each"
    ):
        Programs(LENGTHS, {"a": order}, 2)


def test_nothing_to_run_and_nowhere_to_run_it_are_refused() -> None:
    with pytest.raises(ValueError, match=r"there are 0 rows and the order is \[\]: name each of 1 or more"):
        Programs([], {"a": []}, 2)
    with pytest.raises(ValueError, match="there is room for 0 programs at a time: make it 1 or more"):
        Programs(LENGTHS, {"a": [0, 1, 2]}, 0)


def test_text_and_picture_say_the_same() -> None:
    shown = Programs(LENGTHS, {"as they are": [0, 1, 2], "longest first": begun_in_order(LENGTHS)}, 2)
    assert shown.text().splitlines() == [
        "as they are: done at 9",
        "  place 0: #0 0..4",
        "  place 1: #1 0..2  #2 2..9",
        "longest first: done at 7",
        "  place 0: #2 0..7",
        "  place 1: #0 0..4  #1 4..6",
    ]
    picture = shown.svg()
    assert re.findall(r"done at (\d+)</text>", picture) == ["9", "7"]
    assert re.findall(r"<title>(row [^<]*)</title>", picture) == [
        "row 0: 4 long, from 0 to 4",
        "row 1: 2 long, from 0 to 2",
        "row 2: 7 long, from 2 to 9",
        "row 2: 7 long, from 0 to 7",
        "row 0: 4 long, from 0 to 4",
        "row 1: 2 long, from 4 to 6",
    ]


def test_the_engine_begins_the_longest_first() -> None:
    lengths = [20, 10, 30, 15, 25, 10, 20, 60]
    order = begun_in_order(lengths)
    assert [lengths[row] for row in order] == sorted(lengths, reverse=True)
    assert order.index(0) < order.index(6)  # equal ones as they are
