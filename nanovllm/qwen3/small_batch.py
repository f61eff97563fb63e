"""A decoder layer for up to 8 rows on a GPU: seven kernels where `Qwen3DecoderLayer.forward` takes ten.

At such a batch size a layer's time is that of its launches and of reading the weights once. So the four products have
kernels made for few rows, with the norms and SiLU-and-multiply inside; the other three are attention's. The numbers are
rounded at the same places as in the long way round, which stays the definition.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from nanovllm.paged_kv.context import ForwardContext
from nanovllm.qwen3.rotary import RotaryAngles

if TYPE_CHECKING:
    from nanovllm.qwen3.model import Qwen3DecoderLayer


def products(layer: "Qwen3DecoderLayer", x: Tensor) -> Any:
    """The kernels for x's few rows that take all four weights of the layer: small_linear, tile_linear, or None."""
    ops = layer.mlp.ops
    hidden, heads, inner = x.shape[1], layer.self_attn.o_proj.local_size, layer.mlp.down_proj.local_size
    for kernels in (ops.small, ops.tile):
        if kernels is None:
            continue
        if kernels.suits(x, hidden, gated=True) and kernels.suits(x, heads) and kernels.suits(x, inner):
            return kernels
    return None


def forward(
    layer: "Qwen3DecoderLayer",
    run: Any,
    x: Tensor,
    residual: Tensor | None,
    angles: RotaryAngles,
    context: ForwardContext,
) -> tuple[Tensor, Tensor]:
    """As `Qwen3DecoderLayer.forward`; run: what `products` found."""
    attention, mlp = layer.self_attn, layer.mlp
    norm, qkv_proj = layer.input_layernorm, attention.qkv_proj
    qkv, residual = run.norm_linear(x, residual, norm.weight, norm.eps, qkv_proj.weight, qkv_proj.bias)
    q_weight, k_weight = attention.q_norm.weight, attention.k_norm.weight
    out = mlp.ops.attend(qkv, q_weight, k_weight, attention.q_norm.eps, angles, attention.attention, context)
    x = attention.o_proj.add_up(run.linear(out.flatten(1), attention.o_proj.weight))
    norm = layer.post_attention_layernorm
    gated, residual = run.norm_linear(x, residual, norm.weight, norm.eps, mlp.gate_up_proj.weight, gated=True)
    return mlp.down_proj.add_up(run.linear(gated, mlp.down_proj.weight)), residual
