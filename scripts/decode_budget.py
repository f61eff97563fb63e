"""Where the time of one decode step goes: the whole step, the recorded kernels alone, and each kind of kernel.

usage: decode_budget.py MODEL [--dummy] [--batch 1 64 256] [--context 512]

Needs a GPU. MODEL is a folder or hub id; with --dummy only its config.json is read. Prints one table a batch size. The
kernels are timed 120 tokens behind --context, after the steps that are timed as a whole.
"""

import argparse
import time
from collections import defaultdict
from functools import partial

import torch

from nanovllm import LLM, SamplingParams


def milliseconds(replay, repeats: int = 50) -> float:
    """Median device time of one call, by CUDA events."""
    replay()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def kernels(replay) -> list[tuple[str, int, float]]:
    """(name, launches, microseconds) of each kind of kernel in one call, the longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        replay()
        torch.cuda.synchronize()
    totals: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            totals[event.name[:70]][0] += 1
            totals[event.name[:70]][1] += event.device_time
    rows = [(name, int(count), us) for name, (count, us) in totals.items()]
    return sorted(rows, key=lambda row: -row[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--dummy", action="store_true")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--context", type=int, default=512)
    args = parser.parse_args()
    started = time.perf_counter()
    llm = LLM(args.model, load_format="dummy" if args.dummy else "auto", skip_tokenizer_init=args.dummy)
    ready = time.perf_counter() - started
    print(f"ready in {ready:.1f} s; backend {llm.plan.backend.name}, {torch.cuda.get_device_name()}")
    for batch in args.batch:
        params = SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=400)
        for i in range(batch):
            llm.add_request([(i * 31 + j) % 10000 for j in range(args.context)], params)
        while llm.scheduler.waiting:
            llm.step()
        for _ in range(20):
            llm.step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            llm.step()
        step = (time.perf_counter() - start) * 10
        graphs = llm.model_runner.graphs
        assert graphs is not None
        size = graphs.padded_size(batch)
        replay_body, replay_head = partial(graphs.run_body, size), partial(graphs.run_head, size)
        body, head = milliseconds(replay_body), milliseconds(replay_head)
        host = step - body - head
        print(
            f"\nbatch {batch}: step {step:.3f} ms = body {body:.3f} + logits and sampling {head:.3f} + host {host:.3f}"
        )
        for name, count, us in [*kernels(replay_body)[:12], *kernels(replay_head)[:4]]:
            print(f"  {us:9.1f} us  {count:4d} x  {name}")
        for request_id in list(llm.scheduler.sequences):
            llm.abort(request_id)


if __name__ == "__main__":
    main()
