"""Kill, stop and break ranks again and again, and look after each time for what was left behind.

    python scripts/fault_loop.py --light 50 --engine 2

One round is every phase (start, prefill, decode, exit) with every kind of failure (raise, kill, stop). `--light` rounds
use an executor without torch: the same processes, channel, supervisor and clean-up, at a tenth of a second a start.
`--engine` rounds use whole engines with two ranks on a random tiny checkpoint.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers import greedy, make_llm, random_prompts, tiny_config, write_checkpoint
from parallel.faults import Fault
from parallel.leftovers import State, num_files
from parallel.light_ranks import LightExecutor

from nanovllm.engine.rank_failures import RankTimeouts
from nanovllm.engine.ranks import RankGroup
from nanovllm.errors import RankError

PHASES = {"start": "create", "prefill": "echo", "decode": "run_step", "exit": "exit"}  # and LightExecutor's methods
KINDS = ("raise", "kill", "stop")


def light_life(phase: str, kind: str) -> None:
    """Three light ranks, of which rank 2 fails."""
    short = kind == "stop"
    timeouts = RankTimeouts(1.0, 0.3, 0.3) if short else RankTimeouts(20, 20, 20)
    group = RankGroup(3, LightExecutor, ((2, PHASES[phase], kind),), timeouts=timeouts)
    group.every("echo", 1)
    for step in range(3):
        group.step(step, lambda: None)
    group.close()


def engine_life(folder: Path, phase: str, kind: str) -> None:
    """An engine with two ranks, of which rank 1 fails."""
    limits = {"rank_timeout": 1.5, "rank_start_timeout": 12.0 if kind == "stop" else 60.0}
    llm = make_llm(folder, tensor_parallel_size=2, setup=(Fault(1, phase, kind),), **limits)
    llm.generate(random_prompts([5, 9]), greedy(4), use_tqdm=False)
    llm.exit()


def loop(name: str, rounds: int, rank: int, life: Callable[[str, str], None]) -> None:
    """Run the rounds; any miss is an AssertionError."""
    slowest, count, began, files = 0.0, 0, time.monotonic(), 0
    for number in range(rounds):
        for phase in PHASES:
            for kind in KINDS:
                before, start = State(), time.monotonic()
                blamed: int | str = "nobody"
                try:
                    life(phase, kind)
                except RankError as error:
                    blamed = error.rank
                assert blamed == rank, f"{name} {phase} {kind}: blamed {blamed}, not rank {rank}"
                slowest = max(slowest, time.monotonic() - start)
                before.assert_restored(2.0)
                count += 1
        files = files or num_files()
        print(f"{name}: round {number + 1} of {rounds}, {count} lives, slowest {slowest:.1f} s", flush=True)
        assert num_files() <= files + 2, f"open files grow: {files} after the first round, {num_files()} now"
    if count:
        print(f"{name}: {count} failures in {time.monotonic() - began:.0f} s; each named rank {rank}; nothing stayed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--light", type=int, default=50, help="rounds without torch")
    parser.add_argument("--engine", type=int, default=2, help="rounds with whole engines")
    options = parser.parse_args()
    loop("light", options.light, 2, light_life)
    with tempfile.TemporaryDirectory() as folder:
        heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8}
        checkpoint = write_checkpoint(Path(folder) / "tiny", tiny_config(**heads))
        loop("engine", options.engine, 1, lambda phase, kind: engine_life(checkpoint, phase, kind))


if __name__ == "__main__":
    main()
