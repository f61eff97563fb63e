"""Tensor parallelism on this machine: are the tokens equal, and what do more ranks bring? Prints a Markdown table.

    python scripts/tp_table.py                                          # two GPUs: Qwen3-0.6B and 8B shapes, TP 1 and 2
    python scripts/tp_table.py --ranks 1,2,4 --shapes 8b,32b --batch 1,64,256
    python scripts/tp_table.py --device cpu --shapes nano --batch 4 --prompt 16 --new 8       # a try without GPUs

Weights of the shapes are dummies (`load_format="dummy"`), the same under any sharding; speed does not depend on them.
The tokens are compared on the shipped qwen3-tiny in float32, greedy and seeded, in chunks and with preemption.

Columns:
- tok/s: completion tokens of the batch / seconds of generate(), prefill included, after one warm-up run.
- efficiency: tok/s / (ranks x tok/s of the smallest number of ranks here, per rank).
- step, ms: one decode step of the full batch.
- collectives: share of a decode step's time on rank 0 that its all-reduces and gather take (waiting included). On GPUs
  the profiler's sum of NCCL kernels over a stretch of decode steps, on CPUs the engine's own recorder.
- GiB a rank: memory in use on each rank's GPU after the run, weights and KV pool included ("-" on CPUs).
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nanovllm import LLM, SamplingParams

SHAPES: dict[str, dict[str, Any]] = {  # hidden, feed-forward, layers, heads, kv heads, vocabulary, tied
    "nano": {"sizes": (64, 128, 2, 8, 4, 512), "head_dim": 16, "tied": True},
    "0.6b": {"sizes": (1024, 3072, 28, 16, 8, 151936), "head_dim": 128, "tied": True},
    "1.7b": {"sizes": (2048, 6144, 28, 16, 8, 151936), "head_dim": 128, "tied": True},
    "4b": {"sizes": (2560, 9728, 36, 32, 8, 151936), "head_dim": 128, "tied": True},
    "8b": {"sizes": (4096, 12288, 36, 32, 8, 151936), "head_dim": 128, "tied": False},
    "14b": {"sizes": (5120, 17408, 40, 40, 8, 151936), "head_dim": 128, "tied": False},
    "32b": {"sizes": (5120, 25600, 64, 64, 8, 151936), "head_dim": 128, "tied": False},
}
SIZE_NAMES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)
STRETCH = 10  # decode steps whose collectives are timed


@dataclass
class Row:
    """One line of the table."""

    shape: str
    ranks: int
    mode: str
    batch: int
    tokens_per_second: float
    decode_step_ms: float
    collective_share: float
    gib_per_rank: list[float]
    num_blocks: int
    start_seconds: float
    efficiency: float = 1.0


def write_shape(folder: Path, name: str) -> Path:
    """A config.json of the shape; dummy weights need no more."""
    shape = SHAPES[name]
    raw = dict(zip(SIZE_NAMES, shape["sizes"], strict=True)) | {
        "model_type": "qwen3",
        "head_dim": shape["head_dim"],
        "tie_word_embeddings": shape["tied"],
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "bfloat16",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return folder


def gpu_gib(executor: Any) -> float | None:
    """On each rank: GiB in use on its GPU, or None."""
    if executor.plan.device_type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(executor.rank)
    return (total - free) / 2**30


def modes_of(device: str, only: str | None = None) -> list[str]:
    return ([only] if only else ["eager", "graph"]) if device == "cuda" else ["eager"]


# --- are the tokens equal? --------------------------------------------------------------------------------------------


def check_tokens(ranks: list[int], device: str) -> list[str]:
    """One line a combination: how many requests of a hard batch say the same as with one rank in eager mode."""
    prompts = [[3 + (7 * i + j * j) % 900 for j in range(n)] for i, n in enumerate((5, 40, 70, 33, 96, 12, 58, 27))]
    params = [SamplingParams(temperature=0.8 * (i % 2), seed=i, max_tokens=40, ignore_eos=True) for i in range(8)]
    limits = {"device": device, "dtype": "float32", "kvcache_block_size": 4, "num_kvcache_blocks": 60}
    limits |= {"max_num_batched_tokens": 64, "max_model_len": 256}
    lines, expected = [], None
    for size in ranks:
        for mode in modes_of(device):
            with LLM("qwen3-tiny", tensor_parallel_size=size, enforce_eager=mode == "eager", **limits) as llm:
                outputs = llm.generate(prompts, params, use_tqdm=False)
                again = llm.generate(prompts, params, use_tqdm=False)
            tokens = [o.token_ids for o in outputs]
            expected = expected or tokens
            same = sum(a == b for a, b in zip(tokens, expected, strict=True))
            cached = sum(a.token_ids == b for a, b in zip(again, expected, strict=True))
            preempted = sum(o.metrics.num_preemptions for o in outputs)
            lines.append(
                f"- TP {size} {mode}: {same} of {len(tokens)} requests equal, {cached} with a cached prefix; "
                f"{preempted} preemptions"
            )
    return lines


# --- how fast? --------------------------------------------------------------------------------------------------------


def measure(name: str, folder: Path, size: int, mode: str, options: argparse.Namespace) -> list[Row]:
    """Start an engine of this shape; run each batch twice, then look at a stretch of its decode steps."""
    limits = {
        "tensor_parallel_size": size,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "seed": 0,
        "device": options.device,
        "enforce_eager": mode == "eager",
        "max_num_seqs": max(options.batch),
        "max_model_len": max(2, options.prompt + options.new + STRETCH + 8),
    }
    rows = []
    began = time.perf_counter()
    with LLM(str(folder), **limits) as llm:
        start_seconds = time.perf_counter() - began
        vocab_size, salt, tokens_per_second = llm.plan.model_config.vocab_size, 0, 0.0
        for batch in options.batch:
            for _ in range(2):  # the first one warms up
                salt += 1
                prompts = prompts_for(batch, options.prompt, vocab_size, salt)
                params = SamplingParams(temperature=1.0, max_tokens=options.new, ignore_eos=True, seed=1)
                began = time.perf_counter()
                llm.generate(prompts, params, use_tqdm=False)
                tokens_per_second = batch * options.new / (time.perf_counter() - began)
            gib = [x for x in llm.ranks.call(gpu_gib) if x is not None]
            salt += 1
            step_ms, share = decode_stretch(llm, prompts_for(batch, options.prompt, vocab_size, salt))
            blocks = llm.ranks.num_blocks
            rows.append(Row(name, size, mode, batch, tokens_per_second, step_ms, share, gib, blocks, start_seconds))
    return rows


def prompts_for(batch: int, length: int, vocab_size: int, salt: int) -> list[list[int]]:
    """Different prompts each time, so that nothing is found in the prefix cache."""
    generator = torch.Generator().manual_seed(salt)
    return torch.randint(vocab_size, (batch, length), generator=generator).tolist()


def decode_stretch(llm: LLM, prompts: list[list[int]]) -> tuple[float, float]:
    """(milliseconds of a decode step, share of it in collectives) over STRETCH steps of a full batch."""
    params = SamplingParams(temperature=1.0, max_tokens=STRETCH + 4, ignore_eos=True, seed=1)
    for prompt in prompts:
        llm.add_request(prompt, params)
    while llm.step().is_prefill:
        pass
    measure_share = share_on_gpu if llm.plan.device_type == "cuda" else share_on_cpu
    began = time.perf_counter()
    for _ in range(STRETCH // 2):
        llm.step()
    step_seconds = (time.perf_counter() - began) / (STRETCH // 2)
    share = measure_share(llm, STRETCH // 2, step_seconds)
    while not llm.is_finished():
        llm.step()
    return step_seconds * 1000, share


def share_on_cpu(llm: LLM, num_steps: int, step_seconds: float) -> float:
    """Seconds that the recorder finds / seconds of the same steps; 0 with one rank."""
    recorder = llm.ranks.record_collectives()
    in_collectives, began = 0.0, time.perf_counter()
    for _ in range(num_steps):
        llm.step()
        in_collectives += sum(r.seconds or 0.0 for r in recorder.records) if recorder is not None else 0.0
    seconds = time.perf_counter() - began
    llm.ranks.record_collectives(False)
    return in_collectives / seconds


def share_on_gpu(llm: LLM, num_steps: int, step_seconds: float) -> float:
    """Seconds of NCCL kernels by the profiler, which sees into graphs too / seconds of as many unprofiled steps."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(num_steps):
            llm.step()
        torch.cuda.synchronize()
    kernels = [e for e in profiler.events() if e.device_type == DeviceType.CUDA and "nccl" in e.name.lower()]
    return sum(e.time_range.elapsed_us() for e in kernels) / 1e6 / (num_steps * step_seconds)


def add_efficiency(rows: list[Row]) -> None:
    """Against the same shape, mode and batch at the smallest number of ranks."""
    for row in rows:
        same = [r for r in rows if (r.shape, r.mode, r.batch) == (row.shape, row.mode, row.batch)]
        base = min(same, key=lambda r: r.ranks)
        row.efficiency = (row.tokens_per_second / row.ranks) / (base.tokens_per_second / base.ranks)


# --- the table --------------------------------------------------------------------------------------------------------


def environment(device: str) -> dict[str, Any]:
    """What the numbers depend on."""
    found: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cpus": os.cpu_count(),
    }
    if device == "cuda":
        found["cuda"] = torch.version.cuda
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        found["nccl settings"] = {k: v for k, v in os.environ.items() if k.startswith("NCCL_")}
    return found


def table(rows: list[Row]) -> str:
    lines = [
        "| shape | ranks | mode | batch | tok/s | efficiency | step, ms | collectives | GiB a rank | blocks | start |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        gib = ", ".join(f"{x:.1f}" for x in r.gib_per_rank) or "-"
        lines.append(
            f"| {r.shape} | {r.ranks} | {r.mode} | {r.batch} | {r.tokens_per_second:,.0f} | {r.efficiency:.0%} | "
            f"{r.decode_step_ms:.2f} | {r.collective_share:.0%} | {gib} | {r.num_blocks:,} | {r.start_seconds:.1f} s |"
        )
    return "\n".join(lines)


def batches(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def parse() -> argparse.Namespace:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--ranks", default="1,2", help="numbers of ranks, smallest first")
    parser.add_argument("--shapes", default="0.6b,8b" if on_gpu else "nano", help=", ".join(SHAPES))
    parser.add_argument("--batch", type=batches, default=[128], help="requests; several numbers make several rows")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=128, help="tokens of each completion")
    parser.add_argument("--mode", choices=["eager", "graph"], help="measure this one only")
    parser.add_argument("--skip-check", action="store_true", help="do not compare tokens")
    parser.add_argument("--json", type=Path, help="write the rows and the environment here too")
    return parser.parse_args()


def main() -> None:
    options = parse()
    ranks = [int(n) for n in options.ranks.split(",")]
    env = environment(options.device)
    print("Environment:", json.dumps(env), flush=True)
    print(
        f"Workload: {' or '.join(map(str, options.batch))} requests of {options.prompt} + {options.new} tokens\n",
        flush=True,
    )
    checks = [] if options.skip_check else check_tokens(ranks, options.device)
    print("\n".join(["Tokens, against one rank in eager mode (qwen3-tiny, float32):", *checks, ""]), flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.shapes.split(","):
            folder = write_shape(Path(temporary) / name, name)
            for size in ranks:
                for mode in modes_of(options.device, options.mode):
                    rows += measure(name, folder, size, mode, options)
                    for row in rows[-len(options.batch) :]:
                        print("measured", json.dumps(asdict(row)), file=sys.stderr, flush=True)
    add_efficiency(rows)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({"environment": env, "rows": [asdict(r) for r in rows]}, indent=1))


if __name__ == "__main__":
    # Worker processes import `gpu_gib` by its module's name, which must not be `__main__`.
    sys.path.insert(0, str(Path(__file__).parent))
    import tp_table

    tp_table.main()
