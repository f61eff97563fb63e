"""A few rows of the embedding: a step's first kernel."""

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.launch import let_next_start, starts_early

MAX_ROWS = 16  # up to here the library takes a kernel that reads one row after the other; above, one that is as fast


@triton.jit
def _embedding_kernel(ids_ptr, weight_ptr, out_ptr, size, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    """Program (row, block of columns). The next kernel may start and ask for its weights; this one waits for nothing.

    It is launched without an early start, so that nothing of a step begins before the step before has ended: what that
    one stored, keys and values, can be read before any `wait_for_inputs`.
    """
    let_next_start(EARLY)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(ids_ptr + row).to(tl.int64)
    values = tl.load(weight_ptr + token * size + column, mask=column < size)
    tl.store(out_ptr + row * size + column, values, mask=column < size)


def suits(token_ids: torch.Tensor) -> bool:
    """True for up to 16 rows."""
    return token_ids.shape[0] <= MAX_ROWS


def embedding(token_ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Rows token_ids [T] int64 of weight [vocab_size, hidden_size]; [T, hidden_size]."""
    rows, size = token_ids.shape[0], weight.shape[1]
    out = torch.empty(rows, size, dtype=weight.dtype, device=weight.device)
    block = 1024
    grid = (rows, triton.cdiv(size, block))
    _embedding_kernel[grid](token_ids, weight, out, size, BLOCK=block, EARLY=starts_early(out.device))
    return out
