"""`nanovllm bench`: run experiments, write raw data and a report, or compare two runs. Light until it runs."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanovllm.cli.options import add_limits, limits_of, number

if TYPE_CHECKING:
    from nanovllm.bench.options import Options
    from nanovllm.bench.record import AnyResult

CHOICES = ("throughput", "graphs", "prefix", "pressure", "tp", "serve", "all")
ENGINES = ("nanovllm", "transformers", "nano-vllm", "vllm")
ABOUT = """\
Experiments with raw data, spreads, plots and the environment they depend on.

  throughput  prefill, decode and total tok/s and peak memory over lengths and batch sizes
  graphs      TPOT and the host's launch time with CUDA graphs on and off (needs an NVIDIA GPU)
  prefix      prefill time and blocks found, shared prefixes against none
  pressure    preemptions, recomputed tokens and latency in a KV pool that shrinks
  tp          scaling efficiency and time in collectives over ranks
  serve       TTFT, TPOT, ITL and end-to-end percentiles and goodput under arrivals over time
  all         each of them that this machine can run; one that fails is noted, the others go on

  nanovllm bench all --quick
  nanovllm bench throughput --engine transformers      the same requests on another engine too
  nanovllm bench --compare A.json B.json               ratios of two runs, with spreads
"""


def add_parser(subparsers: Any) -> None:
    """Register the command with argparse's `add_subparsers()`."""
    parser = subparsers.add_parser(
        "bench", help="measure the engine: experiments with raw data, plots and their environment", description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("experiment", nargs="?", choices=CHOICES, help="which one (see above)")
    parser.add_argument("--model", default="qwen3-tiny", help="checkpoint: folder, hub id (default %(default)s)")
    parser.add_argument("--profile", choices=("quick", "short", "full"), default="",
                        help="sizes: seconds an experiment, minutes in all, or everything (default full)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="--profile quick: all of them in a minute or two on a CPU")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), metavar="DIR",
                        help="results.json, report.html and PNG files go there (default %(default)s)")  # fmt: skip
    parser.add_argument("--json", metavar="OUT", help="write the results to this file as well; - is stdout")
    parser.add_argument("--no-report", action="store_true", help="JSON only; needs no matplotlib")
    parser.add_argument("--no-progress", action="store_true", help="no progress bars (default: on a terminal only)")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A.json", "B.json"), help="compare two results")
    group = parser.add_argument_group("workload (defaults depend on the experiment, the device and --quick)")
    group.add_argument("--repeats", type=number, default=3, metavar="N", help="timed runs of each point (default 3)")
    group.add_argument("--warmups", type=number, default=1, metavar="N", help="untimed runs before (default 1)")
    group.add_argument("--seed", type=number, default=0, metavar="N", help="of prompts and sampling (default 0)")
    group.add_argument("--temperature", type=number, default=0.6, metavar="T", help="default 0.6; 0 is greedy")
    group.add_argument("--shape", action="append", default=[], metavar="PROMPT/OUTPUT",
                       help="tokens, 512/128 or ranges 100:1024/100:1024; throughput takes several")  # fmt: skip
    group.add_argument("--batch", metavar="N,N", help="requests; throughput and graphs take several")
    group.add_argument("--ranks", metavar="N,N", help="tp: numbers of ranks, 1,2 for example")
    group.add_argument("--engine", choices=ENGINES, default="nanovllm",
                       help="throughput: run this engine on the same requests after nanovllm")  # fmt: skip
    group.add_argument("--peer-path", type=Path, metavar="DIR", help="a checkout of the other engine (nano-vllm)")
    _add_serve(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of a refusal")
    add_limits(parser)
    parser.set_defaults(run=run)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("serve (default: shares of the capacity that a closed loop finds)")
    group.add_argument("--rates", metavar="R,R", help="requests a second")
    group.add_argument("--concurrency", metavar="N,N", help="requests under way at any time")
    group.add_argument("--arrivals", default="poisson", metavar="NAME", help="poisson (default), gamma or fixed")
    group.add_argument("--burstiness", type=number, default=0.25, metavar="SHAPE",
                       help="of gamma: below 1 is burstier than Poisson (default 0.25)")  # fmt: skip
    group.add_argument("--trace", type=Path, metavar="FILE", help="replay: CSV or JSON Lines with times and lengths")
    group.add_argument("--transport", default="auto", metavar="NAME",
                       help="http (server on loopback, client in its own process), engine (no HTTP), auto")  # fmt: skip
    for name, text in (("ttft", "time to first token"), ("tpot", "time per token after it"), ("e2e", "whole answer")):
        group.add_argument(f"--{name}-limit", type=number, metavar="S", help=f"goodput: {text} in seconds, at most")


def run(args: argparse.Namespace) -> int:
    """Run what was asked for. Raises NanoVLLMError with the reason when it cannot."""
    from nanovllm.bench.errors import BenchError

    if args.compare:
        return _compare(*args.compare)
    if args.experiment is None:
        raise BenchError(f"name an experiment ({', '.join(CHOICES)}) or pass --compare A.json B.json")
    options = options_of(args)
    if not args.no_report:
        from nanovllm.bench.style import require_matplotlib

        require_matplotlib()
    results = _measure(args, options)
    _write(args, results)
    return 1 if any(result.error for result in results) else 0


def options_of(args: argparse.Namespace) -> "Options":
    """The options, checked. Raises BenchError."""
    from nanovllm.bench.errors import BenchError
    from nanovllm.bench.options import Options, ServeOptions, integers, numbers
    from nanovllm.bench.workload import Shape

    if args.engine != "nanovllm" and args.experiment != "throughput":
        raise BenchError(f"--engine runs throughput on another engine: {args.experiment} looks into this one")
    return Options(
        model=args.model,
        quick=args.quick,
        repeats=args.repeats,
        warmups=args.warmups,
        seed=args.seed,
        temperature=args.temperature,
        limits=limits_of(args),
        shapes=[Shape.parse(text) for text in args.shape],
        batches=integers(args.batch) if args.batch else [],
        ranks=integers(args.ranks) if args.ranks else [],
        peer=None if args.engine == "nanovllm" else args.engine,
        peer_path=args.peer_path,
        progress=False if args.no_progress else None,
        profile="quick" if args.quick else args.profile,
        keep_errors=args.experiment == "all",
        serve=ServeOptions(
            rates=numbers(args.rates) if args.rates else [],
            concurrency=integers(args.concurrency) if args.concurrency else [],
            arrivals=args.arrivals,
            burstiness=args.burstiness,
            trace=args.trace,
            transport=args.transport,
            ttft=args.ttft_limit,
            tpot=args.tpot_limit,
            e2e=args.e2e_limit,
        ),
    )


def _measure(args: argparse.Namespace, options: "Options") -> list["AnyResult"]:
    """Run one experiment, or all; alone, one that cannot run here is an error.

    What is done is written after each experiment, so that a run that is cut off loses only the one it was in.
    """
    from nanovllm.bench.errors import BenchError
    from nanovllm.bench.experiments.common import device_of
    from nanovllm.bench.experiments.registry import run_experiment
    from nanovllm.bench.options import EXPERIMENTS
    from nanovllm.bench.peers import check_peer

    if options.peer is not None:
        check_peer(options, device_of(options))
    if args.experiment == "all":
        results: list[AnyResult] = []
        for each in EXPERIMENTS:
            results.append(run_experiment(each, options))
            _save(results, args.out / "results.json")
        return results
    result = run_experiment(args.experiment, options)
    if result.skipped is not None:
        raise BenchError(result.skipped)
    return [result]


def _save(results: list["AnyResult"], path: Path) -> None:
    from nanovllm.bench.errors import BenchError
    from nanovllm.bench.record import save

    try:
        save(results, path)
    except OSError as e:
        raise BenchError(f"cannot write {e.filename} ({e.strerror}): pass another --out or --json") from e


def _write(args: argparse.Namespace, results: list["AnyResult"]) -> None:
    from nanovllm.bench.errors import BenchError
    from nanovllm.bench.record import SCHEMA

    on_stdout = args.json == "-"
    written = [args.out / "results.json"]
    if args.json and not on_stdout:
        written.append(Path(args.json))
    for path in written:
        _save(results, path)
    try:
        if not args.no_report:
            from nanovllm.bench.report import write_report

            written += write_report(results, args.out)
    except OSError as e:
        raise BenchError(f"cannot write {e.filename} ({e.strerror}): pass another --out or --json") from e
    if on_stdout:
        from nanovllm.bench.codec import to_plain

        sys.stdout.write(json.dumps({"schema": SCHEMA, "results": [to_plain(r) for r in results]}) + "\n")
        return
    for result in results:
        _show(result)
    sys.stdout.write("".join(f"wrote {path}\n" for path in written))


def _show(result: "AnyResult") -> None:
    from nanovllm.bench.tables import TITLES, short_table

    if result.skipped is not None:
        sys.stdout.write(f"{TITLES[result.experiment]}: not run: {result.skipped}\n\n")
        return
    if result.error is not None:
        sys.stdout.write(f"{TITLES[result.experiment]}: ended by an error: {result.error}\n")
    if result.points:
        _print_table(TITLES[result.experiment], *short_table(result))


def _print_table(title: str, heads: list[str], rows: list[list[str]]) -> None:
    from rich.table import Table

    from nanovllm.cli.terminal import make_console

    shown = Table(title=title, title_justify="left", box=None, padding=(0, 1), header_style="dim")
    for i, head in enumerate(heads):  # the unit goes below the name
        is_text = i == 0 or head in ("figure", "possible", "verdict")
        longest = max((len(row[i]) for row in rows), default=0)
        words = head.replace(", ", " ").split() if len(head) > 5 else [head]  # a short one stays in one piece
        widest = max(longest, *(len(word) for word in words))
        lines = head if is_text else head.replace(", ", "\n").replace("latency ", "latency\n")
        shown.add_column(lines, justify="left" if is_text else "right", no_wrap=is_text, min_width=widest)
    for row in rows:
        shown.add_row(*row)
    console = make_console()
    console.print(shown)
    console.print()


def _compare(a: Path, b: Path) -> int:
    """Print the ratios of two files and what differs between their environments."""
    from nanovllm.bench.compare import compare, differences, rows
    from nanovllm.bench.record import load
    from nanovllm.bench.tables import TITLES

    first, second = load(a), load(b)
    ratios = compare(first, second)
    sys.stdout.write(f"A = {a}, B = {b}; medians, their ratio, and the ratios that the spreads allow\n\n")
    for name in dict.fromkeys(r.experiment for r in ratios):
        _print_table(TITLES[name], *rows([r for r in ratios if r.experiment == name]))
    loads = [[r.environment.load_average for r in results] for results in (first, second)]
    sys.stdout.write(f"load average when each experiment began: A {_list(loads[0])}; B {_list(loads[1])}\n")
    changed = differences(first, second)
    sys.stdout.write("".join(f"differs: {line}\n" for line in changed) or "environment and settings are the same\n")
    return 0


def _list(values: list[float | None]) -> str:
    return ", ".join("unknown" if v is None else str(v) for v in values)
