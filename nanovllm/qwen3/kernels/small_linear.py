"""A linear layer for a few rows: at decode batch 1 .. 16 the time is that of reading the weights once.

A matrix product built for many rows keeps few loads in flight there. Here each program reads a few whole rows of the
weight at once and multiplies them with every input row, so the weight is read once and in long coalesced loads. The
weight is asked for before the kernel before has ended (`wait_for_inputs`), and what stands before the product, a
residual addition with RMSNorm or SiLU-and-multiply, is done by every program for itself: for a few rows that costs less
than a kernel of its own.
"""

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.launch import dot_precision, early, shared_memory, wait_for_inputs

MAX_ROWS = 16
MAX_FEATURES = 8192  # of the input; a program holds whole weight rows in registers
FEW = 2  # rows up to which sums are done without tensor cores
_TILE = 8192  # weight elements of a program
PLAIN, NORM, ADD_NORM, SILU = 0, 1, 2, 3  # what happens to the input before the product


@triton.jit
def _input_rows(
    x_ptr,
    residual_ptr,
    gain,
    new_residual_ptr,
    x_stride,
    eps,
    m,
    k,
    mask,
    PROLOGUE: tl.constexpr,
    IN_FEATURES: tl.constexpr,
):
    """Rows m [M] of the product's input, [M, BLOCK_K], rounded where the reference rounds."""
    x = tl.load(x_ptr + m[:, None] * x_stride + k[None, :], mask=mask, other=0.0)
    dtype = x.dtype
    if PROLOGUE == 3:
        gate = x.to(tl.float32)
        up = tl.load(x_ptr + m[:, None] * x_stride + IN_FEATURES + k[None, :], mask=mask, other=0.0)
        x = ((gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32) * up.to(tl.float32)).to(dtype)
    if PROLOGUE == 2:
        own = m[:, None] * IN_FEATURES + k[None, :]
        residual = tl.load(residual_ptr + own, mask=mask, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        if tl.program_id(0) == 0:
            tl.store(new_residual_ptr + own, x, mask=mask)
    if PROLOGUE == 1 or PROLOGUE == 2:
        x32 = x.to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(x32 * x32, 1) / IN_FEATURES + eps)
        x = ((x32 * scale[:, None]).to(dtype).to(tl.float32) * gain[None, :]).to(dtype)
    return x


@triton.jit
def _small_linear_kernel(
    x_ptr,
    residual_ptr,
    gain_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    new_residual_ptr,
    x_stride,
    out_features,
    eps,
    PROLOGUE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    IN_FEATURES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    USE_DOT: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (block of output features): all rows of x against BLOCK_N rows of the weight."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    n_inside = n < out_features
    k_inside = k < IN_FEATURES
    offset = n[:, None].to(tl.int64) * IN_FEATURES + k[None, :]
    weight = tl.load(weight_ptr + offset, mask=n_inside[:, None] & k_inside[None, :], other=0.0)
    gain = k  # a placeholder where there is no norm
    if PROLOGUE == 1 or PROLOGUE == 2:
        gain = tl.load(gain_ptr + k, mask=k_inside, other=0.0).to(tl.float32)
    bias = tl.zeros([BLOCK_N], tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + n, mask=n_inside, other=0.0).to(tl.float32)
    wait_for_inputs(EARLY)
    if USE_DOT:
        m = tl.arange(0, BLOCK_M)
        x = _input_rows(
            x_ptr,
            residual_ptr,
            gain,
            new_residual_ptr,
            x_stride,
            eps,
            m,
            k,
            (m[:, None] < ROWS) & k_inside[None, :],
            PROLOGUE,
            IN_FEATURES,
        )
        y = tl.dot(x, tl.trans(weight), input_precision=PRECISION) + bias[None, :]
        mask = (m[:, None] < ROWS) & n_inside[None, :]
        tl.store(out_ptr + m[:, None] * out_features + n[None, :], y.to(out_ptr.dtype.element_ty), mask=mask)
    else:
        weight32 = weight.to(tl.float32)
        for row in tl.static_range(ROWS):
            x = _input_rows(
                x_ptr,
                residual_ptr,
                gain,
                new_residual_ptr,
                x_stride,
                eps,
                row + tl.arange(0, 1),
                k,
                k_inside[None, :],
                PROLOGUE,
                IN_FEATURES,
            )
            y = tl.sum(weight32 * x.to(tl.float32), 1) + bias
            tl.store(out_ptr + row * out_features + n, y.to(out_ptr.dtype.element_ty), mask=n_inside)


def fits(rows: int, weight: torch.Tensor) -> bool:
    """True if these kernels can take that many rows: the input and a block of the weight stay on the chip."""
    out_features, in_features = weight.shape
    if rows <= FEW:
        return in_features <= MAX_FEATURES
    block_k, block_n, _ = _tile(True, triton.next_power_of_2(in_features), out_features)
    num_bytes = (16 + block_n) * block_k * weight.element_size()
    return rows <= MAX_ROWS and num_bytes <= shared_memory(weight.device) - 4096


def small_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [rows, in_features] times weight [out_features, in_features] transposed, plus bias; [rows, out_features]."""
    return _launch(PLAIN, x, weight, bias)[0]


def norm_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    gain: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(linear(rms_norm(x + residual)), x + residual); gain [in_features] is the norm's weight. residual None: 0."""
    if residual is None:
        return _launch(NORM, x, weight, bias, gain=gain, eps=eps)[0], x
    return _launch(ADD_NORM, x, weight, bias, residual.contiguous(), gain, eps)


def silu_linear(gate_up: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """linear(silu(gate) * up) of gate_up [rows, 2 * in_features] (gate, then up)."""
    return _launch(SILU, gate_up, weight, None)[0]


def _launch(
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
    use_dot = rows > FEW
    block_k, block_n, warps = _tile(use_dot, block_k, out_features)
    _small_linear_kernel[(triton.cdiv(out_features, block_n),)](
        x,
        x if residual is None else residual,
        weight if gain is None else gain,  # read and not used
        weight,
        weight if bias is None else bias,
        out,
        new_residual,
        x.stride(0),
        out_features,
        eps,
        PROLOGUE=prologue,
        HAS_BIAS=bias is not None,
        ROWS=rows,
        IN_FEATURES=in_features,
        BLOCK_M=16,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        USE_DOT=use_dot,
        PRECISION=dot_precision(x.dtype),
        num_warps=warps,
        **early(x.device),
    )
    return out, new_residual


def _tile(use_dot: bool, block_k: int, out_features: int) -> tuple[int, int, int]:
    """(BLOCK_K, BLOCK_N, num_warps): what was fastest on an H200; a product needs a block of 16 x 16 at least."""
    if not use_dot:
        return block_k, max(1, min(8, _TILE // block_k)), 4 if block_k <= 2048 else 8
    return max(16, block_k), 16 if out_features >= 2048 else 8, 4 if block_k <= 2048 else 8
