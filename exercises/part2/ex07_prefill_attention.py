# ruff: noqa: F401 (imports that you may need)
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

from nanovllm.course import ExerciseNotDone
from nanovllm.paged_kv.backends import torch_backend
from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.paged_kv.context import ForwardContext


def causal_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of one sequence: q [Lq, Hq, D] against k and v [Lk, Hkv, D], Lk >= Lq -> [Lq, Hq, D].

    Query i has position Lk - Lq + i and sees the keys 0 .. Lk - Lq + i.
    Hq is a multiple of Hkv: query head h uses KV head h // (Hq // Hkv). Each score is multiplied by scale.
    q, k and v are views of a larger tensor: write into none of them.
    """
    raise ExerciseNotDone("2.7 prefill_attention", "draw the x of 2 queries and 4 keys; then write that mask")


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
    raise ExerciseNotDone("2.7 prefill_attention", "cut out the rows of sequence i; where do its keys lie?")
