"""Offline batch throughput: lengths and the number of requests vary. The base line of everything else."""

from nanovllm.bench.environment import EngineRecord
from nanovllm.bench.experiments.common import (
    add_floor,
    device_of,
    environment,
    noting_errors,
    output_rate,
    over,
    peak_memory,
    pool,
    request_median,
    total_rate,
    vocab_size,
)
from nanovllm.bench.floor import Floor
from nanovllm.bench.formulas import chosen, rate
from nanovllm.bench.options import Options
from nanovllm.bench.peers import peer_repeats
from nanovllm.bench.progress import Progress
from nanovllm.bench.record import Repeat, ThroughputPoint, ThroughputResult
from nanovllm.bench.runner import measured, started
from nanovllm.bench.stats import HIGHER
from nanovllm.bench.workload import Shape, Workload, random_workload

DEFAULTS = {  # (device, profile): shapes, batches
    ("cpu", "quick"): (("64/16",), (1, 4, 16)),
    ("cpu", "short"): (("128/32",), (1, 4, 16, 64)),
    ("cpu", "full"): (("128/32", "32/128"), (1, 2, 4, 8, 16, 32, 64)),
    ("cuda", "quick"): (("512/64",), (1, 16, 64)),
    ("cuda", "short"): (("512/512", "1024/1"), (1, 8, 64, 256)),
    ("cuda", "full"): (("512/512", "1024/1", "100:1024/100:1024"), (1, 8, 64, 256)),
}
FIGURES = ("output_tok_s", "total_tok_s", "prefill_seconds", "decode_seconds", "prefill_tok_s", "decode_tok_s",
           "peak_memory", "ttft", "tpot")  # fmt: skip


def run(options: Options) -> ThroughputResult:
    """Measure every shape at every batch size, on this engine and then on the peer if one was asked for."""
    device = device_of(options)
    shapes, batches = DEFAULTS[device, options.profile]
    grid_shapes = options.shapes or [Shape.parse(s) for s in shapes]
    grid_batches = options.batches or list(batches)
    work = {
        (str(shape), batch): random_workload(shape, batch, vocab_size(options), options.seed)
        for shape in grid_shapes
        for batch in grid_batches
    }
    result = ThroughputResult(
        experiment="throughput",
        environment=environment(options),
        settings=options.common() | {"shapes": [str(s) for s in grid_shapes], "batches": grid_batches},
        formulas=chosen(FIGURES),
    )
    longest = max(s.longest for s in grid_shapes)
    with noting_errors(result, options):
        _own(result, options, device, work, longest)
    if result.points and result.engines[0].tensor_parallel_size == 1:
        floor = add_floor(result, options)
        for point in result.points:
            point.floor = _floor(floor, work[point.shape, point.batch])
    if options.peer is not None:
        result.points += _peer(options, device, work, longest, result.engines)
        result.notes.append(
            f"{options.peer} ran the same requests after nanovllm, on the same machine, in a process of its own. It "
            "tells when a batch was done, not its steps: prefill, decode, TTFT and TPOT are this engine's only."
        )
    return result


def _own(
    result: ThroughputResult, options: Options, device: str, work: dict[tuple[str, int], Workload], longest: int
) -> None:
    largest = max(batch for _, batch in work)
    block_size = options.limits.get("kvcache_block_size", 256)
    limits = {"max_num_seqs": largest, "max_model_len": longest + 1}
    limits |= pool(device, largest * -(-longest // block_size))
    runs = len(work) * (options.repeats + options.warmups)
    with (
        Progress("throughput", runs, options.progress) as progress,
        started("nanovllm", options, result.engines, **limits) as llm,
    ):
        for (shape, batch), requests in work.items():
            repeats = measured(llm, requests, options, progress, f"{shape} x {batch}")
            result.points.append(point_of("nanovllm", shape, batch, repeats))


def _floor(floor: Floor, work: Workload) -> dict[str, float]:
    return floor.workload([len(p) for p in work.prompts], work.outputs)


def _peer(
    options: Options, device: str, work: dict[tuple[str, int], Workload], longest: int, engines: list[EngineRecord]
) -> list[ThroughputPoint]:
    assert options.peer is not None
    dtype = engines[0].dtype
    with Progress(options.peer, len(work) * (options.repeats + options.warmups), options.progress) as progress:
        record, measured_points = peer_repeats(options, device, dtype, list(work.values()), longest, progress)
    engines.append(record)
    return [
        point_of(options.peer, shape, batch, repeats)
        for (shape, batch), repeats in zip(work, measured_points, strict=True)
    ]


def point_of(engine: str, shape: str, batch: int, repeats: list[Repeat]) -> ThroughputPoint:
    """The figures of one point. A phase in which nothing was computed has none."""
    tells = all(r.prefill_seconds is not None for r in repeats)
    decodes = tells and all(r.decode_tokens for r in repeats)
    prefill = over(repeats, lambda r: rate(r.prefill_tokens, r.prefill_seconds or 0.0), "tok/s", HIGHER)
    decode = over(repeats, lambda r: rate(r.decode_tokens, r.decode_seconds or 0.0), "tok/s", HIGHER)
    return ThroughputPoint(
        name=f"{engine} {shape} x {batch}",
        engine=engine,
        shape=shape,
        batch=batch,
        output_tok_s=output_rate(repeats),
        total_tok_s=total_rate(repeats),
        prefill_tok_s=prefill if tells else None,
        decode_tok_s=decode if decodes else None,
        peak_memory=peak_memory(repeats),
        ttft=request_median(repeats, lambda q: q.ttft),
        tpot=request_median(repeats, lambda q: q.tpot),
        repeats=repeats,
    )
