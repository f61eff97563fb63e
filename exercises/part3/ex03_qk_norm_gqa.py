# ruff: noqa: F401 (imports that you may need)
"""3.3 QK norm and grouped-query attention: from one packed row of numbers to what each query head saw.

Hq query heads, Hkv key/value heads, D numbers a head (head_dim). The projection gives each token one row of
(Hq + 2 Hkv) x D numbers: all query heads, then all key heads, then all value heads.

    row of Hq = 2, Hkv = 1, D = 2:   [ q0 q0 | q1 q1 | k0 k0 | v0 v0 ]

1. Queries and keys are normalised head by head (RMSNorm over D; Qwen3's "QK norm"), then turned by their position.
   Values are left alone.
2. Grouped-query attention: Hq / Hkv neighbouring query heads share a key/value head. With 4 and 2, query heads 0 and 1
   use head 0, 2 and 3 use head 1. Each query head then does what attention does: weights = softmax(q . k x scale) over
   the keys that it may see, result = sum of weights x values.

Causal: the last query sees all keys, the one before it all but the last. With Lk keys and Lq queries (fewer, when a
prefix is cached) query i stands at position Lk - Lq + i and sees keys 0 .. Lk - Lq + i.

By hand, Lq = 1, Lk = 2, one head, D = 1, scale 1: q = 1, keys 0 and ln 3, values 10 and 20. The scores are 0 and ln 3,
so the weights are 1/4 and 3/4, and the result is 17.5.
"""

from nanovllm.course import ExerciseNotDone
import torch
from torch import Tensor

from nanovllm.paged_kv.attention import Attention
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.qwen3.ops import TorchOps, apply_rotary
from nanovllm.qwen3.rotary import RotaryAngles


def attend(
    ops: TorchOps,
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    angles: RotaryAngles,
    attention: Attention,
    context: ForwardContext,
) -> Tensor:
    """Split, normalise, turn, attend.

    qkv: [T, (Hq + 2 Hkv) x D]. q_weight, k_weight: [D], of the norms of queries and of keys. angles.cos, angles.sin:
    what apply_rotary(x, cos, sin) takes. attention: knows num_heads (Hq), num_kv_heads (Hkv) and head_dim (D);
    attention(q, k, v, context) stores k and v in the paged cache and attends: q [T, Hq, D], k and v [T, Hkv, D] ->
    [T, Hq, D]. ops.rms_norm(x, weight, eps) is exercise 3.1. Returns [T, Hq, D].
    """
    raise ExerciseNotDone("3.3 qk_norm_gqa", "view qkv as [T, heads, D] and split the heads in three")


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of one sequence's queries to its keys.

    q: [Lq, Hq, D]. k, v: [Lk, Hkv, D] with Lk >= Lq; Hkv divides Hq. scale: factor on q . k (1 / sqrt(D) in the
    engine). Returns [Lq, Hq, D]. Write it with matrix products and softmax; torch's scaled_dot_product_attention may
    be used too, but mind its is_causal when Lq < Lk.
    """
    raise ExerciseNotDone("3.3 qk_norm_gqa", "begin with Hq = Hkv and Lq = Lk; then repeat heads; then offset")
