"""silu(gate) * up of a product in one kernel, for 9 to 128 rows and a weight that is not large.

A library's product writes gate and up, and a second kernel reads them again; the launch and the second start cost more
than the numbers do. Above 128 rows, and for large weights, the library's product is so much faster that it wins.
"""

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.launch import early, shared_memory, wait_for_inputs
from nanovllm.qwen3.kernels.small_linear import silu_times

MAX_ROWS = 128
MAX_WEIGHTS = 13 * 2**20  # of gate, and of up
_BLOCK_K, _TURNS = 128, 4  # inputs of a turn, and turns under way


@triton.jit(do_not_specialize=["rows"])  # one compilation for all numbers of rows
def _gated_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    x_stride,
    rows,
    out_features,
    in_features,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (block of output features, block of rows). The weight holds gate and up behind each other."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    weight_ptrs = weight_ptr + n[:, None] * in_features + k[None, :]
    up_ptrs = weight_ptrs + out_features * in_features
    x_ptrs = x_ptr + m[:, None] * x_stride + k[None, :]
    inside = m[:, None] < rows
    gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    wait_for_inputs(EARLY)
    for start in range(0, in_features, BLOCK_K):
        x = tl.load(x_ptrs + start, mask=inside, other=0.0)
        gate = tl.dot(x, tl.trans(tl.load(weight_ptrs + start)), gate)
        up = tl.dot(x, tl.trans(tl.load(up_ptrs + start)), up)
    dtype = out_ptr.dtype.element_ty
    y = silu_times(gate, up, dtype)
    tl.store(out_ptr + m[:, None] * out_features + n[None, :], y.to(dtype), mask=inside)


def suits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """True for rows x [rows, in_features] and a weight [2 * n, in_features] that the kernel is made for."""
    out_features, in_features = weight.shape[0] // 2, weight.shape[1]
    if x.element_size() != 2 or not 8 < x.shape[0] <= MAX_ROWS or out_features * in_features > MAX_WEIGHTS:
        return False
    block_m, block_n = _tile(x.shape[0], out_features)
    held_bytes = _TURNS * _BLOCK_K * 2 * (block_m + 2 * block_n)
    return in_features % _BLOCK_K == 0 and out_features % block_n == 0 and held_bytes < shared_memory(x.device)


def _tile(rows: int, out_features: int) -> tuple[int, int]:
    """(rows, output features) of a program: what was best on an H200 for Qwen3-0.6B's and 1.7B's shapes."""
    if rows <= 32:
        return 16, 32
    return 64, 32 if triton.cdiv(rows, 64) * out_features <= 4096 else 64


def gated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up [rows, n] of x [rows, in_features] times weight [2 * n, in_features]^T (gate, then up)."""
    rows, out_features = x.shape[0], weight.shape[0] // 2
    block_m, block_n = _tile(rows, out_features)
    out = torch.empty(rows, out_features, dtype=x.dtype, device=x.device)
    _gated_kernel[(out_features // block_n, triton.cdiv(rows, block_m))](
        x,
        weight,
        out,
        x.stride(0),
        rows,
        out_features,
        weight.shape[1],
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=_BLOCK_K,
        num_warps=4,
        num_stages=_TURNS,
        **early(x.device),
    )
    return out
