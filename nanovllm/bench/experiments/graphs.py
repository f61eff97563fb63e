"""CUDA graphs on and off: what a replayed graph saves the host.

Both modes run the plain loop, one step after the other: the overlapped loop would hide the host's time.
`throughput` measures the engine as shipped.
"""

from nanovllm import LLM
from nanovllm.bench.errors import BenchError
from nanovllm.bench.experiments.common import (
    add_floor,
    device_of,
    environment,
    noting_errors,
    over,
    request_median,
    vocab_size,
)
from nanovllm.bench.formulas import chosen, rate
from nanovllm.bench.options import Options
from nanovllm.bench.progress import Progress
from nanovllm.bench.record import GraphsPoint, GraphsResult, Repeat
from nanovllm.bench.runner import run_once, started
from nanovllm.bench.stats import HIGHER, LOWER
from nanovllm.bench.workload import Shape, random_workload

NEEDS_GPU = (
    "the graphs experiment needs an NVIDIA GPU: a CUDA graph replays recorded kernel launches with one call, and on a "
    "CPU nothing is launched, each operation computes at once where it is called"
)
SHAPE = {"quick": "64/32", "short": "128/64", "full": "512/128"}
BATCHES = {"quick": (1, 8, 32), "short": (1, 8, 32, 64, 256), "full": (1, 2, 4, 8, 16, 32, 64, 128, 256)}
MODES = ("eager", "graph")


def run(options: Options) -> GraphsResult:
    """Measure every batch size in both modes. On a CPU the result says why it was skipped."""
    result = GraphsResult(experiment="graphs", environment=environment(options))
    with noting_errors(result, options):
        _measure(result, options)
    return result


def _measure(result: GraphsResult, options: Options) -> None:
    options.refuse_limits("graphs", "enforce_eager", "overlap")
    if device_of(options) != "cuda":
        result.skipped = NEEDS_GPU
        return
    shape = options.shapes[0] if options.shapes else Shape.parse(SHAPE[options.profile])
    batches = options.batches or list(BATCHES[options.profile])
    result.settings = options.common() | {"shape": str(shape), "batches": batches, "loop": "plain"}
    result.formulas = chosen(("tpot", "decode_step", "launch", "decode_tok_s", "decode_seconds"))
    with Progress("graphs", len(MODES) * len(batches) * (options.repeats + options.warmups), options.progress) as bar:
        for mode in MODES:
            limits = {"max_num_seqs": max(batches), "max_model_len": shape.longest + 1, "overlap": False}
            with started(mode, options, result.engines, enforce_eager=mode == "eager", **limits) as llm:
                if mode == "graph" and not result.engines[-1].graphs:
                    raise BenchError(f"no graph to compare with: {result.engines[-1].graphs_reason}")
                for batch in batches:
                    result.points.append(measure_batch(llm, mode, shape, batch, options, bar))
    floor, middle = add_floor(result, options), shape.prompt.high + shape.output.high // 2
    for point in result.points:
        point.floor_ms = 1e3 * floor.decode_seconds([middle] * point.batch)


def measure_batch(llm: LLM, mode: str, shape: Shape, batch: int, options: Options, progress: Progress) -> GraphsPoint:
    """One batch size on one engine. Runs on any device."""
    work = random_workload(shape, batch, vocab_size(options), options.seed)
    repeats = []
    for number in range(options.warmups + options.repeats):
        progress.say(f"{mode} x {batch}")
        repeat = run_once(llm, work, options, plain=True)
        repeats += [repeat] if number >= options.warmups else []
        progress.advance()
    return point_of(mode, batch, repeats)


def point_of(mode: str, batch: int, repeats: list[Repeat]) -> GraphsPoint:
    """The figures of one mode and batch."""
    tpot = request_median(repeats, lambda q: q.tpot)
    if tpot is None:
        raise BenchError("graphs measures decode steps: give it a shape with at least 2 completion tokens")
    return GraphsPoint(
        name=f"{mode} x {batch}",
        mode=mode,
        batch=batch,
        tpot=tpot,
        decode_step=over(repeats, lambda r: (r.decode_step_seconds or 0.0) * 1e3, "ms", LOWER),
        launch=over(repeats, lambda r: (r.launch_seconds or 0.0) * 1e3, "ms", LOWER),
        decode_tok_s=over(repeats, lambda r: rate(r.decode_tokens, r.decode_seconds or 0.0), "tok/s", HIGHER),
        repeats=repeats,
    )
