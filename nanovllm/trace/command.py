"""`nanovllm trace`: record a run and open it as one HTML page."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanovllm.checks import check_int
from nanovllm.errors import NanoVLLMError
from nanovllm.trace.limits import SMALL_LIMITS

if TYPE_CHECKING:
    from nanovllm.trace import Trace


def add_parser(subparsers: Any) -> None:
    """Register the command with argparse's `add_subparsers()`."""
    parser = subparsers.add_parser(
        "trace",
        help="record a run and write it as an HTML page that steps through it",
        description="Record every step of a short run and write one self-contained HTML page (no network needed): "
        "deques, blocks, slots, attention masks, times, forward and back. Blocks are small so that things happen.",
    )
    parser.add_argument("prompts", nargs="*", help="prompts (default: tasks of the shipped checkpoint)")
    parser.add_argument("-o", "--output", default="trace.html", metavar="FILE", help="the page (default: %(default)s)")
    parser.add_argument("--model", default="qwen3-tiny", help="checkpoint (default: %(default)s)")
    parser.add_argument("--dummy", action="store_true", help="random weights: needs only the checkpoint's config.json")
    parser.add_argument("--max-tokens", type=int, default=24, metavar="N", help="completion tokens a request")
    parser.add_argument("--every", type=int, default=3, metavar="N", help="steps between arrivals after the third")
    parser.add_argument("--max-steps", type=int, default=400, metavar="N", help="stop recording there")
    parser.add_argument("--block-size", type=int, default=SMALL_LIMITS["kvcache_block_size"], metavar="TOKENS")
    parser.add_argument("--blocks", type=int, default=SMALL_LIMITS["num_kvcache_blocks"], metavar="N")
    parser.add_argument("--max-seqs", type=int, default=SMALL_LIMITS["max_num_seqs"], metavar="N")
    parser.add_argument("--batch-tokens", type=int, default=SMALL_LIMITS["max_num_batched_tokens"], metavar="N")
    parser.add_argument("--max-len", type=int, default=SMALL_LIMITS["max_model_len"], metavar="N")
    parser.add_argument("-tp", "--tensor-parallel-size", type=int, default=1, metavar="N")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--jsonl", metavar="FILE", help="also save the records as JSON lines (.gz compresses)")
    parser.add_argument("--perfetto", metavar="FILE", help="also save a Chrome trace, which Perfetto opens")
    parser.add_argument("--load", metavar="FILE", help="draw a trace saved with --jsonl instead of recording one")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, for programs")
    parser.add_argument("--debug", action="store_true", help="show the traceback of a refusal")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Record (or load), write what was asked for, say where. Raises NanoVLLMError with the reason when it cannot."""
    from nanovllm.trace import Trace, save_chrome_trace
    from nanovllm.viz.page import save_page

    _check_files(args)
    check_int("--every", args.every, 0, error=NanoVLLMError)
    check_int("--max-steps", args.max_steps, 1, error=NanoVLLMError)
    try:
        trace = Trace.load(args.load) if args.load else _record(args)
        written = [trace.save(args.jsonl)] if args.jsonl else []
        written += [save_chrome_trace(trace, args.perfetto)] if args.perfetto else []
        written += [save_page(trace, args.output)]
    except NanoVLLMError:
        raise
    except (ValueError, OSError) as error:
        raise NanoVLLMError(str(error)) from error
    _say(args, trace, written)
    if args.open:
        import webbrowser

        webbrowser.open(written[-1].resolve().as_uri())
    return 0


def _check_files(args: argparse.Namespace) -> None:
    """Raise NanoVLLMError for a file that cannot be read or written, before anything is recorded."""
    for option in ("output", "jsonl", "perfetto"):
        name = getattr(args, option)
        if name and not Path(name).parent.is_dir():
            raise NanoVLLMError(f"--{option} {name}: there is no folder {Path(name).parent}; make it first")
        if name and Path(name).is_dir():
            raise NanoVLLMError(f"--{option} {name} is a folder: name a file in it")
    if args.load and not Path(args.load).is_file():
        raise NanoVLLMError(f"--load {args.load}: there is no such file; --jsonl FILE writes one")


def _record(args: argparse.Namespace) -> "Trace":
    """Run the prompts and record them."""
    from nanovllm.trace.workload import arrivals, record_run, small_llm, task_prompts

    limits: dict[str, Any] = {
        "kvcache_block_size": args.block_size,
        "num_kvcache_blocks": args.blocks,
        "max_num_seqs": args.max_seqs,
        "max_num_batched_tokens": args.batch_tokens,
        "max_model_len": args.max_len,
        "tensor_parallel_size": args.tensor_parallel_size,
        "device": args.device,
        "enforce_eager": args.tensor_parallel_size > 1,  # a replayed graph hides its collectives
    }
    if args.dummy:
        limits |= {"load_format": "dummy", "seed": 0}
    with small_llm(args.model, **limits) as llm:
        requests = arrivals(args.prompts or task_prompts(), args.max_tokens, args.every)
        return record_run(llm, requests, max_steps=args.max_steps)


def _say(args: argparse.Namespace, trace: "Trace", written: list[Path]) -> None:
    sizes = {str(path): path.stat().st_size for path in written}
    if args.json:
        report = {"steps": len(trace), "requests": len(trace.request_ids), "bytes_written": sizes}
        sys.stdout.write(json.dumps(report) + "\n")
        return
    sys.stdout.write(f"{len(trace)} steps of {len(trace.request_ids)} requests\n")
    for path, size in sizes.items():
        sys.stdout.write(f"wrote {path} ({size / 1e3:,.0f} kB)\n")
