"""Small layers for the checks of part 3: made from plain lists, on the CPU, with nothing loaded from disk."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from nanovllm.paged_kv.context import ForwardContext
from nanovllm.qwen3.model import Qwen3MLP
from nanovllm.qwen3.ops import TorchOps
from nanovllm.qwen3.placement import Placement
from nanovllm.qwen3.rotary import RotaryAngles


def angles_from(start: int, count: int, head_dim: int, theta: float) -> RotaryAngles:
    """The angles of positions start .. start + count - 1, made without the functions that exercise 3.2 is about."""
    frequencies = torch.tensor([theta ** (-2 * i / head_dim) for i in range(head_dim // 2)])
    turns = torch.arange(start + count, dtype=torch.float32).unsqueeze(1) * frequencies
    return RotaryAngles(torch.cat([turns.cos(), turns.sin()], dim=-1), torch.arange(start, start + count))


def whole_prompt(length: int) -> ForwardContext:
    """The context of a prefill of one sequence, all of it, without a cache."""
    bounds = torch.tensor([0, length], dtype=torch.int32)
    lens = torch.tensor([length], dtype=torch.int32)
    return ForwardContext(True, torch.arange(length), lens, None, bounds, bounds, length, length)


class Recorder:
    """Stands in for a layer's paged attention: keeps what it was given, and answers with the queries."""

    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.given: dict[str, Tensor] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, context: ForwardContext) -> Tensor:
        """Remember q, k and v."""
        self.given = {"q": q, "k": k, "v": v}
        return q


def heads_of(
    qkv: Any, num_heads: int, num_kv_heads: int, q_weight: Any, k_weight: Any, eps: float, theta: float
) -> dict[str, Tensor]:
    """What `TorchOps.attend` hands to the attention of a layer for one whole prompt, and what it returns.

    qkv: nested list [T, (Hq + 2 Hkv) D]. The stand-in for attention answers with the queries, so that `out` must be q.
    """
    layer: Any = Recorder(num_heads, num_kv_heads, len(q_weight))
    angles = angles_from(0, len(qkv), len(q_weight), theta)
    norms = torch.tensor(q_weight), torch.tensor(k_weight)
    out = TorchOps().attend(torch.tensor(qkv), *norms, eps, angles, layer, whole_prompt(len(qkv)))
    return layer.given | {"out": out}


def mlp(gate: Any, up: Any, down: Any) -> Qwen3MLP:
    """A feed-forward layer with these weights: gate and up [n, hidden], down [hidden, n], nested lists."""
    sizes: Any = SimpleNamespace(hidden_size=len(down), intermediate_size=len(gate))
    layer = Qwen3MLP(sizes, "mlp", Placement())
    layer.gate_up_proj.weight.copy_(torch.tensor([*gate, *up]))
    layer.down_proj.weight.copy_(torch.tensor(down))
    return layer
