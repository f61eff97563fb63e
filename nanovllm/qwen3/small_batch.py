"""A decoder layer for up to 384 rows on a GPU, with products made for few rows in place of the library's usual ones.

At such a batch size a layer's time is that of its launches and of reading the weights once. For up to 8 rows it takes
seven kernels, or five where attention is one (`kernels/fused_decode.py`), in place of ten: the four products have the
norms and SiLU-and-multiply inside; the rest is attention's. For 9 to 384 rows the two products with few outputs are cut
into parts that the next norm adds up (`split_linear.py`). The numbers are rounded at the same places as in the long way
round, `Qwen3DecoderLayer.forward`, which stays the definition.
"""

from typing import TYPE_CHECKING, Any

from torch import Tensor

from nanovllm.paged_kv.context import ForwardContext
from nanovllm.qwen3 import split_linear
from nanovllm.qwen3.rotary import RotaryAngles

if TYPE_CHECKING:
    from nanovllm.qwen3.model import Qwen3DecoderLayer


def products(layer: "Qwen3DecoderLayer", x: Tensor) -> Any:
    """What makes the products of x's few rows: tile_linear, small_linear, split_linear, or None for the long way round.

    x: [rows, hidden_size], or [parts, rows, hidden_size] from a layer that took split_linear.
    """
    ops, o_proj, down_proj = layer.mlp.ops, layer.self_attn.o_proj, layer.mlp.down_proj
    if x.dim() == 3:
        return split_linear
    hidden, heads, inner = x.shape[1], o_proj.local_size, down_proj.local_size
    for kernels in (ops.tile, ops.small):
        if kernels is None:
            continue
        if kernels.suits(x, hidden, gated=True) and kernels.suits(x, heads) and kernels.suits(x, inner):
            return kernels
    # Several ranks add up their products before the norm, and so is a bias.
    in_parts = ops.adds_up_parts and o_proj.group.size == 1 and o_proj.bias is None
    fits = in_parts and split_linear.suits(x, o_proj.weight) and split_linear.suits(x, down_proj.weight)
    return split_linear if fits else None


def forward(
    layer: "Qwen3DecoderLayer",
    run: Any,
    x: Tensor,
    residual: Tensor | None,
    angles: RotaryAngles,
    context: ForwardContext,
) -> tuple[Tensor, Tensor]:
    """As `Qwen3DecoderLayer.forward`; run: what `products` found. With split_linear the output is in parts."""
    attention, mlp = layer.self_attn, layer.mlp
    if run is split_linear:
        return _forward_in_parts(layer, x, residual, angles, context)
    norm, qkv_proj = layer.input_layernorm, attention.qkv_proj
    qkv, residual = run.norm_linear(x, residual, norm.weight, norm.eps, qkv_proj.weight, qkv_proj.bias)
    out = _attend(layer, qkv, angles, context)
    x = attention.o_proj.add_up(run.linear(out, attention.o_proj.weight))
    norm = layer.post_attention_layernorm
    gated, residual = run.norm_linear(x, residual, norm.weight, norm.eps, mlp.gate_up_proj.weight, gated=True)
    return mlp.down_proj.add_up(run.linear(gated, mlp.down_proj.weight)), residual


def _attend(layer: "Qwen3DecoderLayer", qkv: Tensor, angles: RotaryAngles, context: ForwardContext) -> Tensor:
    """From the QKV product to what the output projection is given: [T, Hq * D]."""
    attention = layer.self_attn
    q_norm, k_norm = attention.q_norm, attention.k_norm
    heads = attention.ops.attend(qkv, q_norm.weight, k_norm.weight, q_norm.eps, angles, attention.attention, context)
    return heads.flatten(1)


def _forward_in_parts(
    layer: "Qwen3DecoderLayer",
    x: Tensor,
    residual: Tensor | None,
    angles: RotaryAngles,
    context: ForwardContext,
) -> tuple[Tensor, Tensor]:
    """The layer with split_linear: ([parts, rows, hidden_size] fp32 that add up to its output, residual)."""
    attention, mlp = layer.self_attn, layer.mlp
    norm = layer.input_layernorm
    x, residual = (norm(x), x) if residual is None else norm.add_and_norm(x, residual)
    out = _attend(layer, attention.qkv_proj(x), angles, context)
    parts = split_linear.partial_sums(out, attention.o_proj.weight)
    x, residual = layer.post_attention_layernorm.add_and_norm(parts, residual)
    gated = mlp.ops.gated(x, mlp.gate_up_proj.weight)
    return split_linear.partial_sums(gated, mlp.down_proj.weight), residual
