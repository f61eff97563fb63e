"""`nanovllm trace`: record a run and open it as one HTML page."""

import argparse
import sys
from pathlib import Path
from typing import Any

from nanovllm.errors import NanoVLLMError
from nanovllm.trace.chrome import save_chrome_trace
from nanovllm.trace.trace import Trace
from nanovllm.trace.workload import SMALL_LIMITS, arrivals, record_run, small_llm, task_prompts


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
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Record (or load), write what was asked for, say where. Returns the exit status."""
    from nanovllm.viz.page import save_page

    try:
        trace = Trace.load(args.load) if args.load else _record(args)
        if args.jsonl:
            _say(trace.save(args.jsonl))
        if args.perfetto:
            _say(save_chrome_trace(trace, args.perfetto))
        page = save_page(trace, args.output)
    except (NanoVLLMError, ValueError, OSError) as error:
        sys.stderr.write(f"nanovllm trace: {error}\n")
        return 1
    sys.stdout.write(f"{len(trace)} steps of {len(trace.request_ids)} requests\n")
    _say(page)
    if args.open:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return 0


def _record(args: argparse.Namespace) -> Trace:
    """Run the prompts and record them; without the checkpoint's weights, with random ones."""
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


def _say(path: Path) -> None:
    sys.stdout.write(f"wrote {path} ({path.stat().st_size / 1e3:,.0f} kB)\n")
