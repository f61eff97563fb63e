"""2.7 Prefill attention that knows of a cached prefix.

A prompt's tokens attend to themselves and to what comes before them. When a prefix is cached, or when the prompt comes
in chunks, the step computes only the last rows, but their keys begin at position 0. Example: 3 queries, 5 keys, so that
2 keys were there before. x marks what a query sees:

    key        0  1  2  3  4
    query 0    x  x  x  .  .      the query of position 2
    query 1    x  x  x  x  .
    query 2    x  x  x  x  x

The last query always sees everything. With as many queries as keys this is the usual triangle.

Where do the keys come from? Without block tables nothing is cached: a sequence's keys are the rows of this step. With
block tables all of them, prefix and chunk, are in the pool, because the step stores its K/V before it attends.
"""

import torch
from torch import Tensor

# stub: from nanovllm.course import ExerciseNotDone
from nanovllm.paged_kv.backends import torch_backend
from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.paged_kv.context import ForwardContext


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of one sequence: q [Lq, Hq, D] against k and v [Lk, Hkv, D], Lk >= Lq -> [Lq, Hq, D].

    Query i has position Lk - Lq + i and sees the keys 0 .. Lk - Lq + i.
    Hq is a multiple of Hkv: query head h uses KV head h // (Hq // Hkv). Each score is multiplied by scale.
    q, k and v are views of a larger tensor: write into none of them.
    """
    # stub: raise ExerciseNotDone("2.7 prefill_attention", "draw the x of 2 queries and 4 keys; then write that mask")
    # solution: begin
    num_queries, num_keys = q.shape[0], k.shape[0]
    group = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)  # [Lk, Hq, D]
    scores = torch.einsum("qhd,khd->hqk", q, keys) * scale
    last_visible = torch.arange(num_queries, device=q.device) + (num_keys - num_queries)
    visible = torch.arange(num_keys, device=q.device) <= last_visible.unsqueeze(1)  # [Lq, Lk]
    # -inf, not 0: exp(0) is 1, and a hidden key would still get a weight.
    weights = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, values)
    # solution: end


def prefill(
    backend: TorchBackend,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    context: ForwardContext,
    scale: float,
) -> Tensor:
    """Attention of the packed rows of B sequences: q [T, Hq, D] -> [T, Hq, D].

    k, v: [T, Hkv, D], this step's rows. k_cache, v_cache: [num_blocks, block_size, Hkv, D], with these rows stored.
    q, k and v are views of a larger tensor, and the caches are the engine's: write into none of them.
    context.cu_seqlens_q: [B + 1] int32; rows cu_seqlens_q[i] to cu_seqlens_q[i + 1] - 1 belong to sequence i.
    context.context_lens: [B] int32, keys of each sequence.
    context.block_tables: [B, max_blocks] int32, or None when no sequence has anything cached.
    torch_backend.causal_attention(q, k, v, scale) is the function above as the engine runs it.
    """
    # stub: raise ExerciseNotDone("2.7 prefill_attention", "cut out the rows of sequence i; where do its keys lie?")
    # solution: begin
    out = torch.empty_like(q)
    bounds = context.cu_seqlens_q.tolist()
    for i, length in enumerate(context.context_lens.tolist()):
        rows = slice(bounds[i], bounds[i + 1])
        if context.block_tables is None:
            keys, values = k[rows], v[rows]
        else:
            block_size = k_cache.shape[1]
            position = torch.arange(length, device=q.device)
            slots = context.block_tables[i].long()[position // block_size] * block_size + position % block_size
            keys, values = k_cache.flatten(0, 1)[slots], v_cache.flatten(0, 1)[slots]
        out[rows] = torch_backend.causal_attention(q[rows], keys, values, scale)
    return out
    # solution: end
