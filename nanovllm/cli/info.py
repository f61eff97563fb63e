"""`nanovllm info`: what this machine can run and why, and the command that adds what is missing."""

import argparse
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from nanovllm.cli import machine, options
from nanovllm.cli.palette import BAD, DIM, GOOD, HEAD
from nanovllm.cli.terminal import make_console, write_json

EPILOG = """\
Everything runs without a GPU and without flash-attn: they only make it faster. `auto`, the default of --device,
--dtype and --attention-backend, takes the GPU if PyTorch sees one and the first backend that is usable there.

  nanovllm info             tables, and a sentence that says what LLM("qwen3-tiny") would run on
  nanovllm info --json      the same for a program
"""


def add_parser(commands: Any) -> None:
    """Add `info` to the command line."""
    parser = commands.add_parser(
        "info",
        help="what this machine can run, and what is missing",
        description="Devices, attention backends with the reason for each, versions, and the command that adds "
        "what is missing.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    options.add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look, and print what was found."""
    found = machine.describe()
    if args.json:
        write_json(found)
    else:
        show(make_console(), found)
    return 0


def show(console: Console, found: dict[str, Any]) -> None:
    """The tables, one under the other."""
    parts: list[RenderableType] = [
        device_table(found),
        backend_table(found["backends"]),
        piece_table(found),
        verdict(found),
    ]
    for part in parts:
        console.print(part, "", sep="\n")


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style=HEAD, box=None, header_style=DIM, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def mark(is_good: bool) -> Text:
    """yes or no, told apart by the word and by the sign, not by colour alone."""
    return Text("✓ yes", GOOD) if is_good else Text("✗ no", BAD)


def device_table(found: dict[str, Any]) -> Table:
    """CPU and GPUs."""
    table = _table("Devices", "device", "here", "what")
    host = found["host"]
    memory = f", {host['memory_gib']} GiB memory" if host["memory_gib"] else ""
    table.add_row("cpu", mark(True), f"{host['cpu_cores']} cores{memory} ({host['system']}, {host['machine']})")
    for index, gpu in enumerate(found["gpus"]):
        what = f"{gpu['name']}, {gpu['memory_gib']} GiB, compute capability {gpu['compute_capability']}"
        table.add_row(f"cuda:{index}", mark(True), Text(what))
    if not found["gpus"]:
        table.add_row("cuda", mark(False), Text(found["why_no_gpu"]))
    return table


def backend_table(backends: list[dict[str, Any]]) -> Table:
    """Every attention backend, best first."""
    table = _table("Attention backends, best first", "backend", "usable", "why", "add it with")
    for backend in backends:
        name = Text(backend["name"], "bold" if backend["chosen"] else "")
        reason = backend["reason"] + (" (chosen)" if backend["chosen"] else "")
        table.add_row(name, mark(backend["usable"]), Text(reason), Text(backend["add"] or ""))
    return table


def piece_table(found: dict[str, Any]) -> Table:
    """Versions, and commands for what is missing."""
    table = _table("Software", "piece", "version", "what for", "add it with")
    for piece in found["pieces"]:
        shown = Text(piece["version"] or "✗ missing", missing_style(piece))
        table.add_row(piece["name"], shown, Text(piece["purpose"], DIM), Text(piece["add"] or ""))
    shipped = found["checkpoint"]
    state = Text(f"{shipped['megabytes']} MB") if shipped["present"] else Text("✗ " + shipped["why"], BAD)
    table.add_row(shipped["name"], state, Text("the shipped checkpoint", DIM), shipped["add"] or "")
    return table


def missing_style(piece: dict[str, Any]) -> str:
    """Only what the engine cannot do without is marked as bad."""
    if piece["version"]:
        return ""
    return DIM if "optional" in piece["purpose"] or piece["add"] is None else BAD


def verdict(found: dict[str, Any]) -> Text:
    """What `LLM("qwen3-tiny")` does here, in a sentence."""
    if not found["backends"]:
        return Text("No model can be loaded: the shipped checkpoint is missing. Reinstall nanovllm.", BAD)
    text = Text('LLM("qwen3-tiny") runs here on ')
    text.append(found["device"], "bold").append(" in ").append(found["dtype"], "bold")
    text.append(" with the ").append(found["backend"], "bold").append(" backend. See it: nanovllm demo")
    if found["device"] == "cpu" and found["host"]["bfloat16_instructions"]:
        text.append('\nThis CPU multiplies bfloat16 itself: a large model may be faster by far with dtype="bfloat16".')
    return text
