"""What notebooks 41 and 42 use: the article's workload, and a result's counts apart from its times."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch

from nanovllm.bench.experiments.registry import run_experiment
from nanovllm.bench.options import Options
from nanovllm.bench.record import AnyResult, load
from nanovllm.bench.stats import Spread
from nanovllm.bench.tables import HEADINGS, figures
from nanovllm.bench.workload import Shape
from nanovllm.course.recorded import FOLDER

COUNTED = ("hit_blocks", "computed_tokens", "peak_blocks", "preemptions", "recomputed")


def published_lengths(
    num_requests: int = 256, low: int = 100, high: int = 1024, seed: int = 0
) -> list[tuple[int, int]]:
    """(prompt, completion) tokens of each request of the benchmark script that nano-vLLM ships.

    It seeds Python's generator once and draws all prompts first: a length, then that many token ids; then the
    completions' lengths.
    """
    rng = random.Random(seed)
    prompts = []
    for _ in range(num_requests):
        length = rng.randint(low, high)
        prompts.append(length)
        for _ in range(length):
            rng.randint(0, 10000)
    return [(prompt, rng.randint(low, high)) for prompt in prompts]


def small(name: str, shape: str | None = None, batches: Sequence[int] = (), repeats: int = 1) -> AnyResult:
    """An experiment at the size of a notebook, on the CPU, so that its counts are the same everywhere.

    With one thread: for so small a model more are not faster, and on a busy machine they wait for each other.
    """
    options = Options(
        quick=True,
        repeats=repeats,
        warmups=0,
        progress=False,
        limits={"device": "cpu"},
        shapes=[Shape.parse(shape)] if shape else [],
        batches=list(batches),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return run_experiment(name, options)
    finally:
        torch.set_num_threads(threads)


class Figures:
    """Some figures of a result as a table: `counted` (the same on every machine) or timed (never the same)."""

    def __init__(self, result: AnyResult, counted: bool) -> None:
        self.result = result
        found = {point.name: figures(point) for point in result.points}
        names = [name for name in HEADINGS if any(name in row for row in found.values())]
        self.names = [name for name in names if (name in COUNTED) == counted]
        self.rows = {point: {n: row[n] for n in self.names if n in row} for point, row in found.items()}

    def text(self) -> str:
        """A line a point; why there is none, where the experiment could not run."""
        if self.result.skipped is not None:
            return self.result.skipped
        units = {name: spread.unit for row in self.rows.values() for name, spread in row.items()}
        heads = ["", *(f"{HEADINGS[name]}, {units[name]}" for name in self.names)]
        lines = [heads, *([point, *(_shown(row.get(n)) for n in self.names)] for point, row in self.rows.items())]
        widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
        padded = [
            [c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
            for line in lines
        ]
        return "\n".join("  ".join(line).rstrip() for line in padded)

    def __repr__(self) -> str:
        return self.text()


def _shown(spread: Spread | None) -> str:
    return "-" if spread is None else spread.text()


def recorded_run(name: str, folder: Path = FOLDER) -> str:
    """What a run of experiment `name` on another machine found, with its environment, or how to record one.

    The file is `NAME.json` in `folder`, as `nanovllm bench NAME --json` writes it.
    """
    path = folder / f"{name}.json"
    if not path.exists():
        return f"no run is recorded yet: on a GPU, `nanovllm bench {name} --quick --json {path.name}` makes one"
    parts = []
    for result in load(path):
        e, engine = result.environment, result.engines[0]
        gpus = ", ".join(str(gpu.get("name", "GPU")) for gpu in e.gpus) or e.cpu
        versions = ", ".join(f"{package} {version}" for package, version in e.versions.items() if version)
        parts += [
            str(Figures(result, counted=False)),
            f"recorded on: {gpus}; {versions}; {e.model.name}, {engine.dtype}",
        ]
    return "\n".join(parts)
