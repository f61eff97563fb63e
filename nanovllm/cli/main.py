"""The `nanovllm` command: parse, run one command, and turn refusals into one sentence and an exit code.

Nothing heavy is imported before a command runs, so `--help` and `--version` answer at once.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from nanovllm import __version__
from nanovllm.checks import nearest
from nanovllm.errors import NanoVLLMError

OK, WRONG, REFUSED, INTERRUPTED = 0, 1, 2, 128 + signal.SIGINT
COMMANDS = ("generate", "demo", "info")  # each a module of this package with add_parser() and run()
ABOUT = """\
A small LLM inference engine for Qwen3 that you can watch.

first steps:
  nanovllm demo                            watch eight requests go through the engine, step by step
  nanovllm generate "count: 17 18 19 20"   complete a prompt with the shipped checkpoint
  nanovllm trace                           record a short run as an HTML page that steps through it
  nanovllm info                            what this machine can run, and what is missing
"""
EPILOG = """\
exit codes:
  0  it worked
  1  a wrong answer in `demo`, missing points in `grade`, a failed experiment in `bench`
  2  refused, with the reason on stderr
"""


class Parser(argparse.ArgumentParser):
    """An argument parser whose refusal is one sentence instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where the options are described; exit code 2."""
        self.exit(REFUSED, f"{self.prog}: {message} (options: {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse what is left over here, where the command's own options are known, and not in the parser above it."""
        found, left_over = super().parse_known_args(args, namespace)
        if left_over:
            self.error(self._unknown(left_over))
        return found, left_over

    def _unknown(self, words: Sequence[str]) -> str:
        option = next((word.split("=")[0] for word in words if word.startswith("-")), None)
        if option is None:
            return f"unexpected argument {words[0]!r}"
        near = nearest(option[2:], sorted(name[2:] for name in self._option_string_actions if name.startswith("--")))
        return f"unknown option {option!r}" + (f": did you mean '--{near}'?" if near else "")


def build_parser() -> argparse.ArgumentParser:
    """The parser with all commands."""
    parser = Parser("nanovllm", description=ABOUT, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"nanovllm {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=Parser)
    for name in COMMANDS:
        import_module(f"nanovllm.cli.{name}").add_parser(commands)
    import_module("nanovllm.bench.command").add_parser(commands)
    import_module("nanovllm.course.command").add_parser(commands)  # grade, hint
    import_module("nanovllm.trace.command").add_parser(commands)
    import_module("nanovllm.serve.command").add_parser(commands)
    return parser


def one_sentence(error: BaseException) -> str:
    """The error's first paragraph on one line (a failed rank's traceback comes after it)."""
    return " ".join(str(error).split("\n\n")[0].split())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return OK
    try:
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except NanoVLLMError as e:
        if args.debug:
            raise
        sys.stderr.write(f"nanovllm {args.command}: {one_sentence(e)}\n")
        return REFUSED
    except KeyboardInterrupt:
        sys.stderr.write(f"nanovllm {args.command}: interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as e:  # a file or folder of the command line; what has no name is no matter of the command line
        if args.debug or e.filename is None:
            raise
        sys.stderr.write(f"nanovllm {args.command}: cannot use {e.filename} ({e.strerror}): name another place\n")
        return REFUSED
