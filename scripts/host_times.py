"""Microseconds of host work in a decode step: ours and nano-vLLM's, on the same requests, on the CPU, in one run.

usage: host_times.py [--peer FOLDER] [--batch 64 256 512] [--steps 200]

FOLDER holds nano-vLLM's public source (its package has the name of ours, so each engine gets a process of its own).
Counted for both: schedule, batch preparation up to torch tensors in host memory (positions, slot mapping, context
lengths, block tables, temperatures), and the bookkeeping of the sampled tokens. Ours also derives the keys of each
request's own random draws and fills the graphs' buffers. Copies to a GPU are not counted. Medians over the steps.
"""

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

PROMPT, BLOCK, MAX_LEN = 512, 256, 4096


def prompts(batch: int) -> list[list[int]]:
    rng = random.Random(batch)
    return [[rng.randrange(10_000) for _ in range(PROMPT)] for _ in range(batch)]


class Ours:
    """Scheduler, preparation and graph buffers of this package."""

    def __init__(self, batch: int, steps: int) -> None:
        import torch

        from nanovllm import SamplingParams
        from nanovllm.paged_kv.batch import SamplingInputs, prepare
        from nanovllm.paged_kv.cuda_graphs import DecodeBuffers
        from nanovllm.qwen3.sampler import Sampler
        from nanovllm.scheduler import BlockManager, Scheduler, Sequence

        self.inputs, self.prepare_batch, self.row_keys = SamplingInputs.of, prepare, Sampler().row_keys
        self.sampling: SamplingInputs | None = None
        self.buffers = DecodeBuffers(batch, MAX_LEN // BLOCK, torch.device("cpu"))
        self.scheduler = Scheduler(
            BlockManager(batch * 8, BLOCK),
            max_num_seqs=512,
            max_num_batched_tokens=16384,
            max_model_len=MAX_LEN,
            eos_token_ids=frozenset(),
        )
        params = SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=steps + 10)
        for i, prompt in enumerate(prompts(batch)):
            self.scheduler.add(Sequence(i, prompt, params, BLOCK, i))

    def schedule(self) -> tuple[Any, bool]:
        done = self.scheduler.schedule()
        return done.seqs, done.is_prefill

    def prepare(self, seqs: Any, is_prefill: bool) -> None:
        slices = [seq.scheduled_slice() for seq in seqs]
        host = self.prepare_batch(slices, is_prefill, BLOCK)
        if not is_prefill:
            sampling = self.sampling = self.inputs(seqs, like=self.sampling)  # as the overlapped loop does
            keys = self.row_keys(sampling)
            self.buffers.fill(host, sampling.temperature, keys, None, len(seqs))

    def book(self, seqs: Any, is_prefill: bool) -> None:
        tokens: list[int | None] = [7] * len(seqs)
        if is_prefill:
            tokens = [7 if s.num_cached_tokens + s.num_scheduled_tokens == s.num_tokens else None for s in seqs]
        self.scheduler.postprocess(seqs, tokens, is_prefill)


class Peer:
    """nano-vLLM's own scheduler and the preparation methods of its runner, without a model."""

    def __init__(self, batch: int, steps: int) -> None:
        known = "flash_attn" in sys.modules or importlib.util.find_spec("flash_attn") is not None
        if not known:  # the peer imports it; nothing here calls it
            stand_in = ModuleType("flash_attn")
            stand_in.flash_attn_varlen_func = stand_in.flash_attn_with_kvcache = None  # type: ignore[attr-defined]
            sys.modules["flash_attn"] = stand_in
        import torch
        from nanovllm.engine.model_runner import ModelRunner
        from nanovllm.engine.scheduler import Scheduler
        from nanovllm.engine.sequence import Sequence

        from nanovllm.sampling_params import SamplingParams

        make = torch.tensor
        torch.tensor = lambda data, dtype=None, pin_memory=False: make(data, dtype=dtype)  # host memory, unpinned
        torch.Tensor.cuda = lambda self, non_blocking=False: self
        self.runner: Any = object.__new__(ModelRunner)
        self.runner.block_size = BLOCK
        limits = {"max_num_seqs": 512, "max_num_batched_tokens": 16384, "eos": -1, "kvcache_block_size": BLOCK}
        self.scheduler: Any = Scheduler(SimpleNamespace(**limits, num_kvcache_blocks=batch * 8))
        params = SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=steps + 10)
        for prompt in prompts(batch):
            self.scheduler.add(Sequence(prompt, params))

    def schedule(self) -> tuple[Any, bool]:
        return self.scheduler.schedule()

    def prepare(self, seqs: Any, is_prefill: bool) -> None:
        (self.runner.prepare_prefill if is_prefill else self.runner.prepare_decode)(seqs)
        self.runner.prepare_sample(seqs)

    def book(self, seqs: Any, is_prefill: bool) -> None:
        self.scheduler.postprocess(seqs, [7] * len(seqs), is_prefill)


def median_us(times: list[float]) -> float:
    return sorted(times)[len(times) // 2] * 1e6


def measure(make: Callable[[int, int], Any], batch: int, steps: int) -> dict[str, float]:
    """Medians of the three parts of a decode step of `batch` sequences."""
    engine, times = make(batch, steps), {"schedule": [], "prepare": [], "book": []}
    while len(times["book"]) < steps:
        marks = [time.perf_counter()]
        seqs, is_prefill = engine.schedule()
        marks.append(time.perf_counter())
        engine.prepare(seqs, is_prefill)
        marks.append(time.perf_counter())
        engine.book(seqs, is_prefill)
        marks.append(time.perf_counter())
        if not is_prefill:
            assert len(seqs) == batch
            for name, began, ended in zip(times, marks, marks[1:], strict=False):
                times[name].append(ended - began)
    return {name: median_us(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--batch", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--one", choices=["ours", "peer"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps([measure({"ours": Ours, "peer": Peer}[args.one], b, args.steps) for b in args.batch]))
        return
    rest = ["--steps", str(args.steps), "--batch", *map(str, args.batch)]
    root = Path(__file__).resolve().parents[1]
    rows = {}
    for name, folder in (("ours", root), ("peer", args.peer)):
        if folder is not None:
            env = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
            env |= {"OMP_NUM_THREADS": "1"}  # what stands for the copy to a GPU must not wait for another core
            command = [sys.executable, __file__, "--one", name, *rest]
            rows[name] = json.loads(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)
    print("| sequences | engine | schedule | prepare | book | sum, us |\n|---|---|---|---|---|---|")
    for i, batch in enumerate(args.batch):
        for name, values in rows.items():
            parts = values[i]
            label = {"ours": "nanovllm", "peer": "nano-vLLM"}[name]
            cells = " | ".join(f"{v:,.0f}" for v in (*parts.values(), sum(parts.values())))
            print(f"| {batch} | {label} | {cells} |")


if __name__ == "__main__":
    main()
