# ruff: noqa: F401 (imports that you may need)
"""2.1 KV budget: how many blocks does the memory pay for?

Every layer keeps a key and a value of every token, one of each for every KV head, head_dim numbers long. The pool is
cut into blocks of block_size tokens. Example, Qwen3-0.6B in bfloat16 (2 bytes a number) with blocks of 256 tokens:

    a token:  2 (K and V) x 28 layers x 8 KV heads x 128 x 2 bytes = 114,688 bytes (112 KiB)
    a block:  114,688 x 256 = 29,360,128 bytes (28 MiB)
    1 GiB:    1,073,741,824 / 29,360,128 = 36.57..., so 36 whole blocks

and what is left for the cache on a card of 1000 bytes, of which the engine may use 90 %, with SAFETY_BYTES taken as 0:

    weights 300, a step needs 50 more, graphs 20, 800 free:  min(900 - 300, 800) - 50 - 20 = 530
    the same with 450 free (somebody else is on the card):   min(900 - 300, 450) - 50 - 20 = 380
"""

from nanovllm.course import ExerciseNotDone
from nanovllm.errors import MemoryBudgetError
from nanovllm.paged_kv.cache import KVCacheSpec
from nanovllm.paged_kv.memory import SAFETY_BYTES, MemoryBudget


def bytes_per_token(spec: KVCacheSpec) -> int:
    """Bytes of the keys and values of one token in all layers.

    spec has num_layers, num_kv_heads, head_dim and dtype; spec.dtype.itemsize is the bytes of one number.
    By hand: 3 layers, 2 KV heads, head_dim 4, float32 -> 2 x 3 x 2 x 4 x 4 = 192.
    """
    raise ExerciseNotDone("2.1 kv_budget", "how many numbers does one token leave in the cache?")


def blocks_in(spec: KVCacheSpec, num_bytes: int) -> int:
    """Whole blocks that fit into `num_bytes`, which may be anything, negative too.

    spec.bytes_per_block is bytes_per_token x block_size. Raises MemoryBudgetError (with a sentence) when not one fits.
    By hand: blocks of 768 bytes: 767 -> MemoryBudgetError; 768 -> 1; 2303 -> 2; 2304 -> 3.
    """
    raise ExerciseNotDone("2.1 kv_budget", "half a block holds nothing: round in the safe direction")


def for_cache(budget: MemoryBudget) -> int:
    """Bytes that are left for the pool on one GPU; negative when there is not enough for the rest already.

    budget, all in bytes but the last: total (of the card), free (now; weights and other processes are taken off), held
    (weights and buffers of this engine), peak (what a step needs besides), graphs (reserved for CUDA graphs),
    utilization (the share of total that this engine may use, 0 to 1).

    Two limits hold: the engine's share of the card, int(total x utilization), of which `held` is in use; and what is
    free, less SAFETY_BYTES for what nobody can see. From the smaller one come peak and graphs off.
    """
    raise ExerciseNotDone("2.1 kv_budget", "work out both limits first, then take the smaller one")
