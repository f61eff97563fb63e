# ruff: noqa: F401 (imports that you may need)
"""3.1 RMSNorm with residual: scale each token's vector to a mean square of 1, and keep the sum that it came from.

For a vector x of n numbers:

    y[i] = x[i] / sqrt(mean(x[0]^2 .. x[n-1]^2) + eps) * weight[i]

By hand, with eps 0: x = [3, 4] has the mean square (9 + 16) / 2 = 12.5 and the root 3.5355. So x / root is
[0.8485, 1.1314], and with the weight [1, 2] the result is [0.8485, 2.2627]. A mean is not subtracted anywhere.

A decoder layer adds before it normalises: the stream of sums ("residual") runs through all layers, and each sub-layer
sees a normalised copy of it. In half precision squares of large numbers overflow (fp16 ends at 65,504) and small
differences are lost, so mean and root are computed in fp32 whatever the dtype of x is.
"""

from nanovllm.course import ExerciseNotDone
import torch
from torch import Tensor

from nanovllm.qwen3.ops import TorchOps


def rms_norm(ops: TorchOps, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise over the last dimension; x is not changed.

    x: [..., n] of any float dtype (n is hidden_size, or head_dim for QK norm). weight: [n], same dtype. eps: a small
    number that is added to the mean square. Returns [..., n] in the dtype of x.

    Order of rounding, as Qwen3 does it: compute in fp32, round to the dtype of x, then multiply by the weight.
    """
    raise ExerciseNotDone("3.1 rms_norm", "take [3, 4]: square, mean, root, divide; print each")


def add_rms_norm(ops: TorchOps, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(norm(x + residual), x + residual): what starts every sub-layer but the first.

    x, residual: [T, n], the output of the last sub-layer and the stream so far; neither is changed. Returns two
    [T, n]. The second is the new stream: the plain sum, which is *not* normalised.

    By hand: x = [1, 4], residual = [2, 0], weight = [1, 2], eps 0 -> ([0.8485, 2.2627], [3, 4]).
    """
    raise ExerciseNotDone("3.1 rms_norm", "add first; which of the two is the stream that goes on?")
