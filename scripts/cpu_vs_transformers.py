"""Tokens per second on a CPU: this engine against transformers' `generate`, same checkpoint, prompts and threads.

    python scripts/cpu_vs_transformers.py                  64 requests, three rounds, medians
    python scripts/cpu_vs_transformers.py --json out.json  the same as a file

Requests: prompts of 16 to 512 random token ids, completions of 16 to 128 tokens, greedy, no stop at end-of-sequence,
so that both do the same amount of work. tokens/s = completion tokens that were asked for / seconds from the first
prompt in to the last token out; loading is not in it.

transformers runs in two ways, because neither is always the better one:
- batched: all prompts at once, padded on the left; every row runs until the longest completion is done, and only the
  tokens that were asked for count;
- one by one: no padding, one request at a time.

Each round runs all three in turn, so that a slow minute of the machine hits all of them; CPU seconds of this process,
all threads together, stand beside the wall clock, since they suffer less from neighbours. Equal completions are counted
too: fp32 sums in another order can flip a tie, so a few may differ.
"""

import argparse
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

import nanovllm
from nanovllm import LLM, SamplingParams
from nanovllm.engine.checkpoint import resolve_checkpoint

Workload = list[tuple[list[int], int]]  # (prompt token ids, completion tokens)


def make_workload(args: argparse.Namespace, vocab_size: int) -> Workload:
    """Prompts and completion lengths, the same for the same seed."""
    rng = random.Random(args.seed)
    requests = []
    for _ in range(args.requests):
        length = rng.randint(args.min_prompt, args.max_prompt)
        prompt = [rng.randrange(3, vocab_size) for _ in range(length)]
        requests.append((prompt, rng.randint(args.min_completion, args.max_completion)))
    return requests


def nanovllm_runner(args: argparse.Namespace, llm: LLM) -> Callable[[Workload], list[list[int]]]:
    """Run a workload through the engine; its prefix cache is emptied first, so that no round helps the next."""

    def run(work: Workload) -> list[list[int]]:
        llm.scheduler.block_manager.reset_prefix_cache()
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in work]
        return [o.token_ids for o in llm.generate([p for p, _ in work], params, use_tqdm=False)]

    return run


def batched_runner(model: Any) -> Callable[[Workload], list[list[int]]]:
    """One call for all requests, padded on the left to the longest prompt."""

    def run(work: Workload) -> list[list[int]]:
        width = max(len(p) for p, _ in work)
        ids = torch.tensor([[0] * (width - len(p)) + p for p, _ in work])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p, _ in work])
        longest = max(n for _, n in work)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=longest, min_new_tokens=longest, do_sample=False)
        return [row[width : width + n].tolist() for row, (_, n) in zip(out, work, strict=True)]

    return run


def single_runner(model: Any) -> Callable[[Workload], list[list[int]]]:
    """One call a request."""

    def run(work: Workload) -> list[list[int]]:
        outs = []
        for prompt, n in work:
            ids = torch.tensor([prompt])
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, min_new_tokens=n, do_sample=False
            )
            outs.append(out[0, len(prompt) :].tolist())
        return outs

    return run


def measure(runners: dict[str, Callable[[Workload], list[list[int]]]], work: Workload, rounds: int) -> dict[str, Any]:
    """Seconds of every round by runner, and how many completions equal the engine's."""
    seconds: dict[str, list[float]] = {name: [] for name in runners}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in runners}
    outputs: dict[str, list[list[int]]] = {}
    for run in runners.values():  # warm: thread pools, lazy imports, allocator
        run([(p[:16], 4) for p, _ in work[:4]])
    for number in range(rounds):
        for name, run in runners.items():
            start, cpu_start = time.perf_counter(), time.process_time()
            outputs[name] = run(work)
            seconds[name].append(time.perf_counter() - start)
            cpu_seconds[name].append(time.process_time() - cpu_start)
            took = f"{seconds[name][-1]:7.2f} s, {cpu_seconds[name][-1]:7.2f} s of CPU"
            print(f"round {number + 1}: {name:<26} {took}", file=sys.stderr, flush=True)
    ours = outputs["nanovllm"]
    same = {name: sum(a == b for a, b in zip(ours, out, strict=True)) for name, out in outputs.items()}
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "same_completions": same}


def environment(threads: int) -> dict[str, Any]:
    """What a figure needs beside it."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "threads": threads,
        "load_before": [round(x, 2) for x in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "nanovllm": nanovllm.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": "float32",
    }


def report(work: Workload, measured: dict[str, Any], env: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Medians, rates and ratios as plain values."""
    tokens = sum(n for _, n in work)
    medians = {name: statistics.median(times) for name, times in measured["seconds"].items()}
    rates = {name: tokens / median for name, median in medians.items()}
    ours = rates["nanovllm"]
    ratios = {name: ours / rate for name, rate in rates.items() if name != "nanovllm"}
    return {
        "environment": env,
        "workload": {
            "model": args.model,
            "requests": len(work),
            "prompt_tokens": sum(len(p) for p, _ in work),
            "completion_tokens": tokens,
            "seed": args.seed,
            "rounds": args.rounds,
        },
        "seconds": {name: [round(t, 3) for t in times] for name, times in measured["seconds"].items()},
        "median_seconds": {name: round(t, 3) for name, t in medians.items()},
        "median_cpu_seconds": {name: round(statistics.median(t), 3) for name, t in measured["cpu_seconds"].items()},
        "tokens_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "ratio": {name: round(r, 2) for name, r in ratios.items()},
        "ratio_to_better": round(min(ratios.values()), 2),
        "same_completions": measured["same_completions"],
    }


def show(result: dict[str, Any]) -> None:
    work, env = result["workload"], result["environment"]
    print(
        f"{work['requests']} requests, {work['prompt_tokens']:,} prompt and {work['completion_tokens']:,} completion "
        f"tokens, {work['model']} in {env['dtype']}, {env['threads']} threads, median of {work['rounds']}"
    )
    print(f"{env['cpu']}, torch {env['torch']}, transformers {env['transformers']}, Python {env['python']}")
    for name, rate in result["tokens_per_second"].items():
        ratio = f"  nanovllm is {result['ratio'][name]:.2f}x" if name in result["ratio"] else ""
        same = f"{result['same_completions'][name]}/{work['requests']} equal"
        took = f"{result['median_seconds'][name]:8.2f} s ({result['median_cpu_seconds'][name]:.2f} s of CPU)"
        print(f"  {name:<26} {rate:9.1f} tokens/s  {took}  {same}{ratio}")
    print(f"nanovllm / better of transformers' two: {result['ratio_to_better']:.2f}x")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="qwen3-tiny")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--min-prompt", type=int, default=16)
    parser.add_argument("--max-prompt", type=int, default=512)
    parser.add_argument("--min-completion", type=int, default=16)
    parser.add_argument("--max-completion", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch, for all three")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--block-size", type=int, default=256)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there as well")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    torch.set_num_threads(args.threads)
    env = environment(args.threads)
    limits = {"kvcache_block_size": args.block_size, "max_num_seqs": args.requests}
    llm = LLM(args.model, device="cpu", dtype="float32", **limits)
    model = AutoModelForCausalLM.from_pretrained(str(resolve_checkpoint(args.model)), dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    runners = {
        "nanovllm": nanovllm_runner(args, llm),
        "transformers, batched": batched_runner(model),
        "transformers, one by one": single_runner(model),
    }
    work = make_workload(args, llm.plan.model_config.vocab_size)
    with torch.inference_mode():
        measured = measure(runners, work, args.rounds)
    result = report(work, measured, env, args)
    show(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
