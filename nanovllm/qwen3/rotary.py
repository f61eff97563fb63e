"""Rotary position embeddings (Su et al., 2021, arXiv:2104.09864), with YaRN for extended contexts."""

import math
from functools import cached_property

import torch
from torch import Tensor

from nanovllm.qwen3.config import Qwen3Config, YarnScaling


def inverse_frequencies(head_dim: int, theta: float) -> Tensor:
    """[head_dim / 2] fp32: theta^(-2i / head_dim), the angle per position of pair i, in radians."""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)


def yarn_frequencies(head_dim: int, theta: float, yarn: YarnScaling) -> tuple[Tensor, float]:
    """YaRN's inverse frequencies [head_dim / 2] and the factor on cos and sin (arXiv:2309.00071, section 3).

    Fast pairs (more than beta_fast turns in the original context) are kept, slow ones (fewer than beta_slow) are
    slowed down by `factor`, and a linear ramp joins them.
    """
    base = inverse_frequencies(head_dim, theta)

    def pair_with(turns: float) -> float:
        context = yarn.original_max_position_embeddings
        return head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_with(yarn.beta_fast)), 0)
    high = min(math.ceil(pair_with(yarn.beta_slow)), head_dim - 1)
    span = max(high - low, 0.001)
    slowed = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / span).clamp(0, 1)
    frequencies = base / yarn.factor * slowed + base * (1 - slowed)
    attention_factor = yarn.attention_factor
    if attention_factor is None:
        attention_factor = 1.0 if yarn.factor <= 1 else 0.1 * math.log(yarn.factor) + 1.0
    return frequencies, attention_factor


class RotaryEmbedding:
    """cos and sin of every position up to `max_positions`, built once and shared by all layers.

    cos_sin: [max_positions, head_dim] fp32, the first half cosines, the second half sines.
    """

    def __init__(self, config: Qwen3Config, max_positions: int, device: torch.device) -> None:
        if config.yarn is None:
            frequencies, factor = inverse_frequencies(config.head_dim, config.rope_theta), 1.0
        else:
            frequencies, factor = yarn_frequencies(config.head_dim, config.rope_theta, config.yarn)
        angles = torch.arange(max_positions, dtype=torch.float32).unsqueeze(1) * frequencies
        self.cos_sin = (torch.cat([angles.cos(), angles.sin()], dim=-1) * factor).to(device)

    def at(self, positions: Tensor) -> "RotaryAngles":
        """The angles of positions [T]; made once a step, used by every layer."""
        return RotaryAngles(self.cos_sin, positions)


class RotaryAngles:
    """One step's positions [T] beside the table [max_positions, head_dim]; kernels look them up themselves."""

    def __init__(self, table: Tensor, positions: Tensor) -> None:
        self.table = table
        self.positions = positions

    @cached_property
    def _cos_sin(self) -> tuple[Tensor, ...]:
        return self.table[self.positions].unsqueeze(1).chunk(2, dim=-1)

    @property
    def cos(self) -> Tensor:
        """[T, 1, head_dim / 2] fp32."""
        return self._cos_sin[0]

    @property
    def sin(self) -> Tensor:
        """[T, 1, head_dim / 2] fp32."""
        return self._cos_sin[1]


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (x[i], x[i + head_dim / 2]) of x [T, heads, head_dim] by its position's angle."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
