"""Prefix cache: prompts that share whole blocks which were computed before, against prompts that share none."""

from nanovllm import LLM
from nanovllm.bench.experiments.common import (
    device_of,
    environment,
    noting_errors,
    over,
    pool,
    request_median,
    vocab_size,
)
from nanovllm.bench.formulas import chosen
from nanovllm.bench.options import Options
from nanovllm.bench.progress import Progress
from nanovllm.bench.record import PrefixPoint, PrefixResult, Repeat
from nanovllm.bench.runner import measured, queue, started
from nanovllm.bench.stats import HIGHER, LOWER
from nanovllm.bench.workload import Workload, shared_prefix

# (device, profile): block size, blocks of a prompt, tokens after them, requests, completion tokens
DEFAULTS = {
    ("cpu", "quick"): (16, 8, 8, 8, 4),
    ("cpu", "short"): (16, 32, 16, 16, 8),
    ("cpu", "full"): (16, 32, 16, 16, 8),
    ("cuda", "quick"): (256, 4, 64, 16, 16),
    ("cuda", "short"): (256, 8, 64, 64, 16),
    ("cuda", "full"): (256, 8, 64, 256, 32),
}


def run(options: Options) -> PrefixResult:
    """Measure shares of 0, 1/4, 1/2, 3/4 and all of the prompts' whole blocks (short and quick: 0, 1/2, all)."""
    device = device_of(options)
    block_size, prompt_blocks, tail, batch, output = DEFAULTS[device, options.profile]
    block_size = int(options.limits.get("kvcache_block_size", block_size))
    batch = options.batches[0] if options.batches else batch
    quarters = (0, 2, 4) if options.profile != "full" else (0, 1, 2, 3, 4)
    settings = {
        "block_size": block_size,
        "prompt_blocks": prompt_blocks,
        "own_tail_tokens": tail,
        "batch": batch,
        "output_tokens": output,
        "shared_blocks": [prompt_blocks * q // 4 for q in quarters],
        "primer": "one request with the prefix runs before each repeat, untimed, so that its blocks are in the cache",
    }
    result = PrefixResult(
        experiment="prefix",
        environment=environment(options),
        settings=options.common() | settings,
        formulas=chosen(("prefill_seconds", "hit_blocks", "ttft", "peak_blocks")),
    )
    longest = prompt_blocks * block_size + tail + output
    limits = {"kvcache_block_size": block_size, "max_model_len": longest + 1, "max_num_seqs": batch}
    limits |= pool(device, (batch + 1) * -(-longest // block_size))
    runs = len(quarters) * (options.repeats + options.warmups)
    with (
        noting_errors(result, options),
        Progress("prefix", runs, options.progress) as bar,
        started("nanovllm", options, result.engines, **limits) as llm,
    ):
        for shared in settings["shared_blocks"]:  # type: ignore[attr-defined]
            own = (prompt_blocks - shared) * block_size + tail
            work = shared_prefix(batch, shared * block_size, own, output, vocab_size(options), options.seed)
            label = f"{shared} of {prompt_blocks} blocks shared"
            repeats = measured(llm, work, options, bar, label, prepare=lambda m, w: prime(m, w, options))
            result.points.append(point_of(shared, prompt_blocks, block_size, repeats))
    return result


def prime(llm: LLM, work: Workload, options: Options) -> Workload:
    """Run the first request to its end, so that its blocks are published; the others are left to be timed."""
    queue(llm, Workload(work.prompts[:1], [1]), options)
    while not llm.is_finished():
        llm.step()
    return Workload(work.prompts[1:], work.outputs[1:])


def point_of(shared: int, prompt_blocks: int, block_size: int, repeats: list[Repeat]) -> PrefixPoint:
    """The figures of one share."""
    ttft = request_median(repeats, lambda q: q.ttft)
    assert ttft is not None  # every request of the engine has a first token

    def hits(r: Repeat) -> float:
        return sum(q.prefix_tokens for q in r.requests) / block_size

    return PrefixPoint(
        name=f"{shared} of {prompt_blocks} blocks shared",
        shared_blocks=shared,
        prompt_blocks=prompt_blocks,
        hit_blocks=over(repeats, hits, "blocks", HIGHER),
        prefill_seconds=over(repeats, lambda r: r.prefill_seconds or 0.0, "s", LOWER),
        computed_tokens=over(repeats, lambda r: r.prefill_tokens, "tokens", LOWER),
        ttft=ttft,
        peak_blocks=over(repeats, lambda r: r.peak_blocks or 0, "blocks", LOWER),
        repeats=repeats,
    )
