"""A linear layer for a few rows: at decode batch 1 .. 4 the time is that of reading the weights once.

A matrix product built for many rows keeps few loads in flight there. Here each program reads long pieces of a few rows
of the weight and multiplies them with every input row, so the weight is read once; and it asks for them before the
kernel before has ended (`wait_for_inputs`).

For one or two rows, what stands before the product, a residual addition with RMSNorm or SiLU-and-multiply, is done by
every program for itself: that costs less than a kernel of its own.
"""

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.launch import early, wait_for_inputs

MAX_FEATURES = 8192  # of the input; a program holds whole weight rows in registers
MAX_ROWS = 4  # beyond, the library is faster
FEW = 2  # rows up to which a norm or SiLU is worth repeating in every program
_TILE = 8192  # weight elements of a program
PLAIN, NORM, ADD_NORM, SILU = 0, 1, 2, 3  # what happens to the input before the product


@triton.jit
def _raw_rows(x_ptr, residual_ptr, x_stride, m, k, mask, PROLOGUE: tl.constexpr, IN_FEATURES: tl.constexpr):
    """Columns k [BLOCK_K] of rows m [M] before the norm: x, or x + residual, or silu(gate) * up; [M, BLOCK_K]."""
    x = tl.load(x_ptr + m[:, None] * x_stride + k[None, :], mask=mask, other=0.0)
    dtype = x.dtype
    if PROLOGUE == 3:
        gate = x.to(tl.float32)
        up = tl.load(x_ptr + m[:, None] * x_stride + IN_FEATURES + k[None, :], mask=mask, other=0.0)
        x = ((gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32) * up.to(tl.float32)).to(dtype)
    if PROLOGUE == 2:
        residual = tl.load(residual_ptr + m[:, None] * IN_FEATURES + k[None, :], mask=mask, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
    return x


@triton.jit(do_not_specialize=["rows"])  # one compilation for all numbers of rows
def _few_rows_kernel(
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
    HAS_BIAS: tl.constexpr,
    IN_FEATURES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (block of output features): one input row after the other against BLOCK_N whole rows of the weight."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    n_inside = n < out_features
    k_inside = k < IN_FEATURES
    offset = n[:, None].to(tl.int64) * IN_FEATURES + k[None, :]
    weight = tl.load(weight_ptr + offset, mask=n_inside[:, None] & k_inside[None, :], other=0.0).to(tl.float32)
    gain = k  # a placeholder where there is no norm
    if PROLOGUE == 1 or PROLOGUE == 2:
        gain = tl.load(gain_ptr + k, mask=k_inside, other=0.0).to(tl.float32)
    bias = tl.zeros([BLOCK_N], tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + n, mask=n_inside, other=0.0).to(tl.float32)
    wait_for_inputs(EARLY)
    for row in range(rows):
        m = row + tl.arange(0, 1)
        x = _raw_rows(x_ptr, residual_ptr, x_stride, m, k, k_inside[None, :], PROLOGUE, IN_FEATURES)
        dtype = x.dtype
        if PROLOGUE == 2 and tl.program_id(0) == 0:
            tl.store(new_residual_ptr + m[:, None] * IN_FEATURES + k[None, :], x, mask=k_inside[None, :])
        x32 = x.to(tl.float32)
        if PROLOGUE == 1 or PROLOGUE == 2:  # rounded where the reference rounds: after the scaling, after the gain
            scale = 1.0 / tl.sqrt(tl.sum(x32 * x32, 1) / IN_FEATURES + eps)
            x32 = ((x32 * scale[:, None]).to(dtype).to(tl.float32) * gain[None, :]).to(dtype).to(tl.float32)
        y = tl.sum(weight * x32, 1) + bias
        tl.store(out_ptr + row * out_features + n, y.to(out_ptr.dtype.element_ty), mask=n_inside)


def fits(weight: torch.Tensor) -> bool:
    """True if a program can hold whole rows of this weight."""
    return weight.shape[1] <= MAX_FEATURES


def suits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """True for inputs [rows, in_features] that `small_linear` serves faster than a general matrix product.

    Measured on an H200 with scripts/kernel_times.py: one or two rows always; up to four where the output is narrow, so
    that the library has too few tiles to fill the GPU. From eight rows on the library is faster, also than a kernel
    that used tensor cores here.
    """
    rows, in_features = x.shape
    fast = rows <= FEW or (rows <= MAX_ROWS and weight.shape[0] <= in_features)
    return fast and fits(weight) and x.stride(1) == 1


def small_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [rows, in_features] times weight [out_features, in_features] transposed, plus bias; [rows, out_features]."""
    return _few_rows(PLAIN, x, weight, bias)[0]


def norm_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    gain: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(linear(rms_norm(x + residual)), x + residual) for one or two rows; gain [in_features] is the norm's weight.

    residual None counts as 0.
    """
    if residual is None:
        return _few_rows(NORM, x, weight, bias, gain=gain, eps=eps)[0], x
    return _few_rows(ADD_NORM, x, weight, bias, residual.contiguous(), gain, eps)


def silu_linear(gate_up: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """linear(silu(gate) * up) of gate_up [rows, 2 * in_features] (gate, then up), for one or two rows."""
    return _few_rows(SILU, gate_up, weight, None)[0]


def _few_rows(
    prologue: int,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None = None,
    gain: torch.Tensor | None = None,
    eps: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    rows = x.shape[0]
    out_features, in_features = weight.shape
    out = torch.empty(rows, out_features, dtype=x.dtype, device=x.device)
    new_residual = out if residual is None else torch.empty_like(residual)
    block_k = triton.next_power_of_2(in_features)
    block_n = max(1, min(8, _TILE // block_k))
    _few_rows_kernel[(triton.cdiv(out_features, block_n),)](
        x,
        x if residual is None else residual,
        weight if gain is None else gain,  # not read then
        weight,
        weight if bias is None else bias,
        out,
        new_residual,
        x.stride(0),
        rows,
        out_features,
        eps,
        PROLOGUE=prologue,
        HAS_BIAS=bias is not None,
        IN_FEATURES=in_features,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        num_warps=4 if block_k <= 2048 else 8,
        **early(x.device),
    )
    return out, new_residual
