"""RMSNorm, alone and together with the residual addition before it."""

from torch import Tensor, nn

from nanovllm.qwen3.placement import Placement
from nanovllm.qwen3.weights import Weights, empty_parameter


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension of size `size`; `TorchOps.rms_norm` is its definition."""

    def __init__(self, size: int, eps: float, at: Placement) -> None:
        super().__init__()
        self.eps = eps
        self.ops = at.ops
        self.weight = empty_parameter(size, dtype=at.dtype, device=at.device)

    def load(self, reader: Weights, prefix: str) -> None:
        """Fill the weight [size] from `prefix`.weight."""
        reader.fill(self.weight, f"{prefix}.weight")

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]."""
        return self.ops.rms_norm(x, self.weight, self.eps)

    def add_and_norm(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual): the start of every sub-layer but the first."""
        return self.ops.add_rms_norm(x, residual, self.weight, self.eps)
