"""A linear layer for a few rows: at decode batch 1 .. 4 the time is that of reading the weights once.

A matrix product built for many rows keeps few loads in flight there. Here each program reads a few whole rows of the
weight at once and multiplies them with every input row, so the weight is read once and in long coalesced loads.
"""

import torch
import triton
import triton.language as tl

MAX_FEATURES = 8192  # of the input; a program holds whole weight rows in registers
_TILE = 8192  # weight elements of a program


@triton.jit
def _small_linear_kernel(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    x_stride,
    out_features,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    IN_FEATURES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Program (block of output features): all rows of x against BLOCK_N rows of the weight."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    n_inside = n < out_features
    k_inside = k < IN_FEATURES
    offset = n[:, None].to(tl.int64) * IN_FEATURES + k[None, :]
    weight = tl.load(weight_ptr + offset, mask=n_inside[:, None] & k_inside[None, :], other=0.0).to(tl.float32)
    for row in tl.static_range(ROWS):
        x = tl.load(x_ptr + row * x_stride + k, mask=k_inside, other=0.0).to(tl.float32)
        y = tl.sum(weight * x[None, :], 1)
        if HAS_BIAS:
            y += tl.load(bias_ptr + n, mask=n_inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * out_features + n, y.to(out_ptr.dtype.element_ty), mask=n_inside)


def suits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """True for inputs [rows, in_features] that this kernel serves faster than a general matrix product.

    Measured on an H200 with scripts/kernel_times.py: one or two rows always; up to four where the output is narrow, so
    that the library has too few tiles to fill the GPU.
    """
    rows, in_features = x.shape
    fast = rows <= 2 or (rows <= 4 and weight.shape[0] <= in_features)
    return fast and in_features <= MAX_FEATURES and x.stride(1) == 1


def small_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [rows, in_features] times weight [out_features, in_features] transposed, plus bias; [rows, out_features]."""
    rows, in_features = x.shape
    out_features = weight.shape[0]
    out = torch.empty(rows, out_features, dtype=x.dtype, device=x.device)
    block_k = triton.next_power_of_2(in_features)
    block_n = max(1, min(8, _TILE // block_k))
    _small_linear_kernel[(triton.cdiv(out_features, block_n),)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        x.stride(0),
        out_features,
        HAS_BIAS=bias is not None,
        ROWS=rows,
        IN_FEATURES=in_features,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        num_warps=4 if block_k <= 2048 else 8,
    )
    return out
