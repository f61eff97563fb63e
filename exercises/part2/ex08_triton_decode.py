"""2.8 (bonus) Paged decode attention in Triton, with online softmax.

A context of 100,000 keys does not fit into a program's registers, so the keys are read BLOCK_N at a time, and the
softmax is worked out while reading. Three things are carried along: the highest score so far (m), the sum of the
weights so far (s), and the weighted sum of the values so far (acc). Weights are exp(score - m). When a chunk brings a
higher score, what was collected was measured against the old m and must be scaled by exp(old m - new m). Example with
the scores ln 1, ln 2, then ln 4 (chunks of two), and the values 8, 4, 1:

    after chunk 1   m = ln 2   s = 1/2 + 1 = 1.5        acc = 8 x 1/2 + 4 x 1 = 8
    chunk 2         m = ln 4   rescale = exp(ln 2 - ln 4) = 1/2
                    s = 1.5 x 1/2 + 1 = 1.75            acc = 8 x 1/2 + 1 x 1 = 5
    output          5 / 1.75 = 2.857...                 the same as (1 x 8 + 2 x 4 + 4 x 1) / 7

The grader runs the kernel in Triton's interpreter. In a notebook or script of yours set the environment variable
TRITON_INTERPRET=1 before anything imports triton.
"""

import torch
import triton
import triton.language as tl

from nanovllm.course import ExerciseNotDone

BLOCK_N = 16  # keys that a program reads at a time


@triton.jit
def decode_kernel(
    q_ptr,
    k_cache_ptr,
    v_cache_ptr,
    block_tables_ptr,
    context_lens_ptr,
    out_ptr,
    scale,
    q_stride,
    table_stride,
    block_size,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Program (i, h): the attention of query head h of sequence i, written to out[i, h].

    q_ptr: [B, Hq, D], q_stride numbers from one sequence to the next. block_tables_ptr: [B, max_blocks] int32,
    table_stride numbers a row. context_lens_ptr: [B] int32; 0 marks a padded row, whose output is 0.
    The number of KV head g in dimension x of a slot is k_cache_ptr + (slot x NUM_KV_HEADS + g) x HEAD_DIM + x.
    BLOCK_D: HEAD_DIM rounded up to a power of two. out_ptr: [B, Hq, D] without gaps.
    Write to out_ptr only: q is a view of a larger tensor, and the caches are the engine's.
    """
    raise ExerciseNotDone("2.8 triton_decode", "loop over range(0, context, BLOCK_N): what is carried along?")


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
    """Launch one program for each sequence and query head. This function is complete; it does not split contexts.

    q: [B, Hq, D]. Caches: [blocks, block_size, Hkv, D]. block_tables: [B, max_blocks] int32. context_lens: [B] int32.
    num_splits, order (which rows to begin first) change no result: they make the engine's own kernel faster.
    """
    num_seqs, num_heads, head_dim = q.shape
    out = torch.empty(num_seqs, num_heads, head_dim, dtype=q.dtype, device=q.device)
    decode_kernel[(num_seqs, num_heads)](
        q,
        k_cache,
        v_cache,
        block_tables,
        context_lens,
        out,
        scale,
        q.stride(0),
        block_tables.stride(0),
        k_cache.shape[1],
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=k_cache.shape[2],
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        BLOCK_N=BLOCK_N,
    )
    return out
