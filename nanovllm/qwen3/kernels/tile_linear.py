"""A linear layer for 3 to 8 rows on tensor cores: the time is still that of reading the weights once.

A library's matrix product fetches a weight piece by piece as it multiplies. Here a program asks for all of its part of
the weight at once, before the kernel before has ended (`wait_for_inputs`), and multiplies when the inputs are there.
The sum over the inputs is cut into PARTS, one or more a warp, because a product with so few rows has no other work to
share out among the warps; their results are added up at the end. The norm before and the gate after are done inside, as
in `small_linear.py`.
"""

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.launch import dot_precision, shared_memory, wait_for_inputs
from nanovllm.qwen3.kernels.small_linear import PLAIN, Product, launch_product, silu_times, with_norm

MAX_ROWS = 8  # of a tensor core tile; with 16 the library is as fast (docs/gpu.md)
_PART = 256  # inputs that are multiplied in one part


@triton.jit(do_not_specialize=["rows"])  # one compilation for all numbers of rows
def _tile_kernel(
    x_ptr,
    residual_ptr,
    gain_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    new_residual_ptr,
    x_stride,
    rows,
    out_features,
    eps,
    PROLOGUE: tl.constexpr,
    GATED: tl.constexpr,
    WHOLE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IN_FEATURES: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (block of output features): all rows against BLOCK_N rows of the weight.

    PROLOGUE, GATED: as in `small_linear.py`. WHOLE: PARTS * BLOCK_K are IN_FEATURES and BLOCK_N divides out_features.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.arange(0, PARTS)
    m = tl.arange(0, BLOCK_M)
    column = part[:, None, None] * BLOCK_K + tl.arange(0, BLOCK_K)[None, None, :]
    x_mask = m[None, :, None] < rows
    weight_ptrs = weight_ptr + n[None, :, None] * IN_FEATURES + column
    up_ptrs = weight_ptrs + out_features * IN_FEATURES
    if WHOLE:  # masks cost registers
        weight = tl.load(weight_ptrs)
        up_weight = tl.load(up_ptrs) if GATED else weight
    else:
        x_mask = x_mask & (column < IN_FEATURES)
        weight_mask = (column < IN_FEATURES) & (n[None, :, None] < out_features)
        weight = tl.load(weight_ptrs, mask=weight_mask, other=0.0)
        up_weight = tl.load(up_ptrs, mask=weight_mask, other=0.0) if GATED else weight
    gain = column  # a placeholder where there is no norm
    if PROLOGUE > 0:
        gain = tl.load(gain_ptr + column, mask=column < IN_FEATURES, other=0.0)
    bias = tl.zeros([BLOCK_N], tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + n, mask=n < out_features, other=0.0).to(tl.float32)
    wait_for_inputs(EARLY)
    dtype = out_ptr.dtype.element_ty
    x = tl.load(x_ptr + m[None, :, None] * x_stride + column, mask=x_mask, other=0.0)
    if PROLOGUE == 2:
        at = m[None, :, None] * IN_FEATURES + column
        residual = tl.load(residual_ptr + at, mask=x_mask, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        if tl.program_id(0) == 0:
            tl.store(new_residual_ptr + at, x, mask=x_mask)
    if PROLOGUE > 0:  # rounded where the reference rounds: after the scaling, after the gain
        x32 = x.to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(tl.sum(x32 * x32, 2), 0) / IN_FEATURES + eps)
        x = ((x32 * scale[None, :, None]).to(dtype).to(tl.float32) * gain.to(tl.float32)).to(dtype)
    inputs = tl.permute(x, (0, 2, 1))
    y = tl.sum(tl.dot(weight, inputs, input_precision=PRECISION), 0) + bias[:, None]
    if GATED:
        y = silu_times(y, tl.sum(tl.dot(up_weight, inputs, input_precision=PRECISION), 0), dtype)
    out_mask = (m[None, :] < rows) & (n[:, None] < out_features)
    tl.store(out_ptr + m[None, :] * out_features + n[:, None], y.to(dtype), mask=out_mask)


def suits(x: torch.Tensor, in_features: int, gated: bool = False) -> bool:
    """True for up to 8 rows x and a weight [.., in_features] of which a program can hold its part, and x, at once."""
    held = _weight_rows(in_features, gated) * (2 if gated else 1) + MAX_ROWS
    held_bytes = held * triton.next_power_of_2(in_features) * x.element_size()
    return x.shape[0] <= MAX_ROWS and held_bytes < shared_memory(x.device)


def _weight_rows(in_features: int, gated: bool) -> int:
    """Rows of the weight a program: one tensor core tile, or two where they are short; best of 16 and 32 on an H200."""
    return 32 if in_features <= 1024 and not gated else 16


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """As `small_linear.linear`."""
    return _launch(PLAIN, Product(x, weight, bias))[0]


def norm_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    gain: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    gated: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `small_linear.norm_linear`."""
    return with_norm(_launch, Product(x, weight, bias, residual, gain, eps, gated))


def _launch(prologue: int, product: Product) -> tuple[torch.Tensor, torch.Tensor]:
    in_features = product.x.shape[1]
    block_n = _weight_rows(in_features, product.gated)
    block_k = min(_PART, max(16, triton.next_power_of_2(in_features)))
    parts = triton.next_power_of_2(triton.cdiv(in_features, block_k))
    options = {
        "WHOLE": parts * block_k == in_features and product.out_features % block_n == 0,
        "PARTS": parts,
        "BLOCK_M": MAX_ROWS,
        "BLOCK_K": block_k,
        "PRECISION": dot_precision(product.x.dtype),
        "num_warps": max(4, min(16, parts)),
        "num_stages": 1,
    }
    return launch_product(_tile_kernel, block_n, options, prologue, product)
