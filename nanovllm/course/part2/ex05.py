"""2.5 The store kernel."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.numeric import numbers
from nanovllm.course.numeric.checkpoint import engine_example
from nanovllm.course.part2.cases import NOBODY

# The caches lie in a larger tensor, so that a stray write is seen and hits nothing else.
_IMPORTS = """\
import math
import torch
from nanovllm.paged_kv.backends import triton_backend
memory = torch.full((2, 2000 + math.prod(shape)), fill)
k_cache, v_cache = (part[1000:-1000].view(shape) for part in memory)
"""
_RESULT = """\
triton_backend.store_kv(k, v, k_cache, v_cache, torch.tensor(slots))
outside = bool((memory[:, :1000] != fill).any() or (memory[:, -1000:] != fill).any())
result = dict(k_cache=k_cache, v_cache=v_cache, written_outside=outside)"""
_CASE = _IMPORTS + "k, v = torch.tensor(k), torch.tensor(v)\n" + _RESULT
_STRIDED_CASE = (
    _IMPORTS
    + """\
qkv = torch.tensor(qkv)  # a row holds a token's query, key and value heads, as the QKV layer leaves them
k, v = qkv[:, heads : 2 * heads], qkv[:, 2 * heads :]
"""
    + _RESULT
)
_HAND = """\
import torch
from nanovllm.paged_kv.backends import triton_backend
k, v = torch.arange(6.0).view(3, 2, 1), 10 + torch.arange(6.0).view(3, 2, 1)
memory = torch.zeros(2, 6, 2, 2, 1)  # with room around the caches
k_cache, v_cache = memory[0, 2:4], memory[1, 2:4]
triton_backend.store_kv(k, v, k_cache, v_cache, torch.tensor([3, 0, 1]))
result = [k_cache.flatten().tolist(), v_cache.flatten().tolist()]"""
_PADDED = """\
import torch
from nanovllm.paged_kv.backends import triton_backend
k, v = torch.ones(3, 1, 2), 2 * torch.ones(3, 1, 2)
pool = torch.zeros(5, 4, 1, 2)  # what lies before the first slot is the last one of another layer
before, k_cache, v_cache = pool[0:1], pool[1:2], pool[3:4]
triton_backend.store_kv(k, v, k_cache, v_cache, torch.tensor([1, -1, 2]))
result = [before.flatten().tolist(), k_cache.flatten().tolist(), v_cache.flatten().tolist()]"""
_SIZES = (("tokens", 1, 5), ("heads", 1, 3), ("head_dim", 1, 5), ("block_size", 1, 3))


def _slots(rng: random.Random, tokens: int, block_size: int) -> tuple[list[int], int]:
    """Different slots, one of them -1 in some cases; and a number of blocks that has room for more."""
    num_blocks = -(-tokens // block_size) + 1
    slots = rng.sample(range(num_blocks * block_size), tokens)
    if tokens > 1 and rng.random() < 0.5:
        slots[rng.randrange(tokens)] = -1
    return slots, num_blocks


def _inputs(rng: random.Random, tokens: int, heads: int, head_dim: int, block_size: int) -> dict[str, Any]:
    slots, num_blocks = _slots(rng, tokens, block_size)
    k, v = numbers(rng, tokens, heads, head_dim), numbers(rng, tokens, heads, head_dim)
    return {"k": k, "v": v, "slots": slots, "shape": [num_blocks, block_size, heads, head_dim], "fill": NOBODY}


def _strided_inputs(rng: random.Random, tokens: int, heads: int, head_dim: int, block_size: int) -> dict[str, Any]:
    slots, num_blocks = _slots(rng, tokens, block_size)
    qkv = numbers(rng, tokens, 3 * heads, head_dim)
    shape = [num_blocks, block_size, heads, head_dim]
    return {"qkv": qkv, "heads": heads, "slots": slots, "shape": shape, "fill": NOBODY}


def _stored(rows: list[Any], slots: list[int], shape: list[int], fill: float) -> list[Any]:
    num_blocks, block_size, heads, head_dim = shape
    flat = [[[fill] * head_dim for _ in range(heads)] for _ in range(num_blocks * block_size)]
    for row, place in zip(rows, slots, strict=True):
        if place >= 0:
            flat[place] = row
    return [flat[i * block_size : (i + 1) * block_size] for i in range(num_blocks)]


def _expected(k: list[Any], v: list[Any], slots: list[int], shape: list[int], fill: float) -> dict[str, Any]:
    caches = {"k_cache": _stored(k, slots, shape, fill), "v_cache": _stored(v, slots, shape, fill)}
    return {**caches, "written_outside": False}


def _strided(qkv: list[Any], heads: int, slots: list[int], shape: list[int], fill: float) -> dict[str, Any]:
    k, v = [row[heads : 2 * heads] for row in qkv], [row[2 * heads :] for row in qkv]
    return _expected(k, v, slots, shape, fill)


# The kernel of the solution, for the planted bugs to change. The engine's own does more and may change.
_KERNEL = """
import triton
import triton.language as tl


@triton.jit
def store_kernel(
    k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, slot_ptr, k_row_stride, v_row_stride, row_size, BLOCK: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if slot >= 0:
        column = tl.arange(0, BLOCK)
        inside = column < row_size
        k = tl.load(k_ptr + token * k_row_stride + column, mask=inside)
        v = tl.load(v_ptr + token * v_row_stride + column, mask=inside)
        start = slot.to(tl.int64) * row_size
        tl.store(k_cache_ptr + start + column, k, mask=inside)
        tl.store(v_cache_ptr + start + column, v, mask=inside)


def store_kv(k, v, k_cache, v_cache, slot_mapping):
    num_tokens, num_heads, head_dim = k.shape
    row_size = num_heads * head_dim
    if num_tokens:
        block = triton.next_power_of_2(row_size)
        strides = k.stride(0), v.stride(0)
        store_kernel[(num_tokens,)](k, v, k_cache, v_cache, slot_mapping, *strides, row_size, BLOCK=block)"""


def _bug(about: str, *changes: tuple[str, str]) -> Variant:
    return Variant(about, "store_kv", changes, source=_KERNEL)


EXERCISE = Exercise(
    number="2.5",
    title="The store kernel, in Triton",
    file="part2/ex05_store_kernel.py",
    pieces=(("store_kv", seams.STORE_KV),),
    uses_torch=True,
    hints=(
        "One program, one token. Which number is it (tl.program_id), which slot does it find at slot_ptr + number, and "
        "at which number of the cache does that slot begin?",
        "Read: k_ptr + token * k_row_stride + column. Write: k_cache_ptr + slot * row_size + column. column is "
        "tl.arange(0, BLOCK), of which only those below row_size count: give both a mask. A slot of -1: nothing.",
        "token = tl.program_id(0); slot = tl.load(slot_ptr + token); if slot >= 0: column = tl.arange(0, BLOCK); "
        "inside = column < row_size; k = tl.load(k_ptr + token * k_row_stride + column, mask=inside); "
        "tl.store(k_cache_ptr + slot * row_size + column, k, mask=inside); the same for v.",
    ),
    groups=(
        Group(
            "each row into its slot",
            1,
            "Take one program and write down the numbers it reads and those it writes. Where does slot s begin?",
            (
                Example(
                    _HAND,
                    [[2.0, 3.0, 4.0, 5.0, 0.0, 0.0, 0.0, 1.0], [12.0, 13.0, 14.0, 15.0, 0.0, 0.0, 10.0, 11.0]],
                ),
            ),
            numeric=Numeric(_SIZES, _inputs, _CASE, _expected, cases=10),
        ),
        Group(
            "padded rows write nothing",
            1,
            "Slot -1 times the size of a slot is a place, too: which one? Who owns it?",
            (
                Example(
                    _PADDED,
                    [[0.0] * 8, [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0]],
                ),
            ),
        ),
        Group(
            "rows that are part of a wider matrix",
            1,
            "k and v may be views of one QKV matrix. How far is it from one token's row to the next one's?",
            numeric=Numeric(_SIZES, _strided_inputs, _STRIDED_CASE, _strided, cases=10),
        ),
        Group(
            "the same tokens from the running engine",
            1,
            "The engine calls your kernel once a layer and step. If small cases pass, look at rows of 256 numbers: is "
            "each column below row_size written, and none beyond it?",
            (
                engine_example(
                    "from nanovllm.paged_kv.backends.triton_backend import TritonBackend",
                    "for layer in llm.model_runner.model.attention_layers:",
                    "    layer.backend.store = TritonBackend().store",
                ),
            ),
        ),
    ),
    bugs=(
        _bug(
            "goes by the number of the token instead of its slot", ("slot.to(tl.int64) * row_size", "token * row_size")
        ),
        _bug("takes the slot for the number where it begins", ("slot.to(tl.int64) * row_size", "slot.to(tl.int64)")),
        _bug("lets -1 be a slot", ("if slot >= 0:", "if slot >= -1:")),
        _bug("takes slot 0 for padding", ("if slot >= 0:", "if slot > 0:")),
        _bug(
            "writes the columns behind the row too",
            ("tl.store(k_cache_ptr + start + column, k, mask=inside)", "tl.store(k_cache_ptr + start + column, k)"),
            ("v_row_stride + column, mask=inside)", "v_row_stride + column, mask=inside, other=0.0)"),
            ("k_row_stride + column, mask=inside)", "k_row_stride + column, mask=inside, other=0.0)"),
        ),
        _bug("takes the rows to lie close together", ("token * k_row_stride", "token * row_size")),
        _bug("uses the stride of k for v", ("token * v_row_stride", "token * k_row_stride + 0 * v_row_stride")),
        _bug("stores the keys as values", ("start + column, v, mask", "start + column, k, mask")),
        _bug("stores no values", ("        tl.store(v_cache_ptr + start + column, v, mask=inside)\n", "")),
        _bug("stores the first head only", ("row_size = num_heads * head_dim", "row_size = head_dim")),
        _bug("leaves the last column out", ("inside = column < row_size", "inside = column < row_size - 1")),
    ),
    harmless=(
        _bug(
            "makes every program twice as wide",
            ("BLOCK=block)", "BLOCK=2 * block)"),
        ),
        _bug(
            "masks padded rows instead of branching",
            ("    if slot >= 0:\n", "    if True:\n"),
            ("inside = column < row_size", "inside = tl.where(slot >= 0, column < row_size, False)"),
        ),
        Variant(
            "writes with torch's own indexing",
            "store_kv",
            source="""
def store_kv(k, v, k_cache, v_cache, slot_mapping):
    keep = slot_mapping >= 0
    k_cache.flatten(0, 1)[slot_mapping[keep]] = k[keep]
    v_cache.flatten(0, 1)[slot_mapping[keep]] = v[keep]
""",
        ),
    ),
)
