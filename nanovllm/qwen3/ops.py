"""The small operations of a layer behind one object: plain torch (the reference) or fused Triton kernels.

Both compute the same, rounded at the same places. The reference is what a learner reads; the kernels do in one pass
over memory what it does in several, which is where a decode step's time goes.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanovllm.paged_kv.attention import Attention
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.qwen3.rotary import RotaryAngles, apply_rotary


class TorchOps:
    """The reference, on any device."""

    name = "torch"
    small: Any = None  # kernels for one or two rows, and for up to 8, where there are some: see small_batch.py
    tile: Any = None
    adds_up_parts = False  # True: add_rms_norm takes x as [parts, T, size] fp32 that add up to it

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over the last dimension; statistics in fp32, x is not changed.

        Zhang and Sennrich, 2019 (arXiv:1910.07467). Rounded to x's dtype before the weight is applied, as Qwen3 does.
        """
        x32 = x.float()
        scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
        return (x32 * scale).to(x.dtype) * weight

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(norm(x + residual), x + residual)."""
        residual = x + residual
        return self.rms_norm(residual, weight, eps), residual

    def embedding(self, token_ids: Tensor, weight: Tensor) -> Tensor:
        """Rows token_ids [T] of weight [vocab_size, hidden_size]; [T, hidden_size]."""
        return F.embedding(token_ids, weight)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [T, in_features] times weight [out_features, in_features] transposed, plus bias."""
        return F.linear(x, weight, bias)

    def logits(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """hidden [n, hidden_size] times weight [vocab_size, hidden_size] transposed; [n, vocab_size]."""
        return F.linear(hidden, weight)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """[T, 2 * n] (gate, then up) -> silu(gate) * up [T, n]."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def gated(self, x: Tensor, weight: Tensor) -> Tensor:
        """silu_and_mul of x [T, in_features] times weight [2 * n, in_features] transposed; [T, n]."""
        return self.silu_and_mul(self.linear(x, weight))

    def attend(
        self,
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        eps: float,
        angles: RotaryAngles,
        attention: Attention,
        context: ForwardContext,
    ) -> Tensor:
        """Split qkv [T, (Hq + 2 * Hkv) * D] into heads, normalise and rotate q and k, attend; [T, Hq, D]."""
        heads = qkv.view(qkv.shape[0], -1, attention.head_dim)
        q, k, v = heads.split([attention.num_heads, attention.num_kv_heads, attention.num_kv_heads], dim=1)
        q = apply_rotary(self.rms_norm(q, q_weight, eps), angles.cos, angles.sin)
        k = apply_rotary(self.rms_norm(k, k_weight, eps), angles.cos, angles.sin)
        return attention(q, k, v, context)


class TritonOps(TorchOps):
    """The fused kernels, on a GPU (or a CPU under Triton's interpreter)."""

    name = "triton"
    adds_up_parts = True

    def __init__(self) -> None:
        # Triton is imported only where it is used: it is missing on Windows and macOS.
        from nanovllm.qwen3.kernels import (
            activation,
            embedding,
            gated_linear,
            heads,
            logits,
            norm,
            small_linear,
            tile_linear,
        )
        from nanovllm.qwen3.kernels.fused_decode import FusedDecode

        self._fused_decode = FusedDecode()
        self._embedding, self._norm, self._activation, self._heads = embedding, norm, activation, heads
        self._gated, self._logits, self.small, self.tile = gated_linear, logits, small_linear, tile_linear

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See TorchOps.rms_norm."""
        return self._norm.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See TorchOps.add_rms_norm; x may be [parts, T, size] fp32 that add up to it."""
        return self._norm.add_rms_norm(x, residual, weight, eps)

    def embedding(self, token_ids: Tensor, weight: Tensor) -> Tensor:
        """See TorchOps.embedding; a few rows take a kernel of ours."""
        run = self._embedding.embedding if self._embedding.suits(token_ids) else super().embedding
        return run(token_ids, weight)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """See TorchOps.linear; a few rows take a kernel made for them, more the library's matrix product."""
        if self.small.suits(x, weight.shape[1]) and x.stride(1) == 1:
            return self.small.linear(x, weight, bias)
        return F.linear(x, weight, bias)

    def logits(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """See TorchOps.logits; up to 32 rows take a kernel of ours where it suits."""
        run = self._logits.logits if self._logits.suits(hidden, weight) else super().logits
        return run(hidden, weight)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """See TorchOps.silu_and_mul."""
        return self._activation.silu_and_mul(gate_up)

    def gated(self, x: Tensor, weight: Tensor) -> Tensor:
        """See TorchOps.gated; some rows and a small weight take one kernel."""
        return self._gated.gated(x, weight) if self._gated.suits(x, weight) else super().gated(x, weight)

    def attend(
        self,
        qkv: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        eps: float,
        angles: RotaryAngles,
        attention: Attention,
        context: ForwardContext,
    ) -> Tensor:
        """See TorchOps.attend; norm, rotation and the KV store are one kernel, and for few rows attention is in it."""
        if self._fused_decode.suits(qkv, attention, context):
            row = qkv, q_weight, k_weight, eps, angles.table, angles.positions
            return self._fused_decode(*row, attention, context)
        q, k, v = self._heads.norm_rotate_store(
            qkv,
            q_weight,
            k_weight,
            eps,
            angles.table,
            angles.positions,
            attention.num_heads,
            attention.num_kv_heads,
            context.slot_mapping,
            attention.k_cache,
            attention.v_cache,
        )
        return attention(q, k, v, context, stored=True)
