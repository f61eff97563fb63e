"""An attention backend that spells attention out: every call of the running engine ends in `grouped_attention`.

It takes the place of the engine's backend, which leaves the arithmetic to torch:

    for layer in llm.model_runner.model.attention_layers:
        layer.backend = PlainBackend()
"""

import torch
from torch import Tensor

from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.paged_kv.context import ForwardContext


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [Lq, Hq, D] to k and v [Lk, Hkv, D], Lk >= Lq: query i sees keys 0 .. Lk - Lq + i; [Lq, Hq, D].

    Query heads h x Hq / Hkv .. (h + 1) x Hq / Hkv - 1 share key/value head h.
    """
    num_queries, num_keys = q.shape[0], k.shape[0]
    share = q.shape[1] // k.shape[1]
    keys, values = (t.repeat_interleave(share, dim=1).transpose(0, 1) for t in (k, v))  # [Hq, Lk, D]
    scores = q.transpose(0, 1) @ keys.transpose(1, 2) * scale  # [Hq, Lq, Lk]
    position = torch.arange(num_queries, device=q.device) + (num_keys - num_queries)
    visible = torch.arange(num_keys, device=q.device) <= position.unsqueeze(1)  # [Lq, Lk]
    weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
    return (weights @ values).transpose(0, 1)


class PlainBackend(TorchBackend):
    """Stores as the torch backend does, reads each sequence's keys through its block table, and attends in the open."""

    name = "plain"

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, context: ForwardContext, scale: float
    ) -> Tensor:
        """See AttentionBackend.prefill."""
        bounds = context.query_bounds
        out = []
        for i, key_len in enumerate(context.key_lens):
            rows = slice(bounds[i], bounds[i + 1])
            keys, values = k[rows], v[rows]
            if context.block_tables is not None:
                keys, values = _of_sequence(context, i, key_len, k_cache, v_cache)
            out.append(grouped_attention(q[rows], keys, values, scale))
        return torch.cat(out)

    def decode(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, context: ForwardContext, scale: float) -> Tensor:
        """See AttentionBackend.decode."""
        out = []
        for i, key_len in enumerate(context.key_lens):
            keys, values = _of_sequence(context, i, key_len, k_cache, v_cache)
            out.append(grouped_attention(q[i : i + 1], keys, values, scale))
        return torch.cat(out)


def _of_sequence(
    context: ForwardContext, index: int, length: int, k_cache: Tensor, v_cache: Tensor
) -> tuple[Tensor, Tensor]:
    slots = context.key_slots(k_cache.shape[1])[index, :length]
    return k_cache.flatten(0, 1)[slots], v_cache.flatten(0, 1)[slots]
