"""2.8 Paged decode attention in Triton, with online softmax: the bonus of part 2."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.numeric import numbers
from nanovllm.course.numeric.checkpoint import engine_example
from nanovllm.course.part2 import decode_calls as calls
from nanovllm.course.part2.cases import attend, ceil_div, padded, tables_for


def _inputs(
    rng: random.Random, seqs: int, keys: int, kv_heads: int, group: int, head_dim: int, block_size: int
) -> dict[str, Any]:
    """The last sequence has `keys` keys, the others at most as many. Only their rows are written down."""
    lens = [rng.randint(1, keys) for _ in range(seqs - 1)] + [keys]
    widths = [ceil_div(length, block_size) for length in lens]
    tables = tables_for(rng, widths)
    positions = [(table, p) for table, length in zip(tables, lens, strict=True) for p in range(length)]
    return {
        "q": numbers(rng, seqs, kv_heads * group, head_dim),
        "k_rows": numbers(rng, len(positions), kv_heads, head_dim),
        "v_rows": numbers(rng, len(positions), kv_heads, head_dim),
        "slots": [table[p // block_size] * block_size + p % block_size for table, p in positions],
        "shape": [max(max(table) for table in tables) + 2, block_size, kv_heads, head_dim],
        "block_tables": padded(tables, widths),
        "context_lens": lens,
        "scale": 0.5,
    }


def _one_head(rng: random.Random, keys: int, head_dim: int, block_size: int) -> dict[str, Any]:
    """One sequence and head; its keys grow longer, so that each chunk brings a higher score."""
    case = _inputs(rng, 1, keys, 1, 1, head_dim, block_size)
    case["k_rows"] = [[[round(x * (1 + i / 40), 2) for x in row[0]]] for i, row in enumerate(case["k_rows"])]
    return case


def _expected(q: Any, k_rows: Any, v_rows: Any, context_lens: list[int], scale: float, **_: Any) -> Any:
    out, first = [], 0
    for row, length in zip(q, context_lens, strict=True):
        mine = slice(first, first + length)
        out.append(attend(row, k_rows[mine], v_rows[mine], scale))
        first += length
    return out


# The kernel of the solution, for the planted bugs to change. The engine's own does more and may change.
_KERNEL = """
import torch
import triton
import triton.language as tl

BLOCK_N = 16


@triton.jit
def decode_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, block_tables_ptr, context_lens_ptr, out_ptr, scale, q_stride, table_stride,
    block_size, NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
    context = tl.load(context_lens_ptr + seq)
    d = tl.arange(0, BLOCK_D)
    n = tl.arange(0, BLOCK_N)
    d_mask = d < HEAD_DIM
    q = tl.load(q_ptr + seq * q_stride + head * HEAD_DIM + d, mask=d_mask, other=0.0).to(tl.float32)

    highest = float("-inf")
    total = 0.0
    acc = tl.zeros([BLOCK_D], tl.float32)
    for start in range(0, context, BLOCK_N):
        position = start + n
        inside = position < context
        block = tl.load(block_tables_ptr + seq * table_stride + position // block_size, mask=inside, other=0)
        slot = block.to(tl.int64) * block_size + position % block_size
        offset = (slot[:, None] * NUM_KV_HEADS + kv_head) * HEAD_DIM + d[None, :]
        mask = inside[:, None] & d_mask[None, :]
        k = tl.load(k_cache_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(v_cache_ptr + offset, mask=mask, other=0.0).to(tl.float32)
        scores = tl.sum(q[None, :] * k, 1) * scale
        scores = tl.where(inside, scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 0))
        rescale = tl.exp(highest - new_highest)
        weights = tl.exp(scores - new_highest)
        total = total * rescale + tl.sum(weights, 0)
        acc = acc * rescale + tl.sum(weights[:, None] * v, 0)
        highest = new_highest
    out = acc / tl.where(total > 0, total, 1.0)
    where = (seq * NUM_HEADS + head) * HEAD_DIM + d
    tl.store(out_ptr + where, out.to(out_ptr.dtype.element_ty), mask=d_mask)


def paged_decode(q, k_cache, v_cache, block_tables, context_lens, scale, num_splits=None, order=None):
    num_seqs, num_heads, head_dim = q.shape
    out = torch.empty(num_seqs, num_heads, head_dim, dtype=q.dtype, device=q.device)
    decode_kernel[(num_seqs, num_heads)](
        q, k_cache, v_cache, block_tables, context_lens, out, scale, q.stride(0), block_tables.stride(0),
        k_cache.shape[1], NUM_HEADS=num_heads, NUM_KV_HEADS=k_cache.shape[2], HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim), BLOCK_N=BLOCK_N)
    return out"""


def _bug(about: str, *changes: tuple[str, str]) -> Variant:
    return Variant(about, "paged_decode", changes, source=_KERNEL)


_SIZES = (("seqs", 1, 2), ("keys", 1, 9), ("kv_heads", 1, 2), ("group", 1, 2), ("head_dim", 1, 4), ("block_size", 1, 4))


EXERCISE = Exercise(
    number="2.8",
    title="Bonus: paged decode in Triton",
    file="part2/ex08_triton_decode.py",
    pieces=(("paged_decode", seams.PAGED_DECODE),),
    uses_torch=True,
    hints=(
        "Write it for one chunk first: positions, blocks, slots, keys, scores, weights, output. Then put a loop around "
        "it and ask what the second chunk must know of the first.",
        "Carry along the highest score, the sum of the weights, and the weighted values. When the highest score grows, "
        "the sum and the values are multiplied by exp(old highest - new highest). Positions from `context` on have the "
        "score -inf.",
        "new = tl.maximum(highest, tl.max(scores, 0)); rescale = tl.exp(highest - new); w = tl.exp(scores - new); "
        "total = total * rescale + tl.sum(w, 0); acc = acc * rescale + tl.sum(w[:, None] * v, 0); at the end "
        "acc / total, or 0 without keys.",
    ),
    groups=(
        Group(
            "several sequences and heads",
            1,
            "Which slot holds position p of sequence i, and which KV head does query head h read? What if there is no "
            "key at all?",
            (
                Example(
                    calls.PADDED_ROW,
                    [[1.0, 1.0], [0.0, 0.0]],
                    "A padded row has no key. What is the sum of no weights, and what happens to a division by it?",
                ),
                Example(
                    calls.KEPT,
                    [[[2.0, 1.0, 5.0]], 1.0, 5.0],
                    "q is a view of a larger tensor, and both caches belong to the engine: all three must be as they "
                    "were. Where does each `tl.store` write? Only `out` is there to be written, and it must be a "
                    "tensor of its own.",
                ),
                Example(
                    calls.PAST_THE_END,
                    [[1.0, 1.0, 1.0], 0],
                    "One head of 3 numbers, in a program that counts to BLOCK_D, which is 4. The second number tells "
                    "how many numbers behind the end of the output were overwritten: on a GPU they are another "
                    "program's. What keeps the lanes from 3 on from storing?",
                ),
            ),
            numeric=Numeric(_SIZES, _inputs, calls.CALL, _expected, cases=5),
        ),
        Group(
            "long contexts, in chunks; and the same tokens from the running engine",
            1,
            "Against which highest score were the weights of chunk 1 measured, and against which are those of chunk 2? "
            "What has to be scaled when the highest score grows?",
            (
                Example(
                    calls.LARGE_SCORES,
                    [2.0],
                    "The highest score comes last, and exp(300) is more than fp32 can hold. What must become of the "
                    "weights that were summed up before?",
                ),
                engine_example(
                    "from nanovllm.paged_kv.backends.triton_backend import TritonBackend",
                    "for layer in llm.model_runner.model.attention_layers:",
                    "    layer.backend.decode = TritonBackend().decode",
                    num_prompts=1,
                    num_tokens=3,
                ),
            ),
            numeric=Numeric(
                (("keys", 1, 100), ("head_dim", 1, 3), ("block_size", 1, 4)), _one_head, calls.CALL, _expected, cases=4
            ),
        ),
    ),
    bugs=(
        _bug("does not rescale the sum", ("total * rescale +", "total +")),
        _bug("does not rescale the values", ("acc * rescale +", "acc +")),
        _bug(
            "rescales the wrong way round",
            ("tl.exp(highest - new_highest)", "tl.exp(tl.minimum(new_highest - highest, 80.0))"),
        ),
        _bug("forgets to carry the highest score along", ("        highest = new_highest\n", "")),
        _bug(
            "takes exponentials of the scores themselves",
            ("tl.maximum(highest, tl.max(scores, 0))", "tl.max(scores, 0) * 0.0"),
        ),
        _bug(
            "measures each chunk by its own highest score",
            ("tl.maximum(highest, tl.max(scores, 0))", "tl.max(scores, 0)"),
            ("tl.exp(highest - new_highest)", "1.0"),
        ),
        _bug(
            "gives positions behind the context a weight",
            ('scores = tl.where(inside, scores, float("-inf"))', "scores = tl.where(inside, scores, 0.0)"),
        ),
        _bug("forgets the scale", (" * scale\n", "\n")),
        _bug(
            "scales the queries where they lie",
            (
                ".to(tl.float32)\n\n",
                ".to(tl.float32) * scale\n"
                "    tl.store(q_ptr + seq * q_stride + head * HEAD_DIM + d, q, mask=d_mask)\n\n",
            ),
            (" * scale\n        scores", "\n        scores"),
        ),
        _bug(
            "writes the answers over the queries",
            ("torch.empty(num_seqs, num_heads, head_dim, dtype=q.dtype, device=q.device)", "q"),
        ),
        _bug(
            "takes the logical block for the physical one",
            ("slot = block.to(tl.int64)", "slot = (position // block_size + 0 * block).to(tl.int64)"),
        ),
        _bug(
            "looks every sequence up in the first table",
            ("block_tables_ptr + seq * table_stride", "block_tables_ptr + 0 * seq * table_stride"),
        ),
        _bug("deals the query heads out in turn", ("head // (NUM_HEADS // NUM_KV_HEADS)", "head % NUM_KV_HEADS")),
        _bug("stores past the end of a head", (".element_ty), mask=d_mask)", ".element_ty))")),
        _bug("divides by no sum", ("/ tl.where(total > 0, total, 1.0)", "")),
        _bug("divides by zero where there is no key", ("/ tl.where(total > 0, total, 1.0)", "/ total")),
    ),
    harmless=(
        _bug("reads 32 keys at a time", ("BLOCK_N = 16", "BLOCK_N = 32")),
        _bug(
            "scales the queries as it reads them",
            (".to(tl.float32)\n\n", ".to(tl.float32) * scale\n\n"),
            (" * scale\n        scores", "\n        scores"),
        ),
        _bug("starts from a very low score", ('highest = float("-inf")', "highest = -1e30")),
        Variant(
            "works it out in torch",
            "paged_decode",
            source="""
def paged_decode(q, k_cache, v_cache, block_tables, context_lens, scale, num_splits=None, order=None):
    out = torch.zeros_like(q)
    size, group = k_cache.shape[1], q.shape[1] // k_cache.shape[2]
    for i, length in enumerate(context_lens.tolist()):
        position = torch.arange(length)
        slots = block_tables[i].long()[position // size] * size + position % size
        keys, values = (c.flatten(0, 1)[slots].repeat_interleave(group, 1) for c in (k_cache, v_cache))
        if length:
            weights = (torch.einsum("hd,lhd->hl", q[i], keys) * scale).softmax(-1)
            out[i] = torch.einsum("hl,lhd->hd", weights, values)
    return out
""",
        ),
    ),
)
