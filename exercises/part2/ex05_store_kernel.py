"""2.5 The store kernel: each token's K and V into its slot, in Triton.

A kernel is a function of which many copies, called programs, run at once. Here one program serves one token. It asks
for its own number, looks up its slot, reads the token's row of k and writes it to the slot's row of the cache; the same
for v. Memory is one long row of numbers: what a Python programmer writes as cache[slot] begins at number
slot x row_size, when each slot holds row_size numbers. Example with row_size 6 (2 heads of 3 numbers) and slot_mapping
[4, -1, 2]:

    program 0   reads numbers 0 .. 5 of k     writes numbers 24 .. 29 of k_cache
    program 1   has slot -1, a padded row: writes nothing
    program 2   reads numbers 12 .. 17 of k   writes numbers 12 .. 17 of k_cache

tl.arange needs a power of two, so BLOCK is 8 here: the columns 6 and 7 are not inside the row and are masked.

Without a GPU the kernel runs in Triton's interpreter, as the grader does it. In a notebook or script of yours set the
environment variable TRITON_INTERPRET=1 before anything imports triton. On a GPU the engine stores K and V in the kernel
that normalises and rotates them, which saves a launch; this one is the same without those two.
"""

import torch
import triton
import triton.language as tl

from nanovllm.course import ExerciseNotDone


@triton.jit
def store_kernel(
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
    """Program t: write row t of k and v to the slot slot_ptr[t] of their caches; a slot of -1 writes nothing.

    k_ptr and the other pointers point at the first number of each tensor; pointer + i points at number i.
    k_row_stride, v_row_stride: numbers from one token's row to the next, which may be more than row_size.
    row_size: numbers of a row, and of a slot. BLOCK: the next power of two.

    tl.program_id(0) is t. tl.load(pointer + i) reads; tl.load(pointer + tl.arange(0, BLOCK), mask=...) reads many;
    tl.store(pointers, values, mask=...) writes. An `if` on a single number is fine; the interpreter refuses a mask that
    joins one with `&`.
    """
    raise ExerciseNotDone("2.5 store_kernel", "one number first: which slot does this program's token have?")


def store_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slot_mapping: torch.Tensor
) -> None:
    """Launch one program a token. This function is complete.

    k, v: [T, Hkv, D], rows may be strided. Caches: [blocks, block_size, Hkv, D]. slot_mapping: [T] int64.
    """
    num_tokens, num_heads, head_dim = k.shape
    row_size = num_heads * head_dim
    if num_tokens:
        store_kernel[(num_tokens,)](
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
