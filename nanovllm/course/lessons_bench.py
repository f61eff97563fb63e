"""What notebooks 41 and 42 use: the article's workload, and a result's counts apart from its times."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch

from nanovllm.bench.experiments.registry import run_experiment
from nanovllm.bench.options import Options
from nanovllm.bench.record import AnyResult, load
from nanovllm.bench.stats import Spread, number
from nanovllm.bench.tables import HEADINGS, SHORT, TITLES, figures, short_table
from nanovllm.bench.workload import Shape
from nanovllm.course.errors import CourseError
from nanovllm.course.recorded import FOLDER
from nanovllm.viz.figure_bars import Bar, FigureBars, Row

RECORD = FOLDER / "h200-short.json.gz"
SOURCE = "docs/results/h200-short-2026-11-30.json.gz"
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
    """Some figures of a result as a table: `counted` (the same on every machine), timed (never the same), or both.

    In a notebook every figure is drawn as a bar with the spread of its repeats.
    """

    def __init__(self, result: AnyResult, counted: bool | None = None, chosen: Sequence[str] = ()) -> None:
        """chosen: fields of its points, where not all of them are to be shown."""
        self.result = result
        found = {point.name: figures(point) for point in result.points}
        names = [name for name in HEADINGS if any(name in row for row in found.values())]
        self.names = [name for name in names if counted is None or (name in COUNTED) == counted]
        self.names = [name for name in self.names if not chosen or name in chosen]
        self.rows = {point: {n: row[n] for n in self.names if n in row} for point, row in found.items()}

    @property
    def units(self) -> dict[str, str]:
        """The unit of each figure."""
        return {name: spread.unit for row in self.rows.values() for name, spread in row.items()}

    def text(self) -> str:
        """A line a point; why there is none, where the experiment could not run."""
        if self.result.skipped is not None:
            return self.result.skipped
        heads = ["", *(f"{HEADINGS[name]}, {self.units[name]}" for name in self.names)]
        lines = [heads, *([point, *(_shown(row.get(n)) for n in self.names)] for point, row in self.rows.items())]
        return _aligned(lines)

    def svg(self, title: str = "", notes: Sequence[str] = ()) -> str:
        """The same with bars; points of one group (a shape, a mode, a process) have one colour."""
        points = {point.name: point for point in self.result.points}
        groups = list(dict.fromkeys(_group(point) for point in points.values()))
        rows = [
            Row(name, groups.index(_group(points[name])), [_bar(points[name], n, row.get(n)) for n in self.names])
            for name, row in self.rows.items()
        ]
        columns = [(HEADINGS[name], self.units[name]) for name in self.names]
        title = title or f"{TITLES[self.result.experiment]}: this machine"
        return FigureBars(title, columns, rows, self.text()).svg(notes)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        picture = {} if self.result.skipped is not None or not self.rows else {"text/html": self.svg()}
        return {"text/plain": self.text(), **picture}

    def __repr__(self) -> str:
        return self.text()


def _aligned(lines: list[list[str]]) -> str:
    """Columns of one width each, the first one to the left."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    padded = [
        [c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))] for line in lines
    ]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def _shown(spread: Spread | None) -> str:
    return "-" if spread is None else spread.text()


def _group(point: object) -> object:
    """What points have in common that are drawn in one colour."""
    return next((getattr(point, name) for name in ("shape", "mode", "arrivals") if hasattr(point, name)), None)


def _bar(point: object, name: str, spread: Spread | None) -> Bar | None:
    if spread is None:
        return None
    floor = getattr(point, "floor_ms", None) if name == "tpot" else getattr(point, "floor", {}).get(name)
    return Bar(number(spread.median), spread.median, spread.low, spread.high, floor)


class RecordedRun(Figures):
    """What an experiment found on another machine: medians, the widest spread of each point, the environment."""

    def __init__(self, result: AnyResult, source: str) -> None:
        """source: where the whole record is."""
        super().__init__(result, chosen=SHORT.get(result.experiment, ()))
        self.source = source

    @property
    def recorded_on(self) -> str:
        """The environment in a sentence."""
        e, engine = self.result.environment, self.result.engines[0]
        gpus = ", ".join(str(gpu.get("name", "GPU")) for gpu in e.gpus) or e.cpu
        told = ("python", "torch", "triton", "flash-attn")
        versions = ", ".join(f"{package} {e.versions[package]}" for package in told if e.versions.get(package))
        versions += f", CUDA {e.cuda}" if e.cuda else ""
        layers, width = e.model.shape.get("num_hidden_layers"), e.model.shape.get("hidden_size")
        return (
            f"{gpus}, {e.cpu_cores} CPU cores, load average {e.load_average}; {versions}; "
            f"{layers} layers of width {width}, {engine.dtype}; {e.date[:10]}"
        )

    def text(self) -> str:
        """A line a point, and where it was recorded."""
        if self.result.skipped is not None:
            return self.result.skipped
        heads, rows = short_table(self.result)
        return f"{_aligned([heads, *rows])}\nrecorded on: {self.recorded_on}\nthe whole record: {self.source}"

    def svg(self, title: str = "", notes: Sequence[str] = ()) -> str:
        """The bars, with the environment below them."""
        device = self.result.environment.gpus[0]["name"] if self.result.environment.gpus else "another machine"
        title = title or f"{TITLES[self.result.experiment]}: recorded on one {device}"
        return super().svg(title, [*notes, f"Recorded on {self.recorded_on}. The whole record: {self.source}."])


def recorded_run(name: str, path: Path = RECORD, source: str = SOURCE) -> RecordedRun:
    """What experiment `name` found in a recorded run of them all. Raises CourseError when it is not in the file.

    path: results as `nanovllm bench` writes them. source: where the whole record is, with what each request did.
    """
    results = {result.experiment: result for result in load(path)}
    if name not in results:
        raise CourseError(f"no run of {name!r} is recorded in {path.name}; there are {', '.join(results)}")
    return RecordedRun(results[name], source)
