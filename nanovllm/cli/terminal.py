"""Consoles: how wide, with colour or without."""

import json
import os
import sys
from typing import Any, TextIO

from rich.console import Console

PIPED_WIDTH = 100  # columns where there is no terminal to ask
WIDEST = 110  # wider lines are hard to follow


class PipeConsole(Console):
    """A console that leaves a closed pipe to the caller; rich would exit with 1, which here is a wrong answer."""

    def on_broken_pipe(self) -> None:
        """Called while a BrokenPipeError is handled."""
        raise BrokenPipeError


def make_console(file: TextIO | None = None) -> Console:
    """A console on stdout: the terminal's width up to `WIDEST`, or `PIPED_WIDTH` in a pipe; honours NO_COLOR."""
    console = PipeConsole(file=file or sys.stdout, highlight=False, emoji=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        console.width = min(console.width, WIDEST)
    else:
        console.width = PIPED_WIDTH
    return console


def write_json(value: Any) -> None:
    """One JSON document on stdout, without a console's wrapping."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
