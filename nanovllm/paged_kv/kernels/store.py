"""The KV store kernel: each token's K and V into its slot."""

import torch
import triton
import triton.language as tl


@triton.jit
def _store_kernel(
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    slot_ptr,
    k_row_stride,
    v_row_stride,
    row_size,
    BLOCK: tl.constexpr,
):
    """One program a token. A token's heads lie behind each other, both in the source row and in its slot."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + token)
    if slot >= 0:  # -1 marks a padded row, which has no K/V to keep
        column = tl.arange(0, BLOCK)
        inside = column < row_size
        k = tl.load(k_ptr + token * k_row_stride + column, mask=inside)
        v = tl.load(v_ptr + token * v_row_stride + column, mask=inside)
        start = slot.to(tl.int64) * row_size  # 64 bits: a large pool has more than 2^31 elements
        tl.store(k_cache_ptr + start + column, k, mask=inside)
        tl.store(v_cache_ptr + start + column, v, mask=inside)


def store_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Write row i of k and v [T, Hkv, D] to slot slot_mapping[i] of the caches [blocks, block_size, Hkv, D].

    The rows of k and v may be strided (views of one QKV matrix); within a row the heads must be contiguous.
    """
    num_tokens, num_heads, head_dim = k.shape
    row_size = num_heads * head_dim
    for name, t in (("k", k), ("v", v)):
        if t.stride(2) != 1 or t.stride(1) != head_dim:
            raise ValueError(f"{name}'s heads must be contiguous within a row; its strides are {t.stride()}")
    if num_tokens:
        _store_kernel[(num_tokens,)](
            k,
            v,
            k_cache,
            v_cache,
            slot_mapping,
            k.stride(0),
            v.stride(0),
            row_size,
            BLOCK=triton.next_power_of_2(row_size),
        )
