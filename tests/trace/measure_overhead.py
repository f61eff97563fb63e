"""How much a recorder costs: `python tests/trace/measure_overhead.py [--steps 1000] [--requests 64] [--rounds 3]`.

The same greedy run with and without a recorder, in turn, so that both meet the same machine. Prints the extra CPU time
of this process and the size of the saved trace. No test asserts the time: it depends on what else runs.
"""

import argparse
import tempfile
import time
from pathlib import Path

from nanovllm import LLM, SamplingParams
from nanovllm.trace import Recorder, Trace


def run(llm: LLM, steps: int, requests: int, recorder: Recorder | None) -> float:
    """CPU seconds of `steps` steps with `requests` requests at a time; one that ends is replaced by the next."""
    params = SamplingParams(temperature=0, max_tokens=160, ignore_eos=True)
    number = 0
    if recorder is not None:
        recorder.attach()
    started = time.process_time()
    for _ in range(steps):
        while len(llm.scheduler.sequences) < requests:
            llm.add_request([2 + (number * 7 + i) % 500 for i in range(20 + number % 30)], params)
            number += 1
        llm.step()
    spent = time.process_time() - started
    if recorder is not None:
        recorder.detach()
    for request_id in list(llm.scheduler.sequences):
        llm.abort(request_id)
    llm.scheduler.block_manager.reset_prefix_cache()
    return spent


def saved_bytes(trace: Trace) -> int:
    """Size of the saved trace."""
    with tempfile.TemporaryDirectory() as folder:
        return trace.save(Path(folder) / "run.jsonl").stat().st_size


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("steps", 1000), ("requests", 64), ("rounds", 3), ("blocks", 1024), ("block-size", 16)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    llm = LLM(
        "qwen3-tiny",
        max_num_seqs=args.requests,
        num_kvcache_blocks=args.blocks,
        kvcache_block_size=args.block_size,
        max_model_len=512,
    )
    run(llm, 50, args.requests, None)
    plain, watched, trace = [], [], None
    for number in range(args.rounds):
        plain.append(run(llm, args.steps, args.requests, None))
        recorder = Recorder(llm)
        watched.append(run(llm, args.steps, args.requests, recorder))
        trace = recorder.trace
        extra = watched[-1] / plain[-1] - 1
        print(f"round {number + 1}: {plain[-1]:.2f} s CPU without, {watched[-1]:.2f} s with a recorder: {extra:+.1%}")
    extra = min(watched) / min(plain) - 1
    assert trace is not None
    print(f"best of {args.rounds}: {extra:+.1%} time, {saved_bytes(trace) / 1e6:.2f} MB for {len(trace)} steps")


if __name__ == "__main__":
    main()
