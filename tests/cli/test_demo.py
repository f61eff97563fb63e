"""`nanovllm demo`: right answers, everything happens, and it looks right without colour and on narrow terminals."""

import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from nanovllm.cli import demo, demo_script
from nanovllm.cli.demo_script import LESSONS, LIMITS
from nanovllm.cli.demo_views import runs, spans

ESCAPE = "\x1b"


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """The run as a program reads it."""
    from nanovllm.cli.demo_json import as_json

    run = demo_script.start()
    while not run.llm.is_finished():
        run.step()
    return as_json(run)


def test_every_answer_is_right(told: dict[str, Any]) -> None:
    assert [a["task"] for a in told["answers"] if not a["right"]] == []
    assert told["all_right"] is True
    assert len(told["answers"]) == 8


def test_everything_happens(told: dict[str, Any]) -> None:
    kinds = {event["kind"] for step in told["steps"] for event in step["events"]}
    assert kinds == {"arrival", "admission", "prefix hit", "chunk", "block allocation", "preemption", "finish"}
    assert any(a["num_preemptions"] for a in told["answers"])
    assert told["answers"][1]["num_prefix_tokens"] > 500


def test_slots_are_those_of_the_block_tables(told: dict[str, Any]) -> None:
    size = LIMITS["kvcache_block_size"]
    for step in told["steps"]:
        if step["kind"] != "decode":
            continue
        for request, position, slot in zip(step["batch"], step["positions"], step["slot_mapping"], strict=True):
            table = step["block_tables"][str(request)]
            assert slot == table[position // size] * size + position % size


def test_the_demo_in_a_pipe(cli: Callable) -> None:
    ran = cli("demo")
    assert ran.code == 0
    assert ran.err == ""
    assert ESCAPE not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 100
    assert "8 of 8 answers right" in ran.out
    assert ran.out.count("\nstep ") >= len(LESSONS) - 1
    assert "… 16 decode steps" in ran.out


def test_few_drawings(cli: Callable) -> None:
    ran = cli("demo", "--steps", "1")
    assert ran.code == 0
    assert ran.out.count("pool  ") == 2  # the legend and one drawing
    assert "preempted" in ran.out  # told in a line all the same


def test_json_in_a_process_of_its_own(process: Callable) -> None:
    ran = process("demo", "--json")
    assert ran.code == 0
    assert ran.err == ""
    assert json.loads(ran.out)["all_right"] is True


def test_a_wrong_answer_fails(cli: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_script, "MAX_TOKENS", 30)  # too few for the last request
    ran = cli("demo", "--steps", "0")
    assert ran.code == 1
    assert "✗ wrong" in ran.out
    assert "expected: 95 96" in ran.out


@pytest.mark.parametrize(("width", "colour"), [(80, "truecolor"), (80, None), (100, "256")])
def test_on_a_terminal(monkeypatch: pytest.MonkeyPatch, cli: Callable, width: int, colour: Any) -> None:
    written = io.StringIO()
    console = Console(file=written, width=width, force_terminal=True, color_system=colour, no_color=colour is None)
    monkeypatch.setattr(demo, "make_console", lambda: console)
    assert cli("demo", "--steps", "3").code == 0
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.getvalue())
    lines = re.split(r"[\r\n]", text)  # while the checkpoint is being loaded, a line is drawn again and again
    assert max(map(len, lines)) <= width, max(lines, key=len)
    coloured = re.search(r"\x1b\[[0-9;]*[34]8;[25];", written.getvalue()) is not None
    assert coloured == (colour is not None)
    assert " #7·count_to" in text  # a chip is never broken over two lines


def test_no_color_and_narrow_in_a_process(process: Callable) -> None:
    ran = process("demo", "--steps", "2", NO_COLOR="1", COLUMNS="80")
    assert ran.code == 0
    assert ESCAPE not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_spans() -> None:
    assert runs([0, 1, 2, 7]) == [(0, 2), (7, 7)]
    assert spans([5, 4, 3]) == "5 4 3"
    assert spans([]) == ""
