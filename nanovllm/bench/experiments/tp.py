"""Tensor parallelism: the same workload on 1, 2, ... ranks, and what of a decode step goes into collectives."""

import time

from nanovllm import LLM
from nanovllm.bench.errors import BenchError
from nanovllm.bench.experiments.common import (
    MIB,
    device_of,
    environment,
    noting_errors,
    output_rate,
    over,
    pool,
    total_rate,
    vocab_size,
)
from nanovllm.bench.formulas import chosen, efficiency
from nanovllm.bench.options import Options
from nanovllm.bench.progress import Progress
from nanovllm.bench.record import Repeat, TpPoint, TpResult
from nanovllm.bench.runner import measured, queue, started
from nanovllm.bench.stats import HIGHER, LOWER, NEITHER, Spread
from nanovllm.bench.workload import Shape, Workload, random_workload
from nanovllm.engine.checkpoint import resolve_checkpoint
from nanovllm.qwen3.config import Qwen3Config

DEFAULTS = {  # (device, profile): shape, requests
    ("cpu", "quick"): ("64/16", 8),
    ("cpu", "short"): ("128/32", 16),
    ("cpu", "full"): ("128/64", 16),
    ("cuda", "quick"): ("512/64", 32),
    ("cuda", "short"): ("512/256", 64),
    ("cuda", "full"): ("512/256", 128),
}
STRETCH = 8  # decode steps whose collectives are timed
HIDDEN = (
    "A replayed CUDA graph runs its collectives unseen by the engine's recorder: for their share run once more with "
    "--enforce-eager."
)
ON_CPU = (
    "Ranks on a CPU share its cores, so more of them do not compute faster: here this experiment shows what the "
    "collectives and the control channel cost, not a speed-up."
)


def run(options: Options) -> TpResult:
    """Measure every number of ranks, an engine each."""
    options.refuse_limits("tp", "tensor_parallel_size")
    device = device_of(options)
    shape_text, batch = DEFAULTS[device, options.profile]
    shape = options.shapes[0] if options.shapes else Shape.parse(shape_text)
    batch = options.batches[0] if options.batches else batch
    ranks = sorted(set(options.ranks)) or valid_ranks(options, device)
    result = TpResult(
        experiment="tp",
        environment=environment(options),
        settings=options.common() | {"shape": str(shape), "batch": batch, "ranks": ranks, "stretch": STRETCH},
        formulas=chosen(
            ("output_tok_s", "total_tok_s", "efficiency", "decode_step", "collective_share", "peak_memory")
        ),
        notes=[ON_CPU] if device == "cpu" else [],
    )
    work = random_workload(shape, batch, vocab_size(options), options.seed)
    longest = shape.longest + STRETCH + 2
    limits = {"max_num_seqs": batch, "max_model_len": longest}
    limits |= pool(device, batch * -(-longest // int(options.limits.get("kvcache_block_size", 256))))
    runs = len(ranks) * (options.repeats + options.warmups)
    with noting_errors(result, options), Progress("tp", runs, options.progress) as bar:
        for size in ranks:
            bar.say(f"TP {size} starts")
            with started(f"TP {size}", options, result.engines, tensor_parallel_size=size, **limits) as llm:
                repeats = measured(llm, work, options, bar, f"TP {size}")
                hidden = result.engines[-1].graphs and size > 1
                share = None if hidden else collective_share(llm, work, options)
            result.notes += [HIDDEN] if hidden and HIDDEN not in result.notes else []
            result.points.append(point_of(size, repeats, share, result.points))
    return result


def valid_ranks(options: Options, device: str) -> list[int]:
    """1, 2, 4 and 8 as far as the GPUs go and the heads divide; 1 and 2 on a CPU."""
    import torch

    most = torch.cuda.device_count() if device == "cuda" else 2
    config = Qwen3Config.from_folder(resolve_checkpoint(options.model))
    return [n for n in (1, 2, 4, 8) if n <= most and config.num_attention_heads % n == 0]


def collective_share(llm: LLM, work: Workload, options: Options) -> float:
    """Rank 0's seconds in collectives / seconds, over a stretch of decode steps of the full batch; 0 for one rank."""
    llm.scheduler.block_manager.reset_prefix_cache()
    queue(llm, Workload(work.prompts, [STRETCH + 3] * len(work.prompts)), options)
    while llm.step().is_prefill:
        pass
    recorder = llm.ranks.record_collectives()
    inside, began = 0.0, time.perf_counter()
    for _ in range(STRETCH):
        llm.step()
        inside += sum(r.seconds or 0.0 for r in recorder.records) if recorder is not None else 0.0
    seconds = time.perf_counter() - began
    llm.ranks.record_collectives(False)
    while not llm.is_finished():
        llm.step()
    return inside / seconds


def point_of(ranks: int, repeats: list[Repeat], share: float | None, before: list[TpPoint]) -> TpPoint:
    """The figures of one number of ranks; `before` are those of fewer, the first of them the base of efficiency."""
    tokens = output_rate(repeats)
    if tokens.median <= 0:
        raise BenchError("no tokens were generated, so there is no efficiency: give tp a longer shape")
    base_tok_s, base = (before[0].output_tok_s.median, before[0].ranks) if before else (tokens.median, ranks)
    shares = [efficiency(value, ranks, base_tok_s, base) for value in tokens.values]
    return TpPoint(
        name=f"TP {ranks}",
        ranks=ranks,
        output_tok_s=tokens,
        total_tok_s=total_rate(repeats),
        efficiency=Spread.of(shares, "share", HIGHER),
        decode_step=over(repeats, lambda r: (r.decode_step_seconds or 0.0) * 1e3, "ms", LOWER),
        collective_share=None if share is None else Spread.of([share], "share", NEITHER),
        memory_per_rank=over(repeats, lambda r: max(r.memory_bytes) / MIB, "MiB", LOWER),
        repeats=repeats,
    )
