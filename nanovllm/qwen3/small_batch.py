"""A decoder layer for one or two rows on a GPU: seven kernels where `Qwen3DecoderLayer.forward` takes ten.

At such a batch size a layer's time is that of its launches. Here the norms ride on the products that follow them, and
SiLU-and-multiply on the down projection; the numbers are rounded at the same places as in the long way round, which
stays the definition.
"""

from typing import TYPE_CHECKING

from torch import Tensor

from nanovllm.paged_kv.context import ForwardContext
from nanovllm.qwen3.rotary import RotaryAngles

if TYPE_CHECKING:
    from nanovllm.qwen3.model import Qwen3DecoderLayer


def suits(layer: "Qwen3DecoderLayer", x: Tensor) -> bool:
    """True where the kernels for a few rows are there and take all four weights of the layer."""
    attention, mlp, small = layer.self_attn, layer.mlp, layer.mlp.ops.small
    if small is None or x.shape[0] > small.FEW:
        return False
    layers = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
    return all(small.fits(linear.weight) for linear in layers)


def forward(
    layer: "Qwen3DecoderLayer", x: Tensor, residual: Tensor | None, angles: RotaryAngles, context: ForwardContext
) -> tuple[Tensor, Tensor]:
    """As `Qwen3DecoderLayer.forward`."""
    attention, mlp, ops = layer.self_attn, layer.mlp, layer.mlp.ops
    small, norm, qkv_proj = ops.small, layer.input_layernorm, attention.qkv_proj
    qkv, residual = small.norm_linear(x, residual, norm.weight, norm.eps, qkv_proj.weight, qkv_proj.bias)
    q_weight, k_weight = attention.q_norm.weight, attention.k_norm.weight
    out = ops.attend(qkv, q_weight, k_weight, attention.q_norm.eps, angles, attention.attention, context)
    x = attention.o_proj.add_up(small.small_linear(out.flatten(1), attention.o_proj.weight))
    norm = layer.post_attention_layernorm
    gate_up, residual = small.norm_linear(x, residual, norm.weight, norm.eps, mlp.gate_up_proj.weight)
    return mlp.down_proj.add_up(small.silu_linear(gate_up, mlp.down_proj.weight)), residual
