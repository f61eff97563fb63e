"""The logits of up to 32 rows: the vocabulary's weight streams through programs that stay for the whole of it.

The library's product begins a program for every few hundred rows of the weight, whose first reads wait each time. Here
each multiprocessor has one program with an even share of the vocabulary, and what it reads next is always under way
(`tl.range` with stages: asynchronous copies into shared memory). The sums run in the library's order: the same bits on
an H200.
"""

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.launch import early, multiprocessors, shared_memory, starts_early, wait_for_inputs

MAX_ROWS = 32  # of those measured; the inputs' part of the shared memory grows with them
_BLOCK_N, _BLOCK_K, _TURNS = 128, 128, 5  # weight rows and inputs of a turn, turns under way; best of 20 on an H200


@triton.jit(do_not_specialize=["rows", "share"])
def _logits_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    x_stride,
    rows,
    vocab_size,
    share,
    IN_FEATURES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TURNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (share of the vocabulary): all rows against its share of the weight's rows."""
    first = tl.program_id(0) * share
    end = tl.minimum(first + share, vocab_size)
    m = tl.arange(0, BLOCK_M)
    row_inside = m < rows
    CHUNKS: tl.constexpr = IN_FEATURES // BLOCK_K
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    wait_for_inputs(EARLY)
    # One loop over blocks and their chunks, so that the next block's first chunk is under way in this one's last.
    for turn in tl.range(0, tl.cdiv(end - first, BLOCK_N) * CHUNKS, num_stages=TURNS):
        chunk = turn % CHUNKS
        n = first + turn // CHUNKS * BLOCK_N + tl.arange(0, BLOCK_N)
        k = chunk * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = n < end
        weight_ptrs = weight_ptr + n[:, None].to(tl.int64) * IN_FEATURES + k[None, :]
        weight = tl.load(weight_ptrs, mask=inside[:, None], other=0.0)
        x = tl.load(x_ptr + m[None, :] * x_stride + k[:, None], mask=row_inside[None, :], other=0.0)
        total = tl.dot(weight, x, total)
        if chunk == CHUNKS - 1:
            out_ptrs = out_ptr + m[None, :].to(tl.int64) * vocab_size + n[:, None]
            tl.store(out_ptrs, total.to(out_ptr.dtype.element_ty), mask=row_inside[None, :] & inside[:, None])
            total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)


def suits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """True for up to MAX_ROWS rows of two bytes an element, on a GPU whose kernels start early (or on a CPU).

    Inputs a multiple of 128, a contiguous weight, and shared memory that holds the turns under way.
    """
    rows, in_features = x.shape
    if x.element_size() != 2 or not 0 < rows <= MAX_ROWS or in_features % _BLOCK_K or x.stride(1) != 1:
        return False
    held_bytes = _TURNS * _BLOCK_K * 2 * (_BLOCK_N + _padded(rows))
    fits = held_bytes < shared_memory(x.device) and weight.is_contiguous()
    return fits and (starts_early(x.device) or not x.is_cuda)


def _padded(rows: int) -> int:
    """Rows of a tile: two kernels to compile, and as fast as a tile of 8."""
    return 16 if rows <= 16 else 32


def logits(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [rows, hidden_size] times weight [vocab_size, hidden_size] transposed; [rows, vocab_size]."""
    rows, vocab_size = x.shape[0], weight.shape[0]
    out = torch.empty(rows, vocab_size, dtype=x.dtype, device=x.device)
    share = triton.cdiv(triton.cdiv(vocab_size, multiprocessors(x.device)), 16) * 16  # whole 32-byte sectors of `out`
    _logits_kernel[(triton.cdiv(vocab_size, share),)](
        x,
        weight,
        out,
        x.stride(0),
        rows,
        vocab_size,
        share,
        IN_FEATURES=weight.shape[1],
        BLOCK_M=_padded(rows),
        BLOCK_N=_BLOCK_N,
        BLOCK_K=_BLOCK_K,
        TURNS=_TURNS,
        num_warps=4,
        **early(x.device),
    )
    return out
