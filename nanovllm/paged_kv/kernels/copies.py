"""Small copies between pinned host memory and the GPU by a kernel, which reads and writes the host's memory itself.

A copy engine takes several microseconds to begin, as long as two or three of a layer's kernels, and a decode step needs
two copies: its inputs in, its sampled ids out. The input ids that an earlier step sampled are put in on the way.
"""

import torch
import triton
import triton.language as tl

_BLOCK = 512  # words a program


@triton.jit(do_not_specialize=["num_words", "num_fed", "num_leaving"])
def _copy_kernel(
    source_ptr,
    target_ptr,
    rows_ptr,
    sampled_ptr,
    leaving_ptr,
    num_words,
    num_fed,
    num_leaving,
    IS_FED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (block of 8-byte words). The first num_fed words whose row is not -1 are that row of `sampled`.

    The first num_leaving words of `sampled` go to `leaving` as they are.
    """
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source_ptr + word, mask=word < num_words, other=0)
    if IS_FED:
        leaving = tl.load(sampled_ptr + word, mask=word < num_leaving, other=0)
        tl.store(leaving_ptr + word, leaving, mask=word < num_leaving)
        row = tl.load(rows_ptr + word, mask=word < num_fed, other=-1)
        sampled = tl.load(sampled_ptr + row, mask=row >= 0, other=0)
        values = tl.where(row >= 0, sampled, values)
    tl.store(target_ptr + word, values, mask=word < num_words)


def copy_words(source: torch.Tensor, target: torch.Tensor) -> None:
    """target[:n] = source, both int64 and one-dimensional, on the GPU or in pinned memory; the host does not wait."""
    num_words = source.numel()
    _launch(num_words, source, target, source, source, source, num_words, 0, 0, IS_FED=False)


def copy_fed(
    source: torch.Tensor,
    target: torch.Tensor,
    rows: torch.Tensor,
    sampled: torch.Tensor,
    leaving: torch.Tensor | None = None,
) -> None:
    """As `copy_words`; where rows [m] int64 is not -1, target[i] becomes sampled[rows[i]] instead of source[i].

    m is at most the length of source. leaving: [n] int64 in pinned memory, filled with the n words of `sampled`.
    """
    num_words, num_leaving = source.numel(), 0 if leaving is None else leaving.numel()
    leaving = sampled if leaving is None else leaving
    counts = num_words, rows.numel(), num_leaving
    _launch(max(num_words, num_leaving), source, target, rows, sampled, leaving, *counts, IS_FED=True)


def _launch(num_words: int, *args: torch.Tensor | int, IS_FED: bool) -> None:
    _copy_kernel[(triton.cdiv(num_words, _BLOCK),)](*args, IS_FED=IS_FED, BLOCK=_BLOCK, num_warps=4)
