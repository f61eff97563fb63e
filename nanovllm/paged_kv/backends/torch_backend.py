"""The reference backend: paged attention in plain torch, on any device, for any block size."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nanovllm.paged_kv.context import ForwardContext

PADDED_KEYS = 48  # up to here one padded call costs no more than a call for each sequence (8 to 32 of them, 2 cores)


class TorchBackend:
    """Gathers pages by slot and calls scaled_dot_product_attention. Slow on a GPU, easy to check by hand."""

    name = "torch"
    supports_cuda_graphs = False  # its gathers have the size of the longest context, which changes every step
    fuses_decode = False

    def store(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        """See AttentionBackend.store."""
        keep = slot_mapping >= 0  # a plain index of -1 would overwrite the pool's last slot
        slots = slot_mapping[keep]
        k_cache.flatten(0, 1)[slots] = k[keep]
        v_cache.flatten(0, 1)[slots] = v[keep]

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, context: ForwardContext, scale: float
    ) -> Tensor:
        """One call a sequence. With block tables K/V come from the pool (prefix and chunk), else from k and v."""
        out = torch.empty_like(q)
        bounds = context.query_bounds
        for i, key_len in enumerate(context.key_lens):
            rows = slice(bounds[i], bounds[i + 1])
            if context.block_tables is None:
                keys, values = k[rows], v[rows]
            else:
                slots = context.key_slots(k_cache.shape[1])[i, :key_len]
                keys, values = k_cache.flatten(0, 1)[slots], v_cache.flatten(0, 1)[slots]
            out[rows] = causal_attention(q[rows], keys, values, scale)
        return out

    def decode(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, context: ForwardContext, scale: float) -> Tensor:
        """One call for all sequences while the longest is short, or on a GPU; else one a sequence."""
        if q.is_cuda or context.max_seqlen_k <= PADDED_KEYS:
            return self._decode_padded(q, k_cache, v_cache, context, scale)
        return self._decode_each(q, k_cache, v_cache, context, scale)

    def _decode_padded(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, context: ForwardContext, scale: float
    ) -> Tensor:
        """All sequences in one call, padded to the longest; the query heads of one KV head become rows."""
        num_seqs, num_heads, head_dim = q.shape
        num_kv_heads = k_cache.shape[2]
        slots = context.key_slots(k_cache.shape[1])  # [B, S]
        keys = k_cache.flatten(0, 1)[slots].transpose(1, 2)  # [B, Hkv, S, D]
        values = v_cache.flatten(0, 1)[slots].transpose(1, 2)
        visible = torch.arange(slots.shape[1], device=q.device) < context.context_lens.unsqueeze(1)  # [B, S]
        grouped = q.view(num_seqs, num_kv_heads, num_heads // num_kv_heads, head_dim)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=visible[:, None, None], scale=scale)
        return out.reshape(num_seqs, num_heads, head_dim)

    def _decode_each(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, context: ForwardContext, scale: float
    ) -> Tensor:
        """The same, sequence by sequence: reads no padding, and copies keys only where blocks are not neighbours.

        A CPU's decode is bound by memory: the padded call writes and reads again a copy of all keys and values that
        is as long as the longest sequence in each row.
        """
        num_seqs, num_heads, head_dim = q.shape
        num_kv_heads = k_cache.shape[2]
        grouped = q.reshape(num_seqs, 1, num_kv_heads, num_heads // num_kv_heads, head_dim)
        out = torch.empty_like(grouped)
        pages = context.key_pages(k_cache.shape[1])
        for i, (where, key_len) in enumerate(zip(pages, context.key_lens, strict=True)):
            keys, values = (_keys_at(cache, where, key_len) for cache in (k_cache, v_cache))
            out[i] = F.scaled_dot_product_attention(grouped[i], keys, values, scale=scale)
        return out.view(num_seqs, num_heads, head_dim)


def _keys_at(cache: Tensor, where: slice | Tensor, length: int) -> Tensor:
    """[1, Hkv, length, D]: the K (or V) of one sequence, from `ForwardContext.key_pages`."""
    if isinstance(where, slice):
        found = cache.flatten(0, 1)[where]
    else:
        found = cache.index_select(0, where).flatten(0, 1)[:length]
    return found.transpose(0, 1).unsqueeze(0)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [Lq, Hq, D] against k, v [Lk, Hkv, D], Lk >= Lq: query i sees keys 0 .. Lk - Lq + i; [Lq, Hq, D]."""
    num_queries, num_keys = q.shape[0], k.shape[0]
    if num_queries == num_keys:
        mask, is_causal = None, True
    else:
        last_visible = torch.arange(num_queries, device=q.device) + (num_keys - num_queries)
        mask, is_causal = torch.arange(num_keys, device=q.device) <= last_visible.unsqueeze(1), False
    group = q.shape[1] // k.shape[1]
    queries, keys, values = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))  # [1, H, L, D]
    out = F.scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=group > 1
    )
    return out.squeeze(0).transpose(0, 1)
