"""Paged prefill attention in Triton: packed variable-length queries against cached and new keys, causal.

Online softmax over blocks of keys (FlashAttention, Dao et al., 2022, arXiv:2205.14135).
"""

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.launch import dot_precision

BLOCK_M = 64  # queries of a program
BLOCK_N = 64  # keys a program reads at a time


@triton.jit
def _prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    block_tables_ptr,
    cu_q_ptr,
    cu_k_ptr,
    scale,
    q_stride,
    k_stride,
    v_stride,
    out_stride,
    table_stride,
    block_size,
    PAGED: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (query block, sequence, query head). k and v are the caches when PAGED, else the packed rows."""
    first_query = tl.program_id(0) * BLOCK_M
    seq = tl.program_id(1).to(tl.int64)
    head = tl.program_id(2)
    kv_head = head // GROUP
    q_start = tl.load(cu_q_ptr + seq).to(tl.int64)
    k_start = tl.load(cu_k_ptr + seq).to(tl.int64)
    q_len = (tl.load(cu_q_ptr + seq + 1) - q_start).to(tl.int32)
    k_len = (tl.load(cu_k_ptr + seq + 1) - k_start).to(tl.int32)
    if first_query >= q_len:
        return
    m = first_query + tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    md_mask = (m[:, None] < q_len) & (d[None, :] < HEAD_DIM)
    q = tl.load(q_ptr + (q_start + m)[:, None] * q_stride + head * HEAD_DIM + d[None, :], mask=md_mask, other=0.0)
    prefix = k_len - q_len  # query m sees keys 0 .. prefix + m
    end = tl.minimum(k_len, prefix + first_query + BLOCK_M)

    running_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    running_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, end, BLOCK_N):
        position = start + n
        inside = position < k_len
        if PAGED:
            block = tl.load(block_tables_ptr + seq * table_stride + position // block_size, mask=inside, other=0)
            row = block.to(tl.int64) * block_size + position % block_size
        else:
            row = k_start + position
        nd_mask = inside[:, None] & (d[None, :] < HEAD_DIM)
        column = kv_head * HEAD_DIM + d[None, :]
        k = tl.load(k_ptr + row[:, None] * k_stride + column, mask=nd_mask, other=0.0)
        v = tl.load(v_ptr + row[:, None] * v_stride + column, mask=nd_mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        visible = inside[None, :] & (position[None, :] <= prefix + m[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1))
        rescale = tl.exp(running_max - new_max)
        p = tl.exp(scores - new_max[:, None])
        running_sum = running_sum * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        running_max = new_max

    out = acc / running_sum[:, None]
    where = (q_start + m)[:, None] * out_stride + head * HEAD_DIM + d[None, :]
    tl.store(out_ptr + where, out.to(out_ptr.dtype.element_ty), mask=md_mask)


def paged_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    scale: float,
    block_tables: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of packed rows q [T, Hq, D]; [T, Hq, D].

    With block_tables [B, max_blocks] int32, k and v are the caches [blocks, block_size, Hkv, D]; without, they are the
    packed rows [T, Hkv, D] of this step. Rows may be strided; heads within a row must be contiguous.
    """
    num_tokens, num_heads, head_dim = q.shape
    paged = block_tables is not None
    num_kv_heads = k.shape[-2]
    out = torch.empty(num_tokens, num_heads, head_dim, dtype=q.dtype, device=q.device)
    num_seqs = cu_seqlens_q.shape[0] - 1
    _prefill_kernel[(triton.cdiv(max_seqlen_q, BLOCK_M), num_seqs, num_heads)](
        q,
        k,
        v,
        out,
        block_tables if block_tables is not None else cu_seqlens_q,  # not read unless PAGED
        cu_seqlens_q,
        cu_seqlens_k,
        scale,
        q.stride(0),
        k.stride(-3),
        v.stride(-3),
        out.stride(0),
        block_tables.stride(0) if block_tables is not None else 0,
        k.shape[1] if paged else 1,
        PAGED=paged,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        PRECISION=dot_precision(q.dtype),
        num_warps=4,
        num_stages=2,
    )
    return out
