"""2.6 Paged decode attention: one query a sequence against its cached keys.

The keys of a sequence lie in blocks that are scattered over the pool. Attention collects them through the block table,
scores each against the query, turns the scores into weights that sum to 1, and adds the values up with these weights.
Example with block_size 2, one head, head_dim 1, the block table [3, 0], context_lens [3], the query 1.0 and scale 1:

    slots of positions 0, 1, 2     6, 7, 0
    keys there                     0.0, 0.0, 0.6931       (0.6931 is ln 2)
    weights                        1/4, 1/4, 2/4          softmax: exp(0) : exp(0) : exp(ln 2) = 1 : 1 : 2
    values there                   8.0, 4.0, 1.0
    output                         8/4 + 4/4 + 2/4 = 3.5

What stands in slot 1 (the second one of block 0) does not matter: the sequence has 3 keys.

Several query heads share one KV head (grouped-query attention): with 4 query heads and 2 KV heads, heads 0 and 1 use KV
head 0, heads 2 and 3 use KV head 1.
"""

import torch
from torch import Tensor

# stub: from nanovllm.course import ExerciseNotDone
from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.paged_kv.context import ForwardContext


def decode(
    backend: TorchBackend, q: Tensor, k_cache: Tensor, v_cache: Tensor, context: ForwardContext, scale: float
) -> Tensor:
    """Attention of one row a sequence to its cached keys: q [B, Hq, D] -> [B, Hq, D].

    k_cache, v_cache: [num_blocks, block_size, Hkv, D]; the step's own K/V are stored already.
    q is a view of a larger tensor, and the caches are the engine's: write into none of them.
    context.block_tables: [B, max_blocks] int32. context.context_lens: [B] int32, keys of each sequence.
    scale: what each score (the dot product of query and key) is multiplied by.
    Hq is a multiple of Hkv: query head h uses KV head h // (Hq // Hkv).
    """
    # stub: raise ExerciseNotDone("2.6 decode_attention", "one sequence after the other: which slots hold its keys?")
    # solution: begin
    out = torch.empty_like(q)
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, block_size = k_cache.shape[2], k_cache.shape[1]
    for i, length in enumerate(context.context_lens.tolist()):
        position = torch.arange(length, device=q.device)
        slots = context.block_tables[i].long()[position // block_size] * block_size + position % block_size
        keys = k_cache.flatten(0, 1)[slots]  # [length, Hkv, D]
        values = v_cache.flatten(0, 1)[slots]
        # The query heads of one KV head become rows of a matrix of their own, so that no key is copied.
        queries = q[i].view(num_kv_heads, num_heads // num_kv_heads, head_dim)
        scores = torch.einsum("hgd,lhd->hgl", queries, keys) * scale
        weights = scores.softmax(dim=-1)
        out[i] = torch.einsum("hgl,lhd->hgd", weights, values).reshape(num_heads, head_dim)
    # The engine does this for all sequences in one call where they are short, and reads neighbouring blocks without
    # a copy where they are long.
    return out
    # solution: end
