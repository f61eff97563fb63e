"""A decode step's attention for a few sequences, from the QKV product to the heads' output, in one kernel.

QK norm, rotary embedding, the KV store and paged attention: what `TorchOps.attend` does in a dozen steps. With few
sequences the time is that of waiting, for the kernel before and for memory. So a program asks for its first keys and
values before the kernel before has ended: earlier steps stored them. The newest token's key and value never leave the
program before they are used; they begin its softmax.

The context is cut into splits, which run side by side (Flash-Decoding, Dao et al., 2023), and a split's turn of keys
into PARTS, one a warp, each with a softmax (maximum, sum, weighted values) of its own. Parts are joined inside the
program. Of the splits, each leaves its softmax in memory and draws a ticket; the one with the last ticket finds all the
others written and joins them.
"""

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.decode import MAX_SPLITS, choose_splits
from nanovllm.paged_kv.kernels.launch import dot_precision, early, wait_for_inputs
from nanovllm.qwen3.kernels.attend_parts import (
    attend_to_turns,
    finish_split,
    head_sides,
    join_parts,
    keys_of_split,
    load_turn,
    new_token,
    normed_and_rotated,
)

MAX_SEQS = 16  # with more, other programs have keys to load while one waits, and separate kernels are faster
_PARTS = 4
_BLOCK_N = 16  # keys of one part in one turn
_FILL = 3  # how many times the programs fill the GPU


@triton.jit(do_not_specialize=["num_splits"])  # one compilation for all numbers of splits
def _attend_kernel(
    qkv_ptr,
    q_weight_ptr,
    k_weight_ptr,
    cos_sin_ptr,
    position_ptr,
    slot_ptr,
    k_cache_ptr,
    v_cache_ptr,
    block_tables_ptr,
    context_lens_ptr,
    parts_ptr,
    tickets_ptr,
    out_ptr,
    scale,
    eps,
    qkv_stride,
    table_stride,
    block_size,
    num_splits,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_S: tl.constexpr,
    WHOLE_PAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (KV head, split, sequence): GROUP query heads against one split of the keys that are cached.

    The newest token belongs to split 0, which also stores it.
    """
    HEAD_DIM: tl.constexpr = 2 * HALF
    ROW: tl.constexpr = NUM_KV_HEADS * HEAD_DIM
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    seq = tl.program_id(2).to(tl.int64)
    row_ptr = qkv_ptr + seq * qkv_stride
    context = tl.load(context_lens_ptr + seq)
    first, last, num_used = keys_of_split(split, num_splits, tl.maximum(context - 1, 0), PARTS * BLOCK_N)
    if split < num_used:
        table_ptr = block_tables_ptr + seq * table_stride
        k_ptr = k_cache_ptr + kv_head * HEAD_DIM
        v_ptr = v_cache_ptr + kv_head * HEAD_DIM
        k, v, inside = load_turn(
            k_ptr, v_ptr, table_ptr, first, last, block_size, ROW, HEAD_DIM, PARTS, BLOCK_D, BLOCK_N, WHOLE_PAGES
        )
        q_side, k_side = head_sides(q_weight_ptr, k_weight_ptr, cos_sin_ptr, position_ptr + seq, HALF, BLOCK_D)
        slot = tl.load(slot_ptr + seq)
        wait_for_inputs(EARLY)

        q = normed_and_rotated(row_ptr + kv_head * GROUP * HEAD_DIM, q_side, eps, GROUP, HALF, BLOCK_G, BLOCK_D)
        new_ptr = row_ptr + (NUM_KV_HEADS * GROUP + kv_head) * HEAD_DIM
        here = (split == 0) & (context > 0)
        score, value = new_token(here, new_ptr, q, k_side, slot, k_ptr, v_ptr, scale, eps, ROW, HALF, BLOCK_G, BLOCK_D)
        part_max, part_sum, acc = attend_to_turns(
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
            ROW,
            HEAD_DIM,
            PARTS,
            BLOCK_G,
            BLOCK_D,
            BLOCK_N,
            WHOLE_PAGES,
            PRECISION,
        )
        finish_split(
            join_parts(part_max, part_sum, acc, score, value),
            (seq * NUM_KV_HEADS + kv_head) * GROUP,
            split,
            num_used,
            num_splits,
            parts_ptr,
            tickets_ptr + seq * NUM_KV_HEADS + kv_head,
            out_ptr,
            GROUP,
            HEAD_DIM,
            BLOCK_G,
            BLOCK_D,
            BLOCK_S,
        )


def suits(qkv: torch.Tensor) -> bool:
    """True for a decode batch qkv [B, ..] that this kernel serves faster than one kernel after the other."""
    return qkv.shape[0] <= MAX_SEQS


def attend_one_row(
    qkv: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    eps: float,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    num_heads: int,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    block_tables: torch.Tensor,
    context_lens: torch.Tensor,
    scale: float,
    tickets: torch.Tensor,
    num_splits: int | None = None,
) -> torch.Tensor:
    """qkv [B, (Hq + 2 * Hkv) * D] -> [B, Hq, D]; the new keys and values are stored at slot_mapping [B] (-1: nowhere).

    cos_sin [max_positions, D] fp32; positions [B] int64; caches [blocks, block_size, Hkv, D]; block_tables
    [B, max_blocks] and context_lens [B] int32, the new token counted (0: a padded row). tickets: at least B * Hkv int32
    zeros, which are zeros again afterwards.
    """
    num_seqs, head_dim = qkv.shape[0], q_weight.shape[0]
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = num_heads // num_kv_heads
    splits = num_splits or choose_splits(num_seqs, num_kv_heads, qkv.device, _FILL)
    out = torch.empty(num_seqs, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    parts = torch.empty(num_seqs * num_heads * splits, head_dim + 4, dtype=torch.float32, device=qkv.device)
    block_n = _BLOCK_N
    _attend_kernel[(num_kv_heads, splits, num_seqs)](
        qkv,
        q_weight,
        k_weight,
        cos_sin,
        positions,
        slot_mapping,
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        parts,
        tickets,
        out,
        scale,
        eps,
        qkv.stride(0),
        block_tables.stride(0),
        block_size,
        splits,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HALF=head_dim // 2,
        PARTS=_PARTS,
        BLOCK_G=max(8, triton.next_power_of_2(group)),
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        BLOCK_N=block_n,
        BLOCK_S=MAX_SPLITS,
        WHOLE_PAGES=block_size % block_n == 0,
        PRECISION=dot_precision(qkv.dtype),
        num_warps=_PARTS,
        num_stages=1,
        **early(qkv.device),
    )
    return out
