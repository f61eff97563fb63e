"""From one row of the QKV product to attention's inputs: QK norm, rotary embedding and the KV store in one pass."""

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.launch import early, wait_for_inputs


@triton.jit
def _norm_and_rotate(
    in_ptr,
    weight_a,
    weight_b,
    cos,
    sin,
    eps,
    first_head,
    num_heads: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    """Both rotated halves [BLOCK_H, BLOCK_HALF] of the heads that start at first_head of one row.

    weight_a, weight_b, cos, sin: [BLOCK_HALF] fp32, of the first half and the second.
    """
    h = tl.arange(0, BLOCK_H)
    d = tl.arange(0, BLOCK_HALF)
    mask = (h[:, None] < num_heads) & (d[None, :] < HALF)
    offset = (first_head + h[:, None]) * 2 * HALF + d[None, :]
    a = tl.load(in_ptr + offset, mask=mask, other=0.0)
    b = tl.load(in_ptr + offset + HALF, mask=mask, other=0.0)
    dtype = a.dtype
    a32 = a.to(tl.float32)
    b32 = b.to(tl.float32)
    scale = 1.0 / tl.sqrt((tl.sum(a32 * a32, 1) + tl.sum(b32 * b32, 1)) / (2 * HALF) + eps)
    # Rounded as the reference rounds: after the scaling and after the weight.
    a32 = ((a32 * scale[:, None]).to(dtype).to(tl.float32) * weight_a[None, :]).to(dtype).to(tl.float32)
    b32 = ((b32 * scale[:, None]).to(dtype).to(tl.float32) * weight_b[None, :]).to(dtype).to(tl.float32)
    first = a32 * cos[None, :] - b32 * sin[None, :]
    second = b32 * cos[None, :] + a32 * sin[None, :]
    return first.to(dtype), second.to(dtype)


@triton.jit
def _heads_kernel(
    qkv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cos_sin_ptr,
    position_ptr,
    slot_ptr,
    q_out_ptr,
    k_out_ptr,
    k_cache_ptr,
    v_cache_ptr,
    qkv_stride,
    eps,
    STORE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_KV: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (token, part): part 0 does the queries, part 1 the keys, part 2 stores the values."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    d = tl.arange(0, BLOCK_HALF)
    row_ptr = qkv_ptr + token * qkv_stride
    h = tl.arange(0, BLOCK_KV)
    kv_mask = (h[:, None] < NUM_KV_HEADS) & (d[None, :] < HALF)
    kv_offset = h[:, None] * 2 * HALF + d[None, :]
    kv_size = NUM_KV_HEADS * 2 * HALF
    slot = tl.load(slot_ptr + token).to(tl.int64)
    position = tl.load(position_ptr + token)
    cos = tl.load(cos_sin_ptr + position * 2 * HALF + d, mask=d < HALF, other=0.0)
    sin = tl.load(cos_sin_ptr + position * 2 * HALF + HALF + d, mask=d < HALF, other=0.0)
    weight_ptr = q_weight_ptr if part == 0 else k_weight_ptr
    weight_a = tl.load(weight_ptr + d, mask=d < HALF, other=0.0).to(tl.float32)
    weight_b = tl.load(weight_ptr + HALF + d, mask=d < HALF, other=0.0).to(tl.float32)
    wait_for_inputs(EARLY)
    if part == 2:
        if slot >= 0:
            v_ptr = row_ptr + (NUM_HEADS + NUM_KV_HEADS) * 2 * HALF + kv_offset
            first_v = tl.load(v_ptr, mask=kv_mask)
            second_v = tl.load(v_ptr + HALF, mask=kv_mask)
            tl.store(v_cache_ptr + slot * kv_size + kv_offset, first_v, mask=kv_mask)
            tl.store(v_cache_ptr + slot * kv_size + kv_offset + HALF, second_v, mask=kv_mask)
    else:
        if part == 0:
            first_q, second_q = _norm_and_rotate(
                row_ptr, weight_a, weight_b, cos, sin, eps, 0, NUM_HEADS, HALF, BLOCK_Q, BLOCK_HALF
            )
            hq = tl.arange(0, BLOCK_Q)
            mask = (hq[:, None] < NUM_HEADS) & (d[None, :] < HALF)
            out = q_out_ptr + token * NUM_HEADS * 2 * HALF + hq[:, None] * 2 * HALF + d[None, :]
            tl.store(out, first_q, mask=mask)
            tl.store(out + HALF, second_q, mask=mask)
        else:
            first_k, second_k = _norm_and_rotate(
                row_ptr, weight_a, weight_b, cos, sin, eps, NUM_HEADS, NUM_KV_HEADS, HALF, BLOCK_KV, BLOCK_HALF
            )
            tl.store(k_out_ptr + token * kv_size + kv_offset, first_k, mask=kv_mask)
            tl.store(k_out_ptr + token * kv_size + kv_offset + HALF, second_k, mask=kv_mask)
            if STORE:  # noqa: SIM102 - the one is known when the kernel is compiled, the other is not
                if slot >= 0:
                    tl.store(k_cache_ptr + slot * kv_size + kv_offset, first_k, mask=kv_mask)
                    tl.store(k_cache_ptr + slot * kv_size + kv_offset + HALF, second_k, mask=kv_mask)


def norm_rotate_store(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    slot_mapping: torch.Tensor,
    k_cache: torch.Tensor | None,
    v_cache: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """qkv [T, (Hq + 2 * Hkv) * D] -> q [T, Hq, D], k [T, Hkv, D], v [T, Hkv, D] (a view of qkv).

    q and k are normalised and rotated. With caches [blocks, block_size, Hkv, D], k and v are stored too.
    cos_sin: [max_positions, D] fp32; positions [T] int64; slot_mapping [T] int64.
    """
    num_tokens = qkv.shape[0]
    head_dim = q_weight.shape[0]
    q = torch.empty(num_tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    k = torch.empty(num_tokens, num_kv_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    store = k_cache is not None
    _heads_kernel[(num_tokens, 3 if store else 2)](
        qkv,
        q_weight,
        k_weight,
        cos_sin,
        positions,
        slot_mapping,
        q,
        k,
        k_cache if store else k,
        v_cache if store else k,
        qkv.stride(0),
        eps,
        STORE=store,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HALF=head_dim // 2,
        BLOCK_Q=triton.next_power_of_2(num_heads),
        BLOCK_KV=triton.next_power_of_2(num_kv_heads),
        BLOCK_HALF=triton.next_power_of_2(head_dim // 2),
        num_warps=4,
        **early(qkv.device),
    )
    v = qkv[:, (num_heads + num_kv_heads) * head_dim :].view(num_tokens, num_kv_heads, head_dim)
    return q, k, v
