"""Paged prefill attention in Triton: packed variable-length queries against cached and new keys, causal.

Online softmax over blocks of keys (FlashAttention, Dao et al., 2022, arXiv:2205.14135). A program's keys come in two
parts: those that all its queries see, of which nothing is masked, and the rest, up to the last that any of them sees.

Where the GPU has an engine that copies whole tiles (Hopper's tensor memory accelerator, asked for by a tensor
descriptor), the keys and values of the first part come through it; all others by addresses that each thread computes.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from nanovllm.paged_kv.kernels.launch import (
    VERSION,
    dot_precision,
    early,
    multiprocessors,
    shared_memory,
    starts_early,
    wait_for_inputs,
)

try:
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:  # an older Triton
    TensorDescriptor = None

CAN_DESCRIBE = TensorDescriptor is not None and VERSION >= (3, 5)
LOG2_E = math.log2(math.e)
LARGE_TILES = 128 * 1024  # bytes of shared memory for the tiles of choose_tiles that are not the default ones


@triton.jit
def _tile(
    pointer,
    descriptor,
    first,
    head,
    k_start,
    k_len,
    stride,
    table_ptr,
    block_size,
    PAGED: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    DESCRIBED: tl.constexpr,
    REST: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """[BLOCK_N, BLOCK_D]: keys or values `first` and after of one KV head; zeros behind the last, if it is of the REST.

    descriptor: of the same, not None when DESCRIBED. ONE_BLOCK: the tile lies within a block of the pool.
    """
    n = tl.arange(0, BLOCK_N)
    if PAGED and ONE_BLOCK:
        row = tl.load(table_ptr + first // block_size) * block_size + first % block_size
    elif PAGED:
        mask = first + n < k_len
        row = tl.load(table_ptr + (first + n) // block_size, mask=mask, other=0) * block_size + (first + n) % block_size
    else:
        row = k_start + first
    if DESCRIBED and not REST:
        tile = descriptor.load([row, head * HEAD_DIM])
    else:
        d = tl.arange(0, BLOCK_D)
        rows = row.to(tl.int64) if PAGED and not ONE_BLOCK else row.to(tl.int64) + n
        where = pointer + rows[:, None] * stride + head * HEAD_DIM + d[None, :]
        if REST:  # behind the end are other sequences' numbers, or what was left there: 0 times NaN would be NaN
            tile = tl.load(where, mask=(first + n < k_len)[:, None] & (d[None, :] < HEAD_DIM), other=0.0)
        elif HEAD_DIM == BLOCK_D:
            tile = tl.load(where)
        else:
            tile = tl.load(where, mask=d[None, :] < HEAD_DIM, other=0.0)
    return tile


@triton.jit
def _over_keys(
    acc,
    running_max,
    running_sum,
    q,
    last_visible,
    k_ptr,
    v_ptr,
    k_descriptor,
    v_descriptor,
    first,
    end,
    kv_head,
    k_start,
    k_len,
    scale,
    k_stride,
    v_stride,
    table_ptr,
    block_size,
    PAGED: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    DESCRIBED: tl.constexpr,
    REST: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The online softmax over keys first .. end - 1. REST: not every query sees all of them."""
    for start in tl.range(first, end, BLOCK_N, num_stages=STAGES):
        k = _tile(
            k_ptr, k_descriptor, start, kv_head, k_start, k_len, k_stride, table_ptr, block_size,
            PAGED, ONE_BLOCK, DESCRIBED, REST, HEAD_DIM, BLOCK_N, BLOCK_D,
        )  # fmt: skip
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if REST:
            scores = tl.where(start + tl.arange(0, BLOCK_N)[None, :] <= last_visible[:, None], scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1) * scale)
        p = tl.exp2(scores * scale - new_max[:, None])
        rescale = tl.exp2(running_max - new_max)
        running_sum = running_sum * rescale + tl.sum(p, 1)
        v = _tile(
            v_ptr, v_descriptor, start, kv_head, k_start, k_len, v_stride, table_ptr, block_size,
            PAGED, ONE_BLOCK, DESCRIBED, REST, HEAD_DIM, BLOCK_N, BLOCK_D,
        )  # fmt: skip
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
        running_max = new_max
    return acc, running_max, running_sum


@triton.jit
def _prefill_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_descriptor,
    v_descriptor,
    out_ptr,
    block_tables_ptr,
    cu_q_ptr,
    cu_k_ptr,
    scale,
    q_stride,
    k_stride,
    v_stride,
    out_stride,
    table_stride,
    block_size,
    PAGED: tl.constexpr,
    ONE_BLOCK: tl.constexpr,
    DESCRIBED: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (query head, sequence, query block, last one first). k and v are the caches when PAGED, else packed rows.

    The last queries see the most keys: they begin first, so that no program is left alone with many. scale: of scores
    for powers of two.
    """
    head = tl.program_id(0)
    seq = tl.program_id(1).to(tl.int64)
    first_query = (tl.num_programs(2) - 1 - tl.program_id(2)) * BLOCK_M
    q_start = tl.load(cu_q_ptr + seq)
    q_len = tl.load(cu_q_ptr + seq + 1) - q_start
    wait_for_inputs(EARLY)
    if first_query >= q_len:
        return
    k_start = tl.load(cu_k_ptr + seq)
    k_len = tl.load(cu_k_ptr + seq + 1) - k_start
    m = first_query + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    md_mask = (m[:, None] < q_len) & (d[None, :] < HEAD_DIM)
    rows = q_start.to(tl.int64) + m
    q = tl.load(q_ptr + rows[:, None] * q_stride + head * HEAD_DIM + d[None, :], mask=md_mask, other=0.0)
    last_visible = k_len - q_len + m
    seen_by_all = (k_len - q_len + first_query + 1) // BLOCK_N * BLOCK_N
    end = tl.minimum(k_len, k_len - q_len + first_query + BLOCK_M)

    running_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    running_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    kv_head, table_ptr = head // GROUP, block_tables_ptr + seq * table_stride
    for REST in tl.static_range(2):
        acc, running_max, running_sum = _over_keys(
            acc, running_max, running_sum, q, last_visible, k_ptr, v_ptr, k_descriptor, v_descriptor,
            seen_by_all if REST else 0, end if REST else seen_by_all, kv_head, k_start, k_len, scale, k_stride,
            v_stride, table_ptr, block_size, PAGED, ONE_BLOCK, DESCRIBED, REST, HEAD_DIM, BLOCK_N, BLOCK_D,
            PRECISION, STAGES,
        )  # fmt: skip
    out = acc / running_sum[:, None]
    where = rows[:, None] * out_stride + head * HEAD_DIM + d[None, :]
    tl.store(out_ptr + where, out.to(out_ptr.dtype.element_ty), mask=md_mask)


@dataclass(frozen=True, slots=True)
class Tiles:
    """queries: of a program. keys: that it reads at a time. stages: turns whose reads are under way together."""

    queries: int = 64
    keys: int = 64
    stages: int = 2


def choose_tiles(q: torch.Tensor, max_seqlen_q: int, described: bool) -> Tiles:
    """The tiles for queries q [T, Hq, D]. More read keys less often; fewer make programs enough for the whole GPU.

    A GPU can be newer than Hopper and have less shared memory (99 KiB): the default tiles fit there, in two bytes.
    """
    num_tokens, num_heads, head_dim = q.shape
    enough = num_tokens * num_heads >= 2 * 128 * multiprocessors(q.device)
    if described and head_dim <= 128 and shared_memory(q.device) >= LARGE_TILES:
        return Tiles(queries=128) if max_seqlen_q > 64 and enough else Tiles(stages=3)
    return Tiles()


def copies_tiles(device: torch.device, dtype: torch.dtype) -> bool:
    """True where whole tiles of the dtype can be copied: compute capability 9.0 or newer, Triton 3.5, 2-byte dtypes."""
    return CAN_DESCRIBE and starts_early(device) and dtype.itemsize == 2


def can_describe(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """True where tiles of these keys and values [.., Hkv, D] have descriptors: D a power of two, rows of 16 bytes."""
    head_dim = k.shape[-1]
    is_whole = head_dim == max(16, triton.next_power_of_2(head_dim))
    aligned = all(t.data_ptr() % 16 == 0 and t.stride(-3) * t.element_size() % 16 == 0 for t in (k, v))
    return copies_tiles(q.device, q.dtype) and is_whole and aligned


def _described(x: torch.Tensor, num_keys: int) -> Any:
    """A descriptor of x [.., Hkv, D] as rows of all heads, for tiles of `num_keys` rows of one head."""
    num_rows, width = x.shape[:-2].numel(), x.shape[-2] * x.shape[-1]
    return TensorDescriptor(x, [num_rows, width], [x.stride(-3), 1], [num_keys, x.shape[-1]])


def paged_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    scale: float,
    block_tables: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of packed rows q [T, Hq, D]; [T, Hq, D].

    With block_tables [B, max_blocks] int32, k and v are the caches [blocks, block_size, Hkv, D]; without, they are the
    packed rows [T, Hkv, D] of this step. Rows may be strided; heads within a row must be contiguous. scale > 0.
    """
    num_heads, head_dim, paged = q.shape[1], q.shape[2], block_tables is not None
    block_size = k.shape[1] if paged else 1
    described = can_describe(q, k, v)
    tiles = choose_tiles(q, max_seqlen_q, described)
    one_block = not paged or block_size % tiles.keys == 0
    described = described and one_block
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    num_seqs = cu_seqlens_q.shape[0] - 1
    _prefill_kernel[(num_heads, num_seqs, triton.cdiv(max_seqlen_q, tiles.queries))](
        q,
        k,
        v,
        _described(k, tiles.keys) if described else None,
        _described(v, tiles.keys) if described else None,
        out,
        block_tables if block_tables is not None else cu_seqlens_q,  # not read unless PAGED
        cu_seqlens_q,
        cu_seqlens_k,
        scale * LOG2_E,
        q.stride(0),
        k.stride(-3),
        v.stride(-3),
        out.stride(0),
        block_tables.stride(0) if block_tables is not None else 0,
        block_size,
        PAGED=paged,
        ONE_BLOCK=one_block,
        DESCRIBED=described,
        GROUP=num_heads // k.shape[-2],
        HEAD_DIM=head_dim,
        BLOCK_M=tiles.queries,
        BLOCK_N=tiles.keys,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)),
        PRECISION=dot_precision(q.dtype),
        STAGES=tiles.stages,
        num_warps=4,
        **early(q.device),
    )
    return out
