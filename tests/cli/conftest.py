"""The command line in this process, and in one of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from nanovllm.cli import main


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run the command line here."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def run(*argv: str) -> Ran:
        capsys.readouterr()
        try:
            code = main(list(argv))
        except SystemExit as e:  # argparse ends --help, --version and its own refusals so
            code = int(e.code or 0)
        streams = capsys.readouterr()
        return Ran(code, streams.out, streams.err)

    return run


@pytest.fixture
def process() -> Callable[..., Ran]:
    """Run `python -m nanovllm` in a process of its own, with stdin and further environment variables."""

    def run(*argv: str, stdin: str | bytes = "", **environment: str) -> Ran:
        env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
        env |= {"PYTHONIOENCODING": "utf-8", **environment}
        data = stdin.encode() if isinstance(stdin, str) else stdin
        command = [sys.executable, "-m", "nanovllm", *argv]
        done = subprocess.run(command, input=data, capture_output=True, env=env, timeout=240)
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run
