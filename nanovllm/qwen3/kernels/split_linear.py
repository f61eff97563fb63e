"""Products for 9 to 128 rows whose weight is small: cut over the inputs as well as the outputs, to fill the GPU.

With so few rows a product has few tiles of outputs, and a library leaves most of the GPU idle or joins its parts in a
kernel of its own. Here the parts are left as they are, in fp32: the norm that comes next adds them up as it reads them
(`norm.add_rms_norm`). The product before SiLU-and-multiply has outputs enough; it does the gate on the way out.
"""

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.launch import early, shared_memory, wait_for_inputs
from nanovllm.qwen3.kernels.small_linear import silu_times

MAX_ROWS = 128
MAX_WEIGHTS = 8 * 2**20  # of larger weights the library makes tiles enough
BLOCK_K = 128


@triton.jit(do_not_specialize=["rows"])  # one compilation for all numbers of rows
def _split_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    x_stride,
    rows,
    out_features,
    in_features,
    GATED: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (block of output features, block of rows, part of the inputs).

    GATED: the weight holds gate and up behind each other, out_features each; PARTS is 1 then.
    """
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    part = tl.program_id(2)
    per_part = in_features // PARTS
    k = part * per_part + tl.arange(0, BLOCK_K)
    weight_ptrs = weight_ptr + n[:, None] * in_features + k[None, :]
    x_ptrs = x_ptr + m[:, None] * x_stride + k[None, :]
    inside = m[:, None] < rows
    y = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    wait_for_inputs(EARLY)
    for start in range(0, per_part, BLOCK_K):
        x = tl.load(x_ptrs + start, mask=inside, other=0.0)
        y = tl.dot(x, tl.trans(tl.load(weight_ptrs + start)), y)
        if GATED:
            up = tl.dot(x, tl.trans(tl.load(weight_ptrs + out_features * in_features + start)), up)
    if GATED:
        y = silu_times(y, up, out_ptr.dtype.element_ty)
    row = part * rows + m
    tl.store(out_ptr + row[:, None] * out_features + n[None, :], y.to(out_ptr.dtype.element_ty), mask=inside)


def suits(x: torch.Tensor, out_features: int, in_features: int, gated: bool = False) -> bool:
    """True for rows x and a weight [out_features (gate and up: twice), in_features] that these kernels are made for."""
    if x.element_size() != 2 or not x.shape[-2] <= MAX_ROWS or out_features * in_features > MAX_WEIGHTS:
        return False
    block_m, block_n, _, stages = _tile(x.shape[-2], gated)
    held_bytes = stages * BLOCK_K * 2 * (block_m + block_n * (2 if gated else 1))
    return in_features % BLOCK_K == 0 and out_features % block_n == 0 and held_bytes < shared_memory(x.device)


def _tile(rows: int, gated: bool) -> tuple[int, int, int, int]:
    """(rows, output features, parts of the inputs at most, turns under way) of a program: best tried on an H200."""
    if rows <= 32:
        return 16 if rows <= 16 else 32, 32, 1 if gated else 4, 4 if gated else 3
    return (64, 32, 1, 4) if gated else (64, 16, 2, 4)


def partial_sums(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[parts, rows, out_features] fp32, which add up to x [rows, in_features] times weight [.., in_features]^T."""
    parts = _tile(x.shape[0], False)[2]
    while weight.shape[1] % (parts * BLOCK_K):
        parts //= 2
    out = torch.empty(parts, x.shape[0], weight.shape[0], dtype=torch.float32, device=x.device)
    return _launch(x, weight, out, False)


def gated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up [rows, n] of x times weight [2 * n, in_features]^T (gate, then up)."""
    out = torch.empty(1, x.shape[0], weight.shape[0] // 2, dtype=x.dtype, device=x.device)
    return _launch(x, weight, out, True)[0]


def _launch(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, gated: bool) -> torch.Tensor:
    parts, rows, out_features = out.shape
    block_m, block_n, _, stages = _tile(rows, gated)
    _split_kernel[(out_features // block_n, triton.cdiv(rows, block_m), parts)](
        x,
        weight,
        out,
        x.stride(0),
        rows,
        out_features,
        weight.shape[1],
        GATED=gated,
        PARTS=parts,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=BLOCK_K,
        num_warps=4,
        num_stages=stages,
        **early(x.device),
    )
    return out
