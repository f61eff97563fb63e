"""The pieces of the fused decode kernel (`attend.py`), in the order in which a program runs through them."""

import triton
import triton.language as tl


@triton.jit
def keys_of_split(split, num_splits, cached, TURN: tl.constexpr):
    """(first, last + 1) of a split's keys, in whole turns; and how many splits have any, which is at least one."""
    per_split = tl.maximum(tl.cdiv(tl.cdiv(cached, num_splits), TURN), 1) * TURN
    first = split * per_split
    return first, tl.minimum(first + per_split, cached), tl.maximum(tl.cdiv(cached, per_split), 1)


@triton.jit
def load_turn(
    k_ptr,
    v_ptr,
    table_ptr,
    start,
    last,
    block_size,
    ROW: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WHOLE_PAGES: tl.constexpr,
):
    """Keys and values [PARTS, BLOCK_N, BLOCK_D] of one head from position `start` on, and which are before `last`.

    WHOLE_PAGES: no part crosses a block.
    """
    part = tl.arange(0, PARTS)
    position = start + part[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    if WHOLE_PAGES:
        begin = start + part * BLOCK_N
        block = tl.load(table_ptr + begin // block_size, mask=begin < last, other=0).to(tl.int64)[:, None]
    else:
        block = tl.load(table_ptr + position // block_size, mask=position < last, other=0).to(tl.int64)
    slot = block * block_size + position % block_size
    d = tl.arange(0, BLOCK_D)[None, None, :]
    at = slot[:, :, None] * ROW + d
    mask = (position < last)[:, :, None] & (d < HEAD_DIM)
    return tl.load(k_ptr + at, mask=mask, other=0.0), tl.load(v_ptr + at, mask=mask, other=0.0), position < last


@triton.jit
def head_sides(q_weight_ptr, k_weight_ptr, cos_sin_ptr, position_ptr, HALF: tl.constexpr, BLOCK_D: tl.constexpr):
    """What turns the queries' heads, and the keys', at one position: see `_head_side`."""
    angles_ptr = cos_sin_ptr + tl.load(position_ptr) * 2 * HALF
    return _head_side(q_weight_ptr, angles_ptr, HALF, BLOCK_D), _head_side(k_weight_ptr, angles_ptr, HALF, BLOCK_D)


@triton.jit
def _head_side(weight_ptr, angles_ptr, HALF: tl.constexpr, BLOCK_D: tl.constexpr):
    """What turns a head: weights of each element and of its partner, cosines, and sines with their sign; [BLOCK_D]."""
    d = tl.arange(0, BLOCK_D)
    inside = d < 2 * HALF
    partner = tl.where(d < HALF, d + HALF, d - HALF)
    weight = tl.load(weight_ptr + d, mask=inside, other=0.0).to(tl.float32)
    partner_weight = tl.load(weight_ptr + partner, mask=inside, other=0.0).to(tl.float32)
    cos = tl.load(angles_ptr + d % HALF, mask=inside, other=0.0)
    sin = tl.load(angles_ptr + HALF + d % HALF, mask=inside, other=0.0)
    return weight, partner_weight, cos, tl.where(d < HALF, -sin, sin)


@triton.jit
def normed_and_rotated(
    heads_ptr, side, eps, num_heads: tl.constexpr, HALF: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr
):
    """Heads [BLOCK_H, BLOCK_D] that lie behind each other at heads_ptr, normalised and rotated."""
    weight, partner_weight, cos, signed_sin = side
    h = tl.arange(0, BLOCK_H)[:, None]
    d = tl.arange(0, BLOCK_D)
    mask = (h < num_heads) & (d[None, :] < 2 * HALF)
    partner = tl.where(d < HALF, d + HALF, d - HALF)
    own = tl.load(heads_ptr + h * 2 * HALF + d[None, :], mask=mask, other=0.0)
    other = tl.load(heads_ptr + h * 2 * HALF + partner[None, :], mask=mask, other=0.0)
    dtype = own.dtype
    own32 = own.to(tl.float32)
    other32 = other.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(own32 * own32, 1) / (2 * HALF) + eps)
    # Rounded as the reference rounds: after the scaling and after the weight.
    own32 = ((own32 * scale[:, None]).to(dtype).to(tl.float32) * weight[None, :]).to(dtype).to(tl.float32)
    other32 = ((other32 * scale[:, None]).to(dtype).to(tl.float32) * partner_weight[None, :]).to(dtype).to(tl.float32)
    return (own32 * cos[None, :] + other32 * signed_sin[None, :]).to(dtype)


@triton.jit
def new_token(
    is_here,
    new_ptr,
    q,
    k_side,
    slot,
    k_ptr,
    v_ptr,
    scale,
    eps,
    ROW: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Store the newest key and value of one head at `slot` (-1: nowhere) and attend to them, if it is here.

    new_ptr: the key in the row of the QKV product; the value lies ROW behind it. Returns the scores [BLOCK_G], -inf
    elsewhere, and the value [1, BLOCK_D].
    """
    d = tl.arange(0, BLOCK_D)[None, :]
    score = tl.full([BLOCK_G], float("-inf"), tl.float32)
    value = tl.zeros([1, BLOCK_D], tl.float32)
    if is_here:
        k = normed_and_rotated(new_ptr, k_side, eps, 1, HALF, 1, BLOCK_D)
        v = tl.load(new_ptr + ROW + d, mask=d < 2 * HALF, other=0.0)
        score = tl.sum(q.to(tl.float32) * k.to(tl.float32), 1) * scale
        value = v.to(tl.float32)
        if slot >= 0:
            tl.store(k_ptr + slot * ROW + d, k, mask=d < 2 * HALF)
            tl.store(v_ptr + slot * ROW + d, v, mask=d < 2 * HALF)
    return score, value


@triton.jit
def attend_to_turns(
    q,
    k,
    v,
    inside,
    k_ptr,
    v_ptr,
    table_ptr,
    first,
    last,
    scale,
    block_size,
    ROW: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WHOLE_PAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """q [BLOCK_G, BLOCK_D] over keys first .. last - 1, the first turn of which is k, v and inside.

    The next turn is on its way while one is worked on. Returns maximum, sum [PARTS, BLOCK_G] and weighted values
    [PARTS, BLOCK_D, BLOCK_G] of each part's softmax; a part without keys has -inf, 0 and zeros.
    """
    queries = tl.broadcast_to(tl.trans(q)[None, :, :], [PARTS, BLOCK_D, BLOCK_G])
    part_max = tl.full([PARTS, BLOCK_G], float("-inf"), tl.float32)
    part_sum = tl.zeros([PARTS, BLOCK_G], tl.float32)
    acc = tl.zeros([PARTS, BLOCK_D, BLOCK_G], tl.float32)
    for start in range(first, last, PARTS * BLOCK_N):
        following = start + PARTS * BLOCK_N
        next_k, next_v, next_inside = load_turn(
            k_ptr, v_ptr, table_ptr, following, last, block_size, ROW, HEAD_DIM, PARTS, BLOCK_D, BLOCK_N, WHOLE_PAGES
        )
        scores = tl.dot(k, queries, input_precision=PRECISION) * scale
        scores = tl.where(inside[:, :, None], scores, float("-inf"))
        new_max = tl.maximum(part_max, tl.max(scores, 1))
        level = tl.where(new_max == float("-inf"), 0.0, new_max)
        rescale = tl.exp(part_max - level)
        p = tl.exp(scores - level[:, None, :])
        part_sum = part_sum * rescale + tl.sum(p, 1)
        values = tl.dot(tl.permute(v, (0, 2, 1)), p.to(v.dtype), input_precision=PRECISION)
        acc = acc * rescale[:, None, :] + values
        part_max = new_max
        k = next_k
        v = next_v
        inside = next_inside
    return part_max, part_sum, acc


@triton.jit
def join_parts(part_max, part_sum, acc, new_score, new_value):
    """The parts and the new token, with its score [BLOCK_G] and value [1, BLOCK_D], as one softmax.

    Maximum, sum [BLOCK_G] and weighted values [BLOCK_D, BLOCK_G]. A score of -inf stands for no new token.
    """
    highest = tl.maximum(tl.max(part_max, 0), new_score)
    level = tl.where(highest == float("-inf"), 0.0, highest)
    weight = tl.exp(part_max - level[None, :])
    new_weight = tl.exp(new_score - level)
    total = tl.sum(part_sum * weight, 0) + new_weight
    return highest, total, tl.sum(acc * weight[:, None, :], 0) + tl.trans(new_value) * new_weight[None, :]


@triton.jit
def _join_splits(
    head,
    num_used,
    num_splits,
    parts_ptr,
    out_ptr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """The output of one head from the softmaxes of its splits."""
    d = tl.arange(0, BLOCK_D)
    s = tl.arange(0, BLOCK_S)
    used = s < num_used
    row_ptr = parts_ptr + (head * num_splits + s) * (HEAD_DIM + 4)
    # .cg: from the L2 cache, where the other programs' writes are; this one's L1 may hold older bytes
    split_max = tl.load(row_ptr + HEAD_DIM, mask=used, other=float("-inf"), cache_modifier=".cg")
    split_sum = tl.load(row_ptr + HEAD_DIM + 1, mask=used, other=0.0, cache_modifier=".cg")
    weight = tl.exp(split_max - tl.max(split_max, 0))
    inside = used[:, None] & (d[None, :] < HEAD_DIM)
    values = tl.load(row_ptr[:, None] + d[None, :], mask=inside, other=0.0, cache_modifier=".cg")
    out = tl.sum(values * weight[:, None], 0) / tl.sum(split_sum * weight, 0)
    tl.store(out_ptr + head * HEAD_DIM + d, out.to(out_ptr.dtype.element_ty), mask=d < HEAD_DIM)


@triton.jit
def finish_split(
    softmax,
    first_head,
    split,
    num_used,
    num_splits,
    parts_ptr,
    ticket_ptr,
    out_ptr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Write the output of the only split; of several each leaves its softmax, and the last one joins them all.

    parts: [heads, splits, HEAD_DIM + 4] fp32: weighted values, maximum, sum. ticket: an int32 zero, also afterwards.
    """
    highest, total, values = softmax
    g = tl.arange(0, BLOCK_G)
    d = tl.arange(0, BLOCK_D)
    mask = (d[:, None] < HEAD_DIM) & (g[None, :] < GROUP)
    if num_used == 1:
        out = values / tl.where(total > 0, total, 1.0)[None, :]  # a padded row, without any key, becomes zero
        at = (first_head + g[None, :]) * HEAD_DIM + d[:, None]
        tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        row_ptr = parts_ptr + ((first_head + g) * num_splits + split) * (HEAD_DIM + 4)
        tl.store(row_ptr[None, :] + d[:, None], values, mask=mask)
        tl.store(row_ptr + HEAD_DIM, highest, mask=g < GROUP)
        tl.store(row_ptr + HEAD_DIM + 1, total, mask=g < GROUP)
        tl.debug_barrier()  # all threads have written before one draws the ticket, which publishes what they wrote
        if tl.atomic_add(ticket_ptr, 1, sem="acq_rel", scope="gpu") == num_used - 1:
            for i in tl.static_range(GROUP):
                _join_splits(first_head + i, num_used, num_splits, parts_ptr, out_ptr, HEAD_DIM, BLOCK_D, BLOCK_S)
            tl.store(ticket_ptr, 0)
