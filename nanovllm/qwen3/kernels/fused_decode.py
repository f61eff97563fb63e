"""Decode attention of a few sequences in one kernel: from the rows of the QKV product to the heads' outputs.

Elsewhere that takes three: `heads.py`, and the two of `paged_kv/kernels/decode.py`. With few sequences most of their
time is waiting for one another. Here every program normalises and rotates the queries of its KV head itself; the one
with a sequence's last keys also makes the new key and value, stores them, and attends to them without reading them
back; and of the programs that share a KV head's context, the one that ends last joins their results. Keys and values of
earlier steps are there before the QKV product is, so that a program reads its first ones before it waits.
"""

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.attention import Attention
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.kernels.decode import join_splits, split_buffers
from nanovllm.paged_kv.kernels.launch import dot_precision, early, multiprocessors, starts_early, wait_for_inputs

MIN_SEQS, MAX_SEQS = 3, 8  # for others the three kernels were as fast on an H200, or faster (docs/gpu.md)
MAX_SPLITS = 12
_BLOCK_N = 32  # keys of one turn


@triton.jit
def _load_gain(gain_ptr, HEAD_DIM: tl.constexpr):
    """A norm's weight [HEAD_DIM] as fp32, and the same with its halves exchanged."""
    d = tl.arange(0, HEAD_DIM)
    across = (d + HEAD_DIM // 2) % HEAD_DIM
    return tl.load(gain_ptr + d).to(tl.float32), tl.load(gain_ptr + across).to(tl.float32)


@triton.jit
def _load_angles(cos_sin_ptr, position, HEAD_DIM: tl.constexpr):
    """cos and sin [HEAD_DIM] fp32 of a position; the sines of the first half are negative."""
    d = tl.arange(0, HEAD_DIM)
    ptrs = cos_sin_ptr + position * HEAD_DIM + d % (HEAD_DIM // 2)
    sin = tl.load(ptrs + HEAD_DIM // 2)
    return tl.load(ptrs), tl.where(d < HEAD_DIM // 2, -sin, sin)


@triton.jit
def _norm_and_rotate(ptrs, mask, gain, gain_across, cos, sin, eps, HEAD_DIM: tl.constexpr):
    """The heads [N, HEAD_DIM] that begin at ptrs [N, 1], normalised and rotated.

    An element is rotated with the one half a head away, "across", which is loaded a second time.
    """
    d = tl.arange(0, HEAD_DIM)
    own = tl.load(ptrs + d[None, :], mask=mask, other=0.0)
    across = tl.load(ptrs + ((d + HEAD_DIM // 2) % HEAD_DIM)[None, :], mask=mask, other=0.0)
    dtype = own.dtype
    own32 = own.to(tl.float32)
    across32 = across.to(tl.float32)
    scale = (1.0 / tl.sqrt(tl.sum(own32 * own32, 1) / HEAD_DIM + eps))[:, None]
    # Rounded as the reference rounds: after the scaling and after the weight.
    own32 = ((own32 * scale).to(dtype).to(tl.float32) * gain[None, :]).to(dtype).to(tl.float32)
    across32 = ((across32 * scale).to(dtype).to(tl.float32) * gain_across[None, :]).to(dtype).to(tl.float32)
    return (own32 * cos[None, :] + across32 * sin[None, :]).to(dtype)


@triton.jit
def _load_turn(k_cache_ptr, v_cache_ptr, block, start, last, block_size, stride, at, BLOCK_N: tl.constexpr):
    """Keys and values of the positions start .. start + BLOCK_N of one block, and which of them lie before `last`."""
    n = tl.arange(0, BLOCK_N)
    inside = start + n < last
    slot = block.to(tl.int64) * block_size + start % block_size + n
    offset = slot[:, None] * stride + at[None, :]
    k = tl.load(k_cache_ptr + offset, mask=inside[:, None], other=0.0)
    v = tl.load(v_cache_ptr + offset, mask=inside[:, None], other=0.0)
    return k, v, inside


@triton.jit
def _attend(q, k, v, inside, scale, highest, total, acc, PRECISION: tl.constexpr):
    """One turn of the running softmax: (highest score, sum of weights, weighted values) with these keys in it."""
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    scores = tl.where(inside[None, :], scores, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    finite = tl.maximum(new_highest, -1e30)  # a first turn may have no key, and -inf minus -inf is no number
    rescale = tl.exp(highest - finite)
    p = tl.exp(scores - finite[:, None])
    acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
    return new_highest, total * rescale + tl.sum(p, 1), acc


@triton.jit
def _is_last(counter_ptr, num_programs):
    """Count this program; True for the last one, which finds all that the others wrote, and sets the count back."""
    tl.debug_barrier()  # all of this program's threads have written
    is_last = tl.atomic_add(counter_ptr, 1, sem="acq_rel") == num_programs - 1
    if is_last:
        tl.store(counter_ptr, 0)
    return is_last


@triton.jit
def _fused_decode_kernel(
    qkv_ptr,
    q_gain_ptr,
    k_gain_ptr,
    cos_sin_ptr,
    position_ptr,
    slot_ptr,
    k_cache_ptr,
    v_cache_ptr,
    block_tables_ptr,
    context_lens_ptr,
    order_ptr,
    acc_ptr,
    max_ptr,
    sum_ptr,
    out_ptr,
    arrived_ptr,
    scale,
    eps,
    qkv_stride,
    table_stride,
    block_size,
    NUM_SPLITS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,
    ORDERED: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (KV head, split, sequence): attention of GROUP query heads to one split of the keys.

    BLOCK_N divides block_size. ORDERED: the third number counts in `order`, as in `paged_kv/kernels/decode.py`.
    """
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    seq = tl.program_id(2).to(tl.int64)
    if ORDERED:
        seq = tl.load(order_ptr + seq).to(tl.int64)
    context = tl.load(context_lens_ptr + seq)
    turns = tl.cdiv(context, BLOCK_N)  # shared out evenly: some splits have one more
    first = split * turns // NUM_SPLITS * BLOCK_N
    last = tl.minimum((split + 1) * turns // NUM_SPLITS * BLOCK_N, context)
    has_new = (last == context) & (first < context)
    old = tl.minimum(last, context - 1)  # the end of the keys that earlier steps have stored
    g = tl.arange(0, BLOCK_G)
    d = tl.arange(0, HEAD_DIM)
    cos, sin = _load_angles(cos_sin_ptr, tl.load(position_ptr + seq), HEAD_DIM)
    q_gain, q_gain_across = _load_gain(q_gain_ptr, HEAD_DIM)
    k_gain, k_gain_across = _load_gain(k_gain_ptr, HEAD_DIM)
    new_slot = tl.load(slot_ptr + seq).to(tl.int64)
    # Each turn's block is looked up a turn before; a padded row, and a split without keys, look too.
    table_ptr = block_tables_ptr + seq * table_stride
    block = tl.load(table_ptr + tl.minimum(first, tl.maximum(context - 1, 0)) // block_size)
    at = kv_head * HEAD_DIM + d
    stride = NUM_KV_HEADS * HEAD_DIM
    k, v, inside = _load_turn(k_cache_ptr, v_cache_ptr, block, first, old, block_size, stride, at, BLOCK_N)
    block = tl.load(table_ptr + tl.minimum(first + BLOCK_N, tl.maximum(last - 1, 0)) // block_size)
    wait_for_inputs(EARLY)
    row_ptr = qkv_ptr + seq * qkv_stride
    q_ptrs = row_ptr + (kv_head * GROUP + g)[:, None] * HEAD_DIM
    q = _norm_and_rotate(q_ptrs, g[:, None] < GROUP, q_gain, q_gain_across, cos, sin, eps, HEAD_DIM)
    k_ptrs = row_ptr + (NUM_KV_HEADS * GROUP + kv_head + tl.arange(0, 1))[:, None] * HEAD_DIM
    k_new = _norm_and_rotate(k_ptrs, d[None, :] >= 0, k_gain, k_gain_across, cos, sin, eps, HEAD_DIM)
    v_new = tl.load(row_ptr + NUM_KV_HEADS * (GROUP + 1) * HEAD_DIM + at)
    if has_new & (new_slot >= 0):
        tl.store(k_cache_ptr + new_slot * stride + at[None, :], k_new)
        tl.store(v_cache_ptr + new_slot * stride + at, v_new)
    own_score = tl.sum(q.to(tl.float32) * k_new.to(tl.float32), 1) * scale
    highest = tl.where(has_new, own_score, float("-inf"))
    total = tl.where(has_new, tl.full([BLOCK_G], 1.0, tl.float32), 0.0)
    acc = tl.where(has_new, v_new.to(tl.float32)[None, :], tl.zeros([BLOCK_G, HEAD_DIM], tl.float32))
    highest, total, acc = _attend(q, k, v, inside, scale, highest, total, acc, PRECISION)
    for start in range(first + BLOCK_N, old, BLOCK_N):
        k, v, inside = _load_turn(k_cache_ptr, v_cache_ptr, block, start, old, block_size, stride, at, BLOCK_N)
        block = tl.load(table_ptr + tl.minimum(start + BLOCK_N, last - 1) // block_size)
        highest, total, acc = _attend(q, k, v, inside, scale, highest, total, acc, PRECISION)
    task = seq * NUM_KV_HEADS + kv_head
    rows = task * GROUP + g
    if NUM_SPLITS == 1:  # a padded row, without any key, becomes zero
        out = (acc / tl.where(total > 0, total, 1.0)[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + rows[:, None] * HEAD_DIM + d[None, :], out, mask=g[:, None] < GROUP)
    else:
        part = rows * NUM_SPLITS + split
        tl.store(max_ptr + part, highest, mask=g < GROUP)
        tl.store(sum_ptr + part, total, mask=g < GROUP)
        tl.store(acc_ptr + part[:, None] * HEAD_DIM + d[None, :], acc, mask=g[:, None] < GROUP)
        if _is_last(arrived_ptr + task, NUM_SPLITS):
            for h in tl.static_range(GROUP):
                row = task * GROUP + h
                join_splits(acc_ptr, max_ptr, sum_ptr, out_ptr, row, NUM_SPLITS, HEAD_DIM, BLOCK_S, HEAD_DIM)


class FusedDecode:
    """The kernel beside its counters: how many programs of each sequence and KV head have ended. One for each engine.

    Every launch leaves the counters at zero. They are made at the first call, which no CUDA graph may record.
    """

    def __init__(self) -> None:
        self._arrived: torch.Tensor | None = None

    @staticmethod
    def suits(qkv: torch.Tensor, attention: Attention, context: ForwardContext) -> bool:
        """True for a decode step of 3 to 8 sequences with our attention, where kernels start early or on a CPU."""
        if context.is_prefill or attention.k_cache is None or not attention.backend.fuses_decode:
            return False
        fits = attention.k_cache.shape[1] % _BLOCK_N == 0 and attention.head_dim in (16, 32, 64, 128)
        known = qkv.device.type == "cpu" or starts_early(qkv.device)
        return fits and known and MIN_SEQS <= qkv.shape[0] <= MAX_SEQS

    def __call__(
        self,
        qkv: torch.Tensor,
        q_gain: torch.Tensor,
        k_gain: torch.Tensor,
        eps: float,
        cos_sin: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        context: ForwardContext,
    ) -> torch.Tensor:
        """qkv [B, (Hq + 2 * Hkv) * D] -> attention of one row a sequence [B, Hq, D]; the new K and V are stored.

        cos_sin [max_positions, D] fp32; positions [B] int64. For what `suits`.
        """
        k_cache, v_cache, tables = attention.k_cache, attention.v_cache, context.block_tables
        assert k_cache is not None
        assert v_cache is not None
        assert tables is not None
        num_seqs, num_kv_heads, head_dim = len(qkv), attention.num_kv_heads, attention.head_dim
        group = attention.num_heads // num_kv_heads
        splits = choose_splits(num_seqs * num_kv_heads, qkv.device)
        if self._arrived is None:
            self._arrived = torch.zeros(MAX_SEQS * num_kv_heads, dtype=torch.int32, device=qkv.device)
        out = torch.empty(num_seqs, attention.num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
        acc, split_max, split_sum = split_buffers(out, splits)
        _fused_decode_kernel[(num_kv_heads, splits, num_seqs)](
            qkv,
            q_gain,
            k_gain,
            cos_sin,
            positions,
            context.slot_mapping,
            k_cache,
            v_cache,
            tables,
            context.context_lens,
            context.context_lens if context.order is None else context.order,
            acc,
            split_max,
            split_sum,
            out,
            self._arrived,
            attention.scale,
            eps,
            qkv.stride(0),
            tables.stride(0),
            k_cache.shape[1],
            NUM_SPLITS=splits,
            NUM_KV_HEADS=num_kv_heads,
            GROUP=group,
            HEAD_DIM=head_dim,
            BLOCK_G=max(16, triton.next_power_of_2(group)),
            BLOCK_N=_BLOCK_N,
            BLOCK_S=triton.next_power_of_2(splits),
            ORDERED=context.order is not None,
            PRECISION=dot_precision(qkv.dtype),
            num_warps=2,
            num_stages=3 if num_seqs * num_kv_heads > 32 else 2,  # turns under way, for longer splits
            **early(qkv.device),
        )
        return out


def choose_splits(num_tasks: int, device: torch.device) -> int:
    """Splits of every context for sequences x KV heads = num_tasks: as many as have a place at once, at most 12.

    That is four programs for each multiprocessor, because of their registers. Best on an H200 for 8 sequences of 300 to
    4,000 tokens. It depends on the batch size alone, so that a captured graph stays right while contexts grow.
    """
    splits = max(1, min(MAX_SPLITS, 4 * multiprocessors(device) // num_tasks))
    return splits // 4 * 4 or splits  # few different numbers, because each is compiled for itself
