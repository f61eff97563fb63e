"""RMSNorm, alone and fused with the residual addition before it."""

import torch
from torch import Tensor, nn

from nanovllm.qwen3.weights import WeightReader, empty_parameter


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; statistics in fp32, x is not changed.

    Zhang and Sennrich, 2019 (arXiv:1910.07467). Rounded to x's dtype before the weight is applied, as Qwen3 does.
    """
    x32 = x.float()
    scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return (x32 * scale).to(x.dtype) * weight


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension of size `size`."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.eps = eps
        self.weight = empty_parameter(size, dtype=dtype, device=device)

    def load(self, reader: WeightReader, prefix: str) -> None:
        """Fill the weight [size] from `prefix`.weight."""
        reader.fill(self.weight, f"{prefix}.weight")

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]."""
        return rms_norm(x, self.weight, self.eps)

    def add_and_norm(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual): the start of every sub-layer but the first."""
        residual = x + residual
        return rms_norm(residual, self.weight, self.eps), residual
