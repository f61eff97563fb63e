"""Paged decode attention in Triton: split over the context, with the query heads of one KV head packed together.

At batch 1 one program a head could not fill a GPU, so the context is cut into splits that run side by side; each
leaves a partial softmax (maximum, sum, weighted values) and a second kernel joins them (Flash-Decoding, Dao et al.,
2023). Packing the query heads that share a KV head reads each key once for all of them.
"""

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.launch import dot_precision, early, multiprocessors, shared_memory, wait_for_inputs

MAX_SPLITS = 32


@triton.jit(do_not_specialize=["num_splits"])  # one compilation for all numbers of splits
def _decode_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    block_tables_ptr,
    context_lens_ptr,
    order_ptr,
    acc_ptr,
    max_ptr,
    sum_ptr,
    out_ptr,
    scale,
    q_stride,
    table_stride,
    block_size,
    num_splits,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WHOLE_PAGES: tl.constexpr,
    ORDERED: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (KV head, split, sequence): attention of GROUP query heads to one split of the keys.

    The heads of a token lie behind each other in the cache, so programs that run together read neighbouring memory.
    WHOLE_PAGES: BLOCK_N divides block_size, so the keys of one turn lie behind each other too. ORDERED: the third
    number counts in `order`, because a GPU begins with the lowest numbers.
    """
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    seq = tl.program_id(2).to(tl.int64)
    if ORDERED:
        seq = tl.load(order_ptr + seq).to(tl.int64)
    context = tl.load(context_lens_ptr + seq)
    per_split = tl.cdiv(tl.cdiv(context, num_splits), BLOCK_N) * BLOCK_N
    first = split * per_split
    last = tl.minimum(first + per_split, context)

    g = tl.arange(0, BLOCK_G)
    d = tl.arange(0, BLOCK_D)
    n = tl.arange(0, BLOCK_N)
    head = kv_head * GROUP + g
    gd_mask = (g[:, None] < GROUP) & (d[None, :] < HEAD_DIM)
    table_ptr = block_tables_ptr + seq * table_stride
    block = first
    if WHOLE_PAGES:  # each turn's block is looked up before the turn; a padded row, and a split without keys, look too
        block = tl.load(table_ptr + tl.minimum(first, tl.maximum(context - 1, 0)) // block_size)
    wait_for_inputs(EARLY)
    q = tl.load(q_ptr + seq * q_stride + head[:, None] * HEAD_DIM + d[None, :], mask=gd_mask, other=0.0)

    running_max = tl.full([BLOCK_G], float("-inf"), tl.float32)
    running_sum = tl.zeros([BLOCK_G], tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    for start in range(first, last, BLOCK_N):
        position = start + n
        inside = position < last
        if WHOLE_PAGES:
            slot = block.to(tl.int64) * block_size + start % block_size + n
            block = tl.load(table_ptr + tl.minimum(start + BLOCK_N, last - 1) // block_size)
        else:
            blocks = tl.load(table_ptr + position // block_size, mask=inside, other=0)
            slot = blocks.to(tl.int64) * block_size + position % block_size
        offset = (slot[:, None] * NUM_KV_HEADS + kv_head) * HEAD_DIM + d[None, :]
        nd_mask = inside[:, None] & (d[None, :] < HEAD_DIM)
        k = tl.load(k_cache_ptr + offset, mask=nd_mask, other=0.0)
        v = tl.load(v_cache_ptr + offset, mask=nd_mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1))
        rescale = tl.exp(running_max - new_max)
        p = tl.exp(scores - new_max[:, None])
        running_sum = running_sum * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        running_max = new_max

    row = (seq * NUM_KV_HEADS * GROUP + head) * num_splits + split
    if not IS_SPLIT:  # nothing to join; a padded row, without any key, becomes zero
        out = acc / tl.where(running_sum > 0, running_sum, 1.0)[:, None]
        tl.store(out_ptr + row[:, None] * HEAD_DIM + d[None, :], out.to(out_ptr.dtype.element_ty), mask=gd_mask)
    else:
        tl.store(max_ptr + row, running_max, mask=g < GROUP)
        tl.store(sum_ptr + row, running_sum, mask=g < GROUP)
        tl.store(acc_ptr + row[:, None] * HEAD_DIM + d[None, :], acc, mask=gd_mask)


@triton.jit
def join_splits(
    acc_ptr,
    max_ptr,
    sum_ptr,
    out_ptr,
    row,
    num_splits,
    HEAD_DIM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Join the splits of one row (sequence x head); without any key (a padded row) the result is zero.

    Other programs have just written them, so they are read past this one's own cache (".cg").
    """
    s = tl.arange(0, BLOCK_S)
    d = tl.arange(0, BLOCK_D)
    inside = s < num_splits
    split_max = tl.load(max_ptr + row * num_splits + s, mask=inside, other=float("-inf"), cache_modifier=".cg")
    split_sum = tl.load(sum_ptr + row * num_splits + s, mask=inside, other=0.0, cache_modifier=".cg")
    highest = tl.max(split_max, 0)
    # A split beyond the context has sum 0 and maximum -inf; min() keeps -inf minus -inf out of the exponent.
    weight = tl.where(split_sum > 0, tl.exp(tl.minimum(split_max - tl.maximum(highest, -1e30), 0.0)), 0.0)
    total = tl.sum(weight * split_sum, 0)
    mask = inside[:, None] & (d[None, :] < HEAD_DIM)
    acc_ptrs = acc_ptr + (row * num_splits + s)[:, None] * HEAD_DIM + d[None, :]
    acc = tl.load(acc_ptrs, mask=mask, other=0.0, cache_modifier=".cg")
    out = tl.sum(acc * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + row * HEAD_DIM + d, out.to(out_ptr.dtype.element_ty), mask=d < HEAD_DIM)


@triton.jit(do_not_specialize=["num_splits"])
def _join_kernel(
    acc_ptr,
    max_ptr,
    sum_ptr,
    out_ptr,
    num_splits,
    HEAD_DIM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (sequence x head): join its splits."""
    row = tl.program_id(0).to(tl.int64)
    wait_for_inputs(EARLY)
    join_splits(acc_ptr, max_ptr, sum_ptr, out_ptr, row, num_splits, HEAD_DIM, BLOCK_S, BLOCK_D)


def choose_splits(num_seqs: int, num_kv_heads: int, device: torch.device) -> int:
    """Splits of every context: four to eight programs for each multiprocessor, a power of two, at most 32.

    From three sequences x KV heads for each multiprocessor on there is one split, because joining costs more than it
    wins. Both were best on an H200 in the chains of scripts/kernel_times.py, for 1 to 64 sequences of 8 KV heads.

    It depends on the batch size alone, so that a captured graph stays right while contexts grow.
    """
    tasks, processors = num_seqs * num_kv_heads, multiprocessors(device)
    if tasks >= 3 * processors:
        return 1
    splits = 1
    while splits * tasks < 4 * processors and splits < MAX_SPLITS:
        splits *= 2
    return splits


def split_buffers(out: torch.Tensor, splits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Room for the splits of out [B, Hq, D], fp32: weighted values [B, Hq, splits, D], maxima and sums [B, Hq, splits].

    A single split writes `out` itself, and gets that.
    """
    if splits == 1:
        return out, out, out
    num_seqs, num_heads, head_dim = out.shape
    acc = torch.empty(num_seqs, num_heads, splits, head_dim, dtype=torch.float32, device=out.device)
    split_max = torch.empty(num_seqs, num_heads, splits, dtype=torch.float32, device=out.device)
    return acc, split_max, torch.empty_like(split_max)


def _tile(num_tasks: int, row_bytes: int, device: torch.device) -> tuple[int, int, int]:
    """(keys that a program loads in one turn, turns under way at a time, warps) for sequences x KV heads = num_tasks.

    Found on an H200 with 8 KV heads. Few warps are faster where contexts are of one length, but a program with a long
    one reads slowly: 512 sequences of 160 tokens take 89 us with 32 keys and one warp and 95 with 64 and two, 128 of
    100 to 2,000 tokens 162 and 127. For 600 to 899 tasks those of 64 keys would fill a GPU not quite twice. What does
    not fit into shared memory, 2 x keys x turns x row_bytes, is made smaller.
    """
    tiles = [(64, 2, 4), (32, 2, 4), (16, 2, 4)]
    if num_tasks <= 40:
        tiles.insert(0, (32, 2, 2))
    elif 600 <= num_tasks < 900:
        tiles.insert(0, (128, 3, 4))
    elif 400 <= num_tasks <= 2600:
        tiles.insert(0, (64, 2, 2))
    elif num_tasks > 2600:
        tiles.insert(0, (32, 2, 1))
    room = shared_memory(device) - 8192  # the queries and the scores take some too
    return next((t for t in tiles if 2 * t[0] * t[1] * row_bytes <= room), tiles[-1])


def paged_decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    num_splits: int | None = None,
    order: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of one row a sequence q [B, Hq, D] to its cached keys; [B, Hq, D].

    Caches [blocks, block_size, Hkv, D], block_tables [B, max_blocks] int32, context_lens [B] int32 (0: padded row).
    Reads 2 x context x Hkv x D elements a sequence, once for all query heads of a group.
    order [B] int32: the rows in the order in which they are begun, None for as they are. With the longest first no
    program is left alone with a long context at the end (LPT scheduling, Graham, 1969); the result is the same.
    """
    num_seqs, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    splits = num_splits or choose_splits(num_seqs, num_kv_heads, q.device)
    group = num_heads // num_kv_heads
    out = torch.empty(num_seqs, num_heads, head_dim, dtype=q.dtype, device=q.device)
    acc, split_max, split_sum = split_buffers(out, splits)
    block_d = max(16, triton.next_power_of_2(head_dim))
    block_n, stages, warps = _tile(num_seqs * num_kv_heads, block_d * q.element_size(), q.device)
    _decode_kernel[(num_kv_heads, splits, num_seqs)](
        q,
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        context_lens if order is None else order,
        acc,
        split_max,
        split_sum,
        out,
        scale,
        q.stride(0),
        block_tables.stride(0),
        block_size,
        splits,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        IS_SPLIT=splits > 1,
        BLOCK_G=max(16, triton.next_power_of_2(group)),
        BLOCK_D=block_d,
        BLOCK_N=block_n,
        WHOLE_PAGES=block_size % block_n == 0,
        ORDERED=order is not None,
        PRECISION=dot_precision(q.dtype),
        num_warps=warps,
        num_stages=stages,
        **early(q.device),
    )
    if splits == 1:
        return out
    _join_kernel[(num_seqs * num_heads,)](
        acc,
        split_max,
        split_sum,
        out,
        splits,
        HEAD_DIM=head_dim,
        BLOCK_S=MAX_SPLITS,
        BLOCK_D=block_d,
        num_warps=4,
        **early(q.device),
    )
    return out
