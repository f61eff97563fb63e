"""`nanovllm demo`: eight requests through the engine, drawn step by step, then the answers, each right or wrong."""

import argparse
import time
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Any

from nanovllm.cli import options
from nanovllm.cli.terminal import make_console, write_json
from nanovllm.errors import ConfigError

if TYPE_CHECKING:
    from nanovllm.cli.demo_script import Demo

EPILOG = """\
Nothing is staged: each picture is drawn from the live queues and the tensors on the device. Steps in which nothing
new happens are skipped with a line. The exit code is 0 only if all answers are right.

  nanovllm demo --pace 3        pause for 3 seconds after each drawing
  nanovllm demo --steps 2       only the first two drawings
  NO_COLOR=1 nanovllm demo      without colour
"""


def add_parser(commands: Any) -> None:
    """Add `demo` to the command line."""
    parser = commands.add_parser(
        "demo",
        help="watch eight requests go through the engine, step by step",
        description="A guided run for someone who has never seen an inference engine: eight small tasks with one "
        "right answer each, a small engine, and a drawing of every step in which something new happens.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pace", type=options.number, default=0.0, metavar="SECONDS", help="pause after each drawing")
    parser.add_argument(
        "--steps", type=options.number, metavar="N", help="draw at most N steps (default: all new ones)"
    )
    options.add_common(parser)
    options.add_machine(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 if all answers are right, 1 if one is wrong."""
    if not isinstance(args.pace, int | float) or not 0 <= args.pace <= 3600:
        raise ConfigError(f"--pace must be 0 to 3600 seconds, not {args.pace!r}")
    if args.steps is not None and (not isinstance(args.steps, int) or args.steps < 0):
        raise ConfigError(f"--steps must be a number of drawings, 0 or more, not {args.steps!r}")
    console = make_console()
    patience = console.status("Loading the checkpoint …") if console.is_terminal and not args.json else nullcontext()
    with patience:
        from nanovllm.cli import demo_script

        demo = demo_script.start(**options.limits_of(args))
    with closing(demo.llm):
        right = tell_json(demo) if args.json else tell(demo, args)
    return 0 if right else 1


def tell(demo: "Demo", args: argparse.Namespace) -> bool:
    """Draw the run as it happens; True if all answers are right."""
    from nanovllm.cli import demo_pages as pages

    console = make_console()
    console.print(pages.intro(demo))
    skipped = pages.Skipped()
    drawn, start = 0, time.perf_counter()
    while not demo.llm.is_finished():
        record = demo.step()
        lessons = demo.lessons(record)
        if lessons and (args.steps is None or drawn < args.steps):
            console.print(*skipped.flush(), pages.step_page(demo, record, lessons), sep="\n")
            drawn += 1
            time.sleep(args.pace)
        else:
            skipped.add(demo, record)
    seconds = time.perf_counter() - start
    console.print(*skipped.flush(), pages.answers_page(demo), pages.summary(demo, seconds), sep="\n")
    return all(demo.is_right(i) for i in range(len(demo.questions)))


def tell_json(demo: "Demo") -> bool:
    """Run to the end and print one JSON document; True if all answers are right."""
    from nanovllm.cli.demo_json import as_json

    while not demo.llm.is_finished():
        demo.step()
    found = as_json(demo)
    write_json(found)
    return bool(found["all_right"])
