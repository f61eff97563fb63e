# ruff: noqa: F401 (imports that you may need)
"""3.2 Rotary embedding: turn pairs of a head's numbers by an angle that grows with the position.

A head of D numbers has D / 2 pairs. Pair i turns by `frequency[i]` radians a position:

    frequency[i] = theta ^ (-2i / D)          angle = position x frequency[i]

and a pair (a, b) becomes (a cos - b sin, b cos + a sin). Queries and keys are turned, values are not. What attention
sees is the difference of two angles, so the distance of two tokens, wherever they stand.

Which two numbers are a pair? In Qwen3 number i of the first half and number i of the second half: (x[i], x[i + D/2]).
(Other models pair neighbours; their checkpoints do not work with this code and the other way round.)

By hand: D = 4, theta = 100. The frequencies are [1, 0.1]. At position 2 the angles are [2, 0.2] radians, with cosines
[-0.4161, 0.9801] and sines [0.9093, 0.1987]. The head [1, 2, 3, 4] has the pairs (1, 3) and (2, 4):
1 x -0.4161 - 3 x 0.9093 = -3.1440 and 3 x -0.4161 + 1 x 0.9093 = -0.3391; 2 x 0.9801 - 4 x 0.1987 = 1.1655 and
4 x 0.9801 + 2 x 0.1987 = 4.3176. The result is [-3.1440, 1.1655, -0.3391, 4.3176].
"""

from nanovllm.course import ExerciseNotDone
import torch
from torch import Tensor


def inverse_frequencies(head_dim: int, theta: float) -> Tensor:
    """[head_dim / 2] fp32: the angle a position of each pair, in radians. By hand: (4, 100.0) -> [1.0, 0.1]."""
    raise ExerciseNotDone("3.2 rotary", "the exponents are 0, -2/D, -4/D, ...: torch.arange has a step")


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of each head of each token.

    x: [T, heads, D], queries or keys, any float dtype; it is not changed. cos, sin: [T, 1, D / 2] fp32, of each
    token's position. Returns [T, heads, D] in the dtype of x, computed in fp32.

    By hand: x = [1, 2, 3, 4] with angles [2, 0.2] -> [-3.1440, 1.1655, -0.3391, 4.3176].
    """
    raise ExerciseNotDone("3.2 rotary", "cut x into its two halves on the last axis; each pair has one in each")
