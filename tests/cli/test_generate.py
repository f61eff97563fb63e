"""`nanovllm generate` on the shipped checkpoint."""

import io
import json
from collections.abc import Callable

import pytest

from nanovllm.assets.tasks import examples

COUNT = examples("count", 1, split="any", start=17, shown=4)[0]
SERIES = examples("series", 1, split="any")[0]


def test_one_prompt_prints_its_completion_alone(cli: Callable) -> None:
    ran = cli("generate", COUNT.prompt)
    assert (ran.code, ran.out, ran.err) == (0, COUNT.answer + "\n", "")


def test_several_prompts_are_told_apart(cli: Callable) -> None:
    lines = cli("generate", COUNT.prompt, SERIES.prompt).out.splitlines()
    assert lines == [COUNT.prompt, COUNT.answer, SERIES.prompt, SERIES.answer]


def test_chat(cli: Callable) -> None:
    assert cli("generate", "--chat", COUNT.question).out == COUNT.reply + "\n"


def test_json(cli: Callable) -> None:
    ran = cli("generate", COUNT.prompt, SERIES.prompt, "--json", "--max-tokens", "3")
    first, second = json.loads(ran.out)
    assert first["prompt"] == COUNT.prompt
    assert second["prompt"] == SERIES.prompt
    assert len(first["token_ids"]) == 3
    assert first["finish_reason"] == "length"
    assert first["seconds"]["ttft"] > 0
    assert ran.err == ""


def test_json_of_a_chat_names_the_message(cli: Callable) -> None:
    (one,) = json.loads(cli("generate", "--chat", COUNT.question, "--json").out)
    assert one["message"] == COUNT.question
    assert one["text"] == COUNT.reply


def test_a_seed_repeats(cli: Callable) -> None:
    argv = ("generate", "story: Mila the otter ->", "--temperature", "1.5", "--seed", "7", "--max-tokens", "20")
    assert cli(*argv).out == cli(*argv, "--max-num-seqs", "1", "--kvcache-block-size", "16").out


def test_limits_reach_the_engine(cli: Callable) -> None:
    argv = ("--max-num-batched-tokens", "3", "--kvcache-block-size", "4", "--num-kvcache-blocks", "30")
    assert cli("generate", COUNT.prompt, *argv, "--max-tokens", "60", "--dtype", "float32").out == COUNT.answer + "\n"


def test_stop_token_and_ignore_eos(cli: Callable) -> None:
    (plain,) = json.loads(cli("generate", COUNT.prompt, "--json").out)
    stop = plain["token_ids"][4]
    (stopped,) = json.loads(cli("generate", COUNT.prompt, "--json", "--stop-token-id", str(stop)).out)
    assert stopped["token_ids"] == plain["token_ids"][: plain["token_ids"].index(stop) + 1]
    (longer,) = json.loads(cli("generate", COUNT.prompt, "--json", "--ignore-eos", "--max-tokens", "50").out)
    assert len(longer["token_ids"]) == 50


def test_stats_go_to_stderr(cli: Callable) -> None:
    ran = cli("generate", COUNT.prompt, "--stats")
    assert ran.out == COUNT.answer + "\n"
    assert ran.err.startswith("1 requests, ")
    assert "ended by: 1 stop" in ran.err


def test_stdin_holds_a_prompt_a_line(cli: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{COUNT.prompt}\n\n{SERIES.prompt}\n"))
    outputs = json.loads(cli("generate", "-", "--json").out)
    assert [o["prompt"] for o in outputs] == [COUNT.prompt, SERIES.prompt]


def test_whole_stdin_is_one_prompt(cli: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    recall = examples("recall", 1, tokens=200)[0]
    monkeypatch.setattr("sys.stdin", io.StringIO(recall.prompt))
    assert cli("generate", "-", "--whole").out == recall.answer + "\n"


def test_empty_stdin_is_refused(cli: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n \n"))
    ran = cli("generate", "-")
    assert ran.code == 2
    assert "stdin held no prompt" in ran.err


def test_brackets_are_text_not_markup(cli: Callable) -> None:
    assert cli("generate", "[bold]x", "[/]", "--max-tokens", "1").out.splitlines()[0] == "[bold]x"


def test_in_its_own_process(process: Callable) -> None:
    ran = process("generate", "-", stdin=COUNT.prompt)
    assert (ran.code, ran.out, ran.err) == (0, COUNT.answer + "\n", "")
    ran = process("generate", "-", stdin=b"\xff\xfe", PYTHONUTF8="1")
    assert ran.code == 2
    assert ran.err.count("\n") == 1
