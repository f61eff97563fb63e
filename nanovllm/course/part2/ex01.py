"""2.1 KV budget."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant

_QWEN = """\
import torch
from nanovllm.paged_kv.cache import KVCacheSpec
qwen3_0_6b = KVCacheSpec(num_layers=28, num_kv_heads=8, head_dim=128, block_size=256, dtype=torch.bfloat16)
small = KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=4, block_size=4, dtype=torch.float32)
result = [qwen3_0_6b.bytes_per_token, qwen3_0_6b.bytes_per_block, small.bytes_per_token]"""
_FIT = """\
import torch
from nanovllm.errors import MemoryBudgetError
from nanovllm.paged_kv.cache import KVCacheSpec
spec = KVCacheSpec(num_layers=3, num_kv_heads=2, head_dim=4, block_size=4, dtype=torch.float32)
result = []
for num_bytes in (-768, 0, 767, 768, 2303, 2304):
    try:
        result.append(spec.blocks_in(num_bytes))
    except MemoryBudgetError:
        result.append("MemoryBudgetError")"""
_ENGINE = """\
from nanovllm import LLM
with LLM("qwen3-tiny", kvcache_block_size=4, cpu_kvcache_gib=0.01, device="cpu", skip_tokenizer_init=True) as llm:
    spec = llm.model_runner.spec
    result = [spec.bytes_per_token, spec.bytes_per_block, llm.ranks.num_blocks]"""
_BUDGET = """\
from nanovllm.paged_kv.memory import MemoryBudget
budget = MemoryBudget(total=total, free=free, held=held, peak=peak, graphs=graphs, utilization=utilization)
result = budget.for_cache"""
_SAFETY = 256 * 2**20


def _inputs(rng: random.Random, mib: int) -> dict[str, Any]:
    total = 2**20 * (1000 + mib)
    names = ("free", "held", "peak", "graphs")
    shares = (1.0, 0.4, 0.2, 0.1)
    taken = {name: rng.randrange(int(total * share)) for name, share in zip(names, shares, strict=True)}
    return {"total": total, **taken, "utilization": rng.choice((0.5, 0.9, 0.95))}


def _expected(total: int, free: int, held: int, peak: int, graphs: int, utilization: float) -> int:
    limits = (int(total * utilization) - held, free - _SAFETY)
    return min(limits) - peak - graphs


EXERCISE = Exercise(
    number="2.1",
    title="KV budget",
    file="part2/ex01_kv_budget.py",
    pieces=(
        ("bytes_per_token", seams.BYTES_PER_TOKEN),
        ("blocks_in", seams.BLOCKS_IN),
        ("for_cache", seams.FOR_CACHE),
    ),
    uses_torch=True,
    hints=(
        "Count numbers before bytes: what does one layer keep of one token? Then ask what is in memory already, and "
        "which of the two limits of the card is the tighter one.",
        "A token: K and V, for each layer and each KV head, head_dim numbers of dtype.itemsize bytes. Blocks: whole "
        "ones, at least one. Budget: each limit has something of its own to take off; peak and graphs come off the "
        "smaller one.",
        "2 * num_layers * num_kv_heads * head_dim * dtype.itemsize; num_bytes // bytes_per_block, refused below 1; "
        "min(int(total * utilization) - held, free - SAFETY_BYTES) - peak - graphs.",
    ),
    groups=(
        Group(
            "bytes of a token",
            1,
            "Work Qwen3-0.6B out by hand, factor by factor: which one is missing, or counted twice?",
            (Example(_QWEN, [114688, 29360128, 192]),),
        ),
        Group(
            "whole blocks, at least one, in the running engine too",
            1,
            "Which way must a part of a block be rounded? And what should an engine do that can have no block?",
            (
                Example(_FIT, ["MemoryBudgetError", "MemoryBudgetError", "MemoryBudgetError", 1, 2, 3]),
                Example(_ENGINE, [10240, 40960, 262]),
            ),
        ),
        Group(
            "what a GPU has left for the cache",
            1,
            "Write both limits down with these numbers. Is each expense taken off exactly once?",
            numeric=Numeric((("mib", 1, 80000),), _inputs, _BUDGET, _expected),
        ),
    ),
    bugs=(
        Variant("forgets that a value is kept beside each key", "bytes_per_token", (("2 * self.num", "self.num"),)),
        Variant("counts one layer only", "bytes_per_token", (("self.num_layers * ", ""),)),
        Variant("takes every number for 2 bytes", "bytes_per_token", (("self.dtype.itemsize", "2"),)),
        Variant("counts numbers, not bytes", "bytes_per_token", ((" * self.dtype.itemsize", ""),)),
        Variant(
            "rounds the number of blocks up",
            "blocks_in",
            (("num_bytes // self.bytes_per_block", "-(-num_bytes // self.bytes_per_block)"),),
        ),
        Variant(
            "divides by the bytes of a token",
            "blocks_in",
            (("num_bytes // self.bytes_per_block", "num_bytes // self.bytes_per_token"),),
        ),
        Variant("lets an engine start without a block", "blocks_in", (("if blocks < 1:", "if blocks < 0:"),)),
        Variant("forgets the weights", "for_cache", ((" - self.held", ""),)),
        Variant(
            "takes the weights off twice", "for_cache", (("self.free - SAFETY", "self.free - self.held - SAFETY"),)
        ),
        Variant("does not look at what is free", "for_cache", ((", self.free - SAFETY_BYTES)", ", self.total)"),)),
        Variant("takes a share of what is free", "for_cache", (("int(self.total *", "int(self.free *"),)),
        Variant("forgets what a step needs", "for_cache", ((" - self.peak", ""),)),
        Variant("forgets the graphs", "for_cache", ((" - self.graphs", ""),)),
    ),
    harmless=(
        Variant(
            "multiplies in another order",
            "bytes_per_token",
            source="""
def bytes_per_token(spec):
    a_layer = 2 * spec.num_kv_heads * spec.head_dim
    return sum(a_layer * spec.dtype.itemsize for _ in range(spec.num_layers))
""",
        ),
        Variant(
            "refuses before it divides",
            "blocks_in",
            source="""
def blocks_in(spec, num_bytes):
    if num_bytes < spec.bytes_per_block:
        raise MemoryBudgetError("too little for one block")
    return divmod(num_bytes, spec.bytes_per_block)[0]
""",
        ),
        Variant(
            "takes peak and graphs off both limits",
            "for_cache",
            source="""
def for_cache(budget):
    besides = budget.peak + budget.graphs
    share = int(budget.total * budget.utilization) - budget.held - besides
    return min(budget.free - SAFETY_BYTES - besides, share)
""",
        ),
    ),
)
