# ruff: noqa: F401 (imports that you may need)
"""3.4 SwiGLU: the feed-forward layer, whose one half decides how much of the other half passes.

    gate, up = two projections of x          silu(g) = g x sigmoid(g) = g / (1 + e^-g)
    output   = down(silu(gate) x up)

gate and up come out of one matrix product: [T, 2n], the first n numbers of each row are gate, the last n are up.

By hand, n = 2: [0, 1, 5, 6] has gate [0, 1] and up [5, 6]. silu(0) = 0 and silu(1) = 1 / (1 + 0.3679) = 0.7311, so the
result is [0 x 5, 0.7311 x 6] = [0, 4.3864].
"""

from nanovllm.course import ExerciseNotDone
import torch
from torch import Tensor

from nanovllm.qwen3.model import Qwen3MLP
from nanovllm.qwen3.ops import TorchOps


def silu_and_mul(ops: TorchOps, gate_up: Tensor) -> Tensor:
    """[T, 2n] (gate, then up) -> silu(gate) x up, [T, n], same dtype. By hand: [[0, 1, 5, 6]] -> [[0, 4.3864]]."""
    raise ExerciseNotDone("3.4 swiglu", "cut each row into two halves; which one goes through silu?")


def mlp_forward(mlp: Qwen3MLP, x: Tensor) -> Tensor:
    """x [T, hidden_size] -> [T, hidden_size].

    mlp.gate_up_proj(x) gives [T, 2n], mlp.ops.silu_and_mul is the function above, mlp.down_proj goes from n back to
    hidden_size (and, with several ranks, adds up their shares: exercise 3.6). The residual is added elsewhere.
    """
    raise ExerciseNotDone("3.4 swiglu", "three calls, one inside the other")
