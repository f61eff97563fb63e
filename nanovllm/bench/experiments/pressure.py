"""KV pressure: the same long requests in a pool that shrinks, and what preemption and recomputation cost."""

from nanovllm.bench.errors import BenchError
from nanovllm.bench.experiments.common import device_of, environment, noting_errors, output_rate, over, vocab_size
from nanovllm.bench.formulas import chosen
from nanovllm.bench.options import Options
from nanovllm.bench.progress import Progress
from nanovllm.bench.record import PressurePoint, PressureResult, Repeat
from nanovllm.bench.runner import measured, started
from nanovllm.bench.stats import LOWER, Spread, percentile
from nanovllm.bench.workload import Shape, random_workload

# (device, profile): block size, shape, requests
DEFAULTS = {
    ("cpu", "quick"): (16, "32/32", 6),
    ("cpu", "short"): (16, "128/64", 12),
    ("cpu", "full"): (16, "128/128", 16),
    ("cuda", "quick"): (256, "512/256", 32),
    ("cuda", "short"): (256, "512/512", 32),
    ("cuda", "full"): (256, "1024/1024", 64),
}
SHARES = {
    "quick": (1.0, 0.6, 0.35),
    "short": (1.0, 0.6, 0.35),
    "full": (1.0, 0.8, 0.6, 0.45, 0.35, 0.25),
}


def run(options: Options) -> PressureResult:
    """Measure pools of falling size, an engine each. The last repeat of each keeps its timeline."""
    options.refuse_limits("pressure", "num_kvcache_blocks")
    block_size, shape_text, batch = DEFAULTS[device_of(options), options.profile]
    block_size = int(options.limits.get("kvcache_block_size", block_size))
    shape = options.shapes[0] if options.shapes else Shape.parse(shape_text)
    batch = options.batches[0] if options.batches else batch
    work = random_workload(shape, batch, vocab_size(options), options.seed)
    # The last token is never fed in, so it needs no slot.
    needs = [-(-(len(p) + n - 1) // block_size) for p, n in zip(work.prompts, work.outputs, strict=True)]
    pools = pool_sizes(needs, SHARES[options.profile])
    result = PressureResult(
        experiment="pressure",
        environment=environment(options),
        settings=options.common()
        | {"block_size": block_size, "shape": str(shape), "batch": batch, "needed_blocks": sum(needs), "pools": pools},
        formulas=chosen(("preemptions", "recomputed", "e2e", "percentile", "output_tok_s", "peak_blocks")),
        notes=["The plain loop runs here, one step after the other, so that every step can be put on the timeline."],
    )
    limits = {"kvcache_block_size": block_size, "max_num_seqs": batch, "max_model_len": shape.longest + 1}
    runs = len(pools) * (options.repeats + options.warmups)
    with noting_errors(result, options), Progress("pressure", runs, options.progress) as bar:
        for blocks in pools:
            engine = f"{blocks} blocks"
            with started(engine, options, result.engines, num_kvcache_blocks=blocks, **limits) as llm:
                repeats = measured(llm, work, options, bar, engine, plain=True, timeline=True)
            for repeat in repeats[:-1]:
                repeat.timeline = []
            result.points.append(point_of(blocks, sum(needs), repeats))
    return result


def pool_sizes(needs: list[int], shares: tuple[float, ...]) -> list[int]:
    """Blocks of each pool: a share of what all requests need together, never less than the largest one alone."""
    if not needs:
        raise BenchError("a pressure run needs at least one request")
    sizes = [max(max(needs), round(sum(needs) * share)) for share in shares]
    return sorted(set(sizes), reverse=True)


def point_of(blocks: int, needed: int, repeats: list[Repeat]) -> PressurePoint:
    """The figures of one pool."""

    def late(share: float) -> list[float]:
        return [percentile([q.e2e for q in r.requests], share) for r in repeats]

    p50, p95, slowest = (Spread.of(late(share), "s", LOWER) for share in (0.5, 0.95, 1.0))
    return PressurePoint(
        name=f"{blocks} blocks ({blocks / needed:.0%})",
        share=blocks / needed,
        num_blocks=blocks,
        preemptions=over(repeats, lambda r: sum(q.preemptions for q in r.requests), "times", LOWER),
        recomputed=over(repeats, lambda r: sum(q.recomputed_tokens for q in r.requests), "tokens", LOWER),
        e2e_p50=p50,
        e2e_p95=p95,
        e2e_max=slowest,
        output_tok_s=output_rate(repeats),
        peak_blocks=over(repeats, lambda r: r.peak_blocks or 0, "blocks", LOWER),
        repeats=repeats,
    )
