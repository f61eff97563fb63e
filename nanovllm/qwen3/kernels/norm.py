"""RMSNorm, and residual addition + RMSNorm, in one pass over a row."""

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.launch import early, wait_for_inputs


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    new_residual_ptr,
    size,
    eps,
    ADD: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program a row; the row stays in registers between the sum of squares and the scaling.

    x: PARTS matrices behind each other, which are added up first.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    wait_for_inputs(EARLY)
    x = tl.load(x_ptr + row * size + column, mask=inside, other=0.0)
    for part in tl.static_range(1, PARTS):
        x += tl.load(x_ptr + (part * tl.num_programs(0) + row) * size + column, mask=inside, other=0.0)
    dtype = out_ptr.dtype.element_ty
    x = x.to(dtype)
    if ADD:
        residual = tl.load(residual_ptr + row * size + column, mask=inside, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        tl.store(new_residual_ptr + row * size + column, x, mask=inside)
    x32 = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x32 * x32, 0) / size + eps)
    normed = (x32 * scale).to(dtype).to(tl.float32) * weight.to(tl.float32)
    tl.store(out_ptr + row * size + column, normed.to(dtype), mask=inside)


def _launch(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.contiguous()
    size = x.shape[-1]
    out = torch.empty_like(x if residual is None else residual)
    new_residual = out if residual is None else torch.empty_like(out)
    block = triton.next_power_of_2(size)
    _rms_norm_kernel[(out.numel() // size,)](
        x,
        x if residual is None else residual.contiguous(),
        weight,
        out,
        new_residual,
        size,
        eps,
        ADD=residual is not None,
        PARTS=x.numel() // out.numel(),
        BLOCK=block,
        num_warps=max(1, min(8, block // 256)),
        **early(x.device),
    )
    return out, new_residual


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """[..., size] -> [..., size]; x is not changed."""
    return _launch(x, None, weight, eps)[0]


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm(x + residual), x + residual), both new tensors [..., size].

    x may be [parts, ..., size] fp32: matrices that add up to it.
    """
    return _launch(x, residual, weight, eps)
