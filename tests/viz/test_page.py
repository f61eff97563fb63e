"""The page stands alone, and the command writes it."""

import argparse
import base64
import json
import re
import zlib
from pathlib import Path

import pytest

from nanovllm.errors import NanoVLLMError
from nanovllm.trace import Trace
from nanovllm.trace.command import add_parser
from nanovllm.viz import page_html
from nanovllm.viz.panels import PANELS


def unpack(page: str) -> dict:
    packed = re.search(r'<script id="data" type="text/plain">(.*?)</script>', page)[1]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def test_the_page_names_no_host(trace: Trace) -> None:
    page = page_html(trace)
    everything = page + json.dumps(unpack(page))
    links = set(re.findall(r"[a-z]+://[^\s\"'<>\\]+", everything))
    assert links <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"(src|href)=\"(?!data:)", everything)
    assert "default-src 'none'" in page
    assert not re.search(r"<!--[A-Z]+-->", page)


def test_the_page_holds_every_step_of_every_panel(trace: Trace) -> None:
    data = unpack(page_html(trace))
    assert data["steps"] == len(trace)
    assert len(data["panels"]) == len(PANELS) - 1  # one rank: no picture of ranks
    for panel in data["panels"]:
        assert len(panel["order"]) == len(trace)
        used = {*panel["order"], *(n for found in panel.get("picked", []) for n in found.values())}
        assert used == set(range(len(panel["pictures"])))
    assert data["events"] == [list(dict.fromkeys(e.kind.value for e in r.events())) for r in trace]


def test_a_long_run_stays_small(trace: Trace) -> None:
    assert len(page_html(trace)) / len(trace) < 20_000


def test_an_empty_trace_and_an_unknown_panel_are_refused(trace: Trace) -> None:
    with pytest.raises(ValueError, match="no step"):
        page_html(Trace(trace.header))
    with pytest.raises(ValueError, match="no panel 'deck'"):
        page_html(trace, panels=["deck"])


def command(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(["trace", *words])


def test_the_command_writes_page_records_and_perfetto(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, jsonl, perfetto = tmp_path / "a.html", tmp_path / "a.jsonl", tmp_path / "a.json"
    words = ["add: 1 + 2 =", "--max-tokens", "3", "-o", str(out), "--jsonl", str(jsonl), "--perfetto", str(perfetto)]
    args = command(*words, "--json")
    assert args.run(args) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report["bytes_written"]) == {str(out), str(jsonl), str(perfetto)}
    assert len(Trace.load(jsonl)) == report["steps"]
    again = command("--load", str(jsonl), "-o", str(tmp_path / "b.html"))
    assert again.run(again) == 0
    assert unpack((tmp_path / "b.html").read_text()) == unpack(out.read_text())


def test_the_command_refuses_in_a_sentence(tmp_path: Path) -> None:
    args = command("--load", str(tmp_path / "missing.jsonl"))
    with pytest.raises(NanoVLLMError, match="missing"):
        args.run(args)
