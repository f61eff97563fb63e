"""A linear layer for one or two rows: at such a batch size the time is that of reading the weights once.

A matrix product built for many rows keeps few loads in flight there. Here each program reads long pieces of a few rows
of the weight and multiplies them with every input row, so the weight is read once; and it asks for them before the
kernel before has ended (`wait_for_inputs`).

What stands beside the product is done inside it: a residual addition with RMSNorm before it, which every program
repeats for itself, and SiLU-and-multiply after it. That costs less than kernels of their own. `tile_linear.py` does the
same on tensor cores for up to 8 rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.launch import early, wait_for_inputs

MAX_FEATURES = 8192  # of the input; a program holds whole weight rows in registers
MAX_ROWS = 2
_TILE = 8192  # weight elements of a program
PLAIN, NORM, ADD_NORM = 0, 1, 2  # what happens to the input before the product


@triton.jit
def silu_times(gate, up, dtype):
    """silu(gate) * up in fp32, rounded to `dtype` where the reference rounds."""
    gate32 = gate.to(dtype).to(tl.float32)
    return (gate32 / (1.0 + tl.exp(-gate32))).to(dtype).to(tl.float32) * up.to(dtype).to(tl.float32)


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
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IN_FEATURES: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (block of output features): one input row after the other against BLOCK_N whole rows of the weight.

    GATED: the weight holds gate and up behind each other, out_features each, and the output is silu(gate) * up.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    n_inside = n < out_features
    k_inside = k < IN_FEATURES
    mask = n_inside[:, None] & k_inside[None, :]
    weight_ptrs = weight_ptr + n[:, None].to(tl.int64) * IN_FEATURES + k[None, :]
    weight = tl.load(weight_ptrs, mask=mask, other=0.0)
    up_weight = weight
    if GATED:
        up_weight = tl.load(weight_ptrs + out_features.to(tl.int64) * IN_FEATURES, mask=mask, other=0.0)
    gain = k  # a placeholder where there is no norm
    if PROLOGUE > 0:
        gain = tl.load(gain_ptr + k, mask=k_inside, other=0.0)
    bias = tl.zeros([BLOCK_N], tl.float32)
    if HAS_BIAS:
        bias = tl.load(bias_ptr + n, mask=n_inside, other=0.0).to(tl.float32)
    wait_for_inputs(EARLY)
    dtype = out_ptr.dtype.element_ty
    for row in range(rows):
        x = tl.load(x_ptr + row * x_stride + k, mask=k_inside, other=0.0)
        if PROLOGUE == 2:
            residual = tl.load(residual_ptr + row * IN_FEATURES + k, mask=k_inside, other=0.0)
            x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
            if tl.program_id(0) == 0:
                tl.store(new_residual_ptr + row * IN_FEATURES + k, x, mask=k_inside)
        x32 = x.to(tl.float32)
        if PROLOGUE > 0:  # rounded where the reference rounds: after the scaling, after the gain
            scale = 1.0 / tl.sqrt(tl.sum(x32 * x32, 0) / IN_FEATURES + eps)
            x32 = ((x32 * scale).to(dtype).to(tl.float32) * gain.to(tl.float32)).to(dtype).to(tl.float32)
        y = tl.sum(weight.to(tl.float32) * x32[None, :], 1) + bias
        if GATED:
            y = silu_times(y, tl.sum(up_weight.to(tl.float32) * x32[None, :], 1), dtype)
        tl.store(out_ptr + row * out_features + n, y.to(dtype), mask=n_inside)


def suits(x: torch.Tensor, in_features: int, gated: bool = False) -> bool:
    """True for one or two rows x and weights [.., in_features] that a program can hold whole rows of."""
    return x.shape[0] <= MAX_ROWS and in_features <= MAX_FEATURES


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [rows, in_features] times weight [out_features, in_features] transposed, plus bias; [rows, out_features]."""
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
    """(linear(rms_norm(x + residual)), x + residual); gain [in_features] is the norm's weight.

    residual None counts as 0. gated: the weight is [2 * out_features, in_features] (gate, then up), and silu(gate) * up
    is returned.
    """
    return with_norm(_launch, Product(x, weight, bias, residual, gain, eps, gated))


@dataclass(frozen=True, slots=True)
class Product:
    """A product of few rows with all that is done beside it; see `norm_linear`."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    gain: torch.Tensor | None = None
    eps: float = 0.0
    gated: bool = False

    @property
    def out_features(self) -> int:
        """Columns of the output."""
        return self.weight.shape[0] // 2 if self.gated else self.weight.shape[0]


Launch = Callable[[int, Product], tuple[torch.Tensor, torch.Tensor]]


def with_norm(launch: Launch, product: Product) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, x + residual) of a product that begins with a norm."""
    if product.residual is None:
        return launch(NORM, product)[0], product.x
    return launch(ADD_NORM, product)


def launch_product(
    kernel: Any, block_n: int, options: dict[str, Any], prologue: int, product: Product
) -> tuple[torch.Tensor, torch.Tensor]:
    """(output, x + residual) by one of the two kernels, which take the same arguments; block_n features a program."""
    x, weight, bias, residual = product.x, product.weight, product.bias, product.residual
    rows, in_features = x.shape
    out = torch.empty(rows, product.out_features, dtype=x.dtype, device=x.device)
    new_residual = out if residual is None else torch.empty_like(residual)
    kernel[(triton.cdiv(product.out_features, block_n),)](
        x,
        x if residual is None else residual.contiguous(),
        weight if product.gain is None else product.gain,  # not read then
        weight,
        weight if bias is None else bias,
        out,
        new_residual,
        x.stride(0),
        rows,
        product.out_features,
        product.eps,
        PROLOGUE=prologue,
        GATED=product.gated,
        HAS_BIAS=bias is not None,
        IN_FEATURES=in_features,
        BLOCK_N=block_n,
        **options,
        **early(x.device),
    )
    return out, new_residual


def _launch(prologue: int, product: Product) -> tuple[torch.Tensor, torch.Tensor]:
    block_k = triton.next_power_of_2(product.x.shape[1])
    block_n = max(1, min(8, _TILE // block_k) // (2 if product.gated else 1))
    options = {"BLOCK_K": block_k, "num_warps": 4 if block_k <= 2048 else 8}
    return launch_product(_few_rows_kernel, block_n, options, prologue, product)
