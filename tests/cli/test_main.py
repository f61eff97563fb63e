"""Parser, help, refusals and exit codes: what holds for every command."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from nanovllm import __version__
from nanovllm.cli.options import number

REFUSALS = {
    ("generate", "a", "--max-tokens", "x"): "max_tokens must be an integer, not 'x' (str)",
    ("generate", "a", "--max-tokens", "0"): "max_tokens must be at least 1, not 0",
    ("generate", "a", "--temperature", "-1"): "temperature must be a number at least 0",
    ("generate", "a", "--top-p", "0"): "top_p must be a number above 0 and at most 1, not 0",
    ("generate", "a", "--seed", "-3"): "seed must be between 0 and",
    ("generate", "a", "--max-num-seqs", "2.5"): "max_num_seqs must be an integer, not 2.5 (float)",
    ("generate", "a", "--kvcache-block-size", "0"): "kvcache_block_size must be at least 1, not 0",
    ("generate", "a", "--device", "tpu"): "device must be one of 'auto', 'cpu', 'cuda', not 'tpu'",
    ("generate", "a", "--dtype", "int8"): "dtype must be one of",
    ("generate", "a", "--attention-backend", "flash"): "attention_backend must be one of",
    ("generate", "a", "--model", "./no-such-folder"): "no checkpoint './no-such-folder'",
    ("generate", ""): "the prompt is empty",
    ("generate", "a\udcff"): "is not valid Unicode text",
    ("generate", "a", "--num-kvcache-blocks", "1", "--kvcache-block-size", "4"): "the whole pool has 1",
    ("demo", "--pace", "soon"): "--pace must be 0 to 3600 seconds, not 'soon'",
    ("demo", "--steps", "-1"): "--steps must be a number of drawings, 0 or more, not -1",
    ("demo", "--device", "tpu"): "device must be one of",
    ("trace", "-o", "no-such-folder/a.html"): "--output no-such-folder/a.html: there is no folder no-such-folder",
    ("trace", "--every", "-1"): "--every must be at least 0, not -1",
    ("trace", "--max-steps", "0"): "--max-steps must be at least 1, not 0",
    ("class", "release", f"{__file__}/a"): f"cannot use {__file__}",
    ("trace", "--jsonl", "."): "--jsonl . is a folder: name a file in it",
    ("trace", "--load", "no-such-file"): "--load no-such-file: there is no such file; --jsonl FILE writes one",
}


@pytest.mark.parametrize("argv", REFUSALS, ids=" ".join)
def test_a_refusal_is_one_sentence(cli: Callable, argv: tuple[str, ...]) -> None:
    ran = cli(*argv)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith(f"nanovllm {argv[0]}: ")
    assert REFUSALS[argv] in ran.err
    assert ran.err.count("\n") == 1
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("argv", [("nonsense",), ("generate",), ("generate", "a", "--nonsense"), ("info", "x")])
def test_a_wrong_command_line_is_refused_in_one_line(cli: Callable, argv: tuple[str, ...]) -> None:
    ran = cli(*argv)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert "--help" in ran.err


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("generate", "a", "--max-tokenz", "3"), "nanovllm generate: unknown option '--max-tokenz': did you mean"),
        (("generate", "a", "--nonsense=3"), "nanovllm generate: unknown option '--nonsense' (options: nanovllm gen"),
        (
            ("class", "grade", "x", "--jbos", "2"),
            "nanovllm class grade: unknown option '--jbos': did you mean",
        ),
        (("info", "x"), "nanovllm info: unexpected argument 'x' (options: nanovllm info --help)"),
        (("--nonsense",), "nanovllm: unknown option '--nonsense' (options: nanovllm --help)"),
    ],
)
def test_an_unknown_option_names_command_and_nearest(cli: Callable, argv: tuple[str, ...], sentence: str) -> None:
    assert cli(*argv).err.startswith(sentence)


def test_debug_shows_where_a_refusal_came_from(cli: Callable) -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        cli("generate", "a", "--max-tokens", "0", "--debug")


def test_version(cli: Callable) -> None:
    assert cli("--version").out == f"nanovllm {__version__}\n"


@pytest.mark.parametrize("command", ["generate", "demo", "info"])
def test_help_teaches(cli: Callable, command: str) -> None:
    assert command in cli("--help").out
    ran = cli(command, "--help")
    assert ran.code == 0
    assert "--json" in ran.out
    assert len(ran.out.splitlines()) > 10


def test_no_command_shows_the_help(cli: Callable) -> None:
    ran = cli()
    assert ran.code == 0
    assert "first steps" in ran.out


def test_every_limit_and_sampling_parameter_has_an_option(cli: Callable) -> None:
    from nanovllm import SamplingParams
    from nanovllm.config import EngineConfig

    told = cli("generate", "--help").out
    fields = {*EngineConfig.__dataclass_fields__, *SamplingParams.__dataclass_fields__}
    for name in fields - {"skip_tokenizer_init", "stop_token_ids"}:
        assert f"--{name.replace('_', '-')}" in told, name
    assert "--stop-token-id" in told


def test_number() -> None:
    assert (number("3"), number("0.5"), number("x")) == (3, 0.5, "x")


def test_help_and_version_need_no_torch(process: Callable) -> None:
    ran = process("--version", PYTHONPROFILEIMPORTTIME="1")
    assert ran.code == 0
    assert "nanovllm.cli.main" in ran.err
    assert " torch\n" not in ran.err


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = [sys.executable, "-m", "nanovllm", "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith(b"nanovllm demo")
        running.stdout.close()
        running.stdout = None
        assert running.wait(timeout=240) == 0
        assert running.stderr is not None
        assert running.stderr.read() == b""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_ctrl_c_is_told_in_a_line() -> None:
    """A run that would take minutes stops at the end of the step under way."""
    argv = ["generate", "count: 1 2 3", "--ignore-eos", "--max-tokens", "2000", "--max-model-len", "2048"]
    with subprocess.Popen([sys.executable, "-m", "nanovllm", *argv], stdout=-1, stderr=-1, text=True) as running:
        time.sleep(5)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=120)
    if running.returncode != 0:  # it had not finished before the signal
        assert running.returncode == 130
        assert out == ""
        assert err == "nanovllm generate: interrupted\n"
