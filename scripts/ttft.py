"""Time to first token of a lone request by prompt length: prefills launched kernel by kernel, and recorded ones.

usage: ttft.py [MODEL] [--dummy] [--lengths 16 64 256 1024 2048 4096] [--graph-tokens 4096] [--repeats 20]

Prints milliseconds from the call of generate() with max_tokens=1 to its return, medians, without a cached prefix and,
where the prompt is longer than a block, with all but the last block of it cached; one engine after the other in one
process. Recording needs a GPU; a CPU has the first engine only.
"""

import argparse
import time
from typing import Any

import torch

from nanovllm import LLM, SamplingParams


def median_ms(llm: LLM, length: int, repeats: int, cached: bool) -> float:
    """Median of the repeats after two that warm up. The prefix cache is emptied before each unless `cached`."""
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    prompt = [(7 * i + length) % 1000 for i in range(length)]
    times = []
    for _ in range(repeats + 2):
        if not cached:
            llm.scheduler.block_manager.reset_prefix_cache()
        began = time.perf_counter()
        llm.generate([prompt], params, use_tqdm=False)
        times.append(time.perf_counter() - began)
    return 1e3 * sorted(times[2:])[repeats // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="qwen3-tiny")
    parser.add_argument("--dummy", action="store_true")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 256, 1024, 2048, 4096])
    parser.add_argument("--graph-tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    limits: dict[str, Any] = {"load_format": "dummy" if args.dummy else "auto", "skip_tokenizer_init": True}
    columns: list[tuple[str, dict[tuple[int, bool], float], float]] = []
    for tokens in (0, args.graph_tokens) if torch.cuda.is_available() else (0,):
        began = time.perf_counter()
        with LLM(args.model, prefill_graph_tokens=tokens, **limits) as llm:
            ready = time.perf_counter() - began
            lengths = [n for n in args.lengths if n < llm.plan.max_model_len]
            rows = [(n, c) for n in lengths for c in (False, True) if not c or n > llm.config.kvcache_block_size]
            times = {(n, c): median_ms(llm, n, args.repeats, c) for n, c in rows}
        columns.append((f"recorded up to {tokens}" if tokens else "launched one by one", times, ready))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{args.model} on {device}, torch {torch.__version__}")
    print(f"| prompt | prefix | {' | '.join(f'{name}, ms' for name, _, _ in columns)} |")
    print("|---|---|" + "---|" * len(columns))
    for length, cached in columns[0][1]:
        cells = " | ".join(f"{times[length, cached]:.2f}" for _, times, _ in columns)
        print(f"| {length} | {'cached' if cached else '-'} | {cells} |")
    print("ready after, s: " + ", ".join(f"{name} {ready:.1f}" for name, _, ready in columns))


if __name__ == "__main__":
    main()
