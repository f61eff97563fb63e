"""Prefill attention against its torch reference: on the GPU where there is one, else under the interpreter."""

import numpy as np
import pytest
import torch

from tests.kernels.shared import DEVICE, DTYPES, assert_close, make_cache, random

pytest.importorskip("triton")

from nanovllm.paged_kv.backends.torch_backend import TorchBackend, causal_attention
from nanovllm.paged_kv.backends.triton_backend import TritonBackend
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.kernels import launch, prefill
from nanovllm.paged_kv.kernels.prefill import Tiles, paged_prefill

HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16  # the interpreter has no products of bf16


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize(
    ("q_lens", "k_lens", "block_size", "heads", "kv_heads", "head_dim"),
    [([3, 70, 1], [3, 70, 1], 4, 4, 2, 16), ([5, 66], [9, 140], 3, 6, 2, 20), ([2], [300], 256, 2, 1, 64)],
)
def test_paged_prefill_equals_the_reference(
    q_lens: list[int],
    k_lens: list[int],
    block_size: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    paged: bool,
    dtype: torch.dtype,
) -> None:
    if not paged and q_lens != k_lens:
        pytest.skip("without a pool there is no prefix")
    k_cache, v_cache, tables = make_cache(k_lens, block_size, kv_heads, head_dim, dtype)
    total = sum(q_lens)
    q = random(total, heads, head_dim, dtype=dtype)
    k = random(total, kv_heads, head_dim, dtype=dtype, seed=1)
    v = random(total, kv_heads, head_dim, dtype=dtype, seed=2)

    def running(lens: list[int]) -> torch.Tensor:
        return torch.tensor(np.concatenate([[0], np.cumsum(lens)]), dtype=torch.int32, device=DEVICE)

    context = ForwardContext(
        True,
        torch.arange(total, device=DEVICE),
        torch.tensor(k_lens, dtype=torch.int32, device=DEVICE),
        tables if paged else None,
        running(q_lens),
        running(k_lens),
        max(q_lens),
        max(k_lens),
    )
    out = TritonBackend().prefill(q, k, v, k_cache, v_cache, context, 0.3)
    assert_close(out, TorchBackend().prefill(q, k, v, k_cache.nan_to_num(), v_cache.nan_to_num(), context, 0.3))


def test_paged_prefill_of_a_padded_step_leaves_the_real_rows_alone() -> None:
    """As a recorded prefill has it: rows that belong to no sequence, and sequences without tokens."""
    k_cache, v_cache, tables = make_cache([9, 5], 4, 2, 16, torch.float32)
    bounds = [torch.tensor(b, dtype=torch.int32, device=DEVICE) for b in ([0, 3, 8], [0, 9, 14])]
    q = random(16, 4, 16)
    alone = paged_prefill(q[:8], k_cache, v_cache, *bounds, 5, 0.3, tables)
    padded_bounds = [torch.cat([b, b[-1:].repeat(5)]) for b in bounds]
    padded_tables = torch.cat([tables, torch.zeros_like(tables[:1]).repeat(5, 1)])
    padded = paged_prefill(q, k_cache, v_cache, *padded_bounds, 16, 0.3, padded_tables)
    assert torch.equal(padded[:8], alone)
    assert not alone.isnan().any()


TILES = [Tiles(), Tiles(queries=128), Tiles(queries=64, keys=16, stages=3)]


@pytest.mark.parametrize("tiles", TILES, ids=str)
@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize(
    ("q_lens", "k_lens", "block_size"),
    [
        ([3, 70, 1, 128], [3, 70, 1, 128], None),
        ([5, 64, 129], [9, 128, 300], 64),
        ([2, 1, 64], [257, 256, 64], 256),
        ([130], [130], 128),
    ],
)
def test_prefill_by_descriptors_and_by_addresses(
    q_lens: list[int],
    k_lens: list[int],
    block_size: int | None,
    described: bool,
    tiles: Tiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ends within tiles, at their ends and before them; behind each end there is NaN, which must not get in."""
    if described and (not prefill.CAN_DESCRIBE or (DEVICE.type == "cuda" and not launch.starts_early(DEVICE))):
        pytest.skip("needs Triton 3.5 and, on a GPU, compute capability 9.0")
    monkeypatch.setattr(prefill, "can_describe", lambda q, k, v: described)
    monkeypatch.setattr(prefill, "choose_tiles", lambda q, max_seqlen_q, described: tiles)
    q = random(sum(q_lens), 4, 64, dtype=HALF)
    bounds = [
        torch.tensor(np.concatenate([[0], np.cumsum(lens)]), dtype=torch.int32, device=DEVICE)
        for lens in (q_lens, k_lens)
    ]
    if block_size is None:
        wide = random(sum(k_lens), 8 * 64, dtype=HALF, seed=1).view(-1, 2, 4, 64)
        k, v = wide[:, 0, :2], wide[:, 1, 2:]  # within wider rows, as in the row of the QKV product
        tables, keys_of = None, lambda i: slice(*bounds[1][i : i + 2].tolist())
        pools = k, v
    else:
        k, v, tables = make_cache(k_lens, block_size, 2, 64, HALF)
        pools = k.flatten(0, 1), v.flatten(0, 1)
        n = torch.arange(max(k_lens), device=DEVICE)
        slots = tables.long()[:, n // block_size] * block_size + n % block_size

        def keys_of(i: int) -> torch.Tensor:
            return slots[i, : k_lens[i]]

    out = paged_prefill(q, k, v, *bounds, max(q_lens), 0.3, tables)
    for i in range(len(q_lens)):
        rows = slice(*bounds[0][i : i + 2].tolist())
        keys, values = (pool[keys_of(i)] for pool in pools)
        assert_close(out[rows], causal_attention(q[rows], keys, values, 0.3))
    if block_size is None:
        v[3:] = float("nan")  # the other sequences' values
        again = paged_prefill(q, k, v, *bounds, max(q_lens), 0.3, tables)
        assert torch.equal(again[:3], out[:3])
        assert again[3:].isnan().any()


@pytest.mark.parametrize("prefix", [1, 64, 100])
def test_a_prompt_in_chunks_has_the_bits_of_a_whole_one(prefix: int) -> None:
    """Tiles of keys begin at the sequence's start, whatever was cached, so that every row adds up in the same order."""
    k, v, tables = make_cache([150], 64, 2, 64, HALF)
    q = random(150, 4, 64, dtype=HALF)
    ends = [torch.tensor([0, n], dtype=torch.int32, device=DEVICE) for n in (150, 150 - prefix)]
    whole = paged_prefill(q, k, v, ends[0], ends[0], 150, 0.3, tables)
    rest = paged_prefill(q[prefix:], k, v, ends[1], ends[0], 150 - prefix, 0.3, tables)
    assert torch.equal(whole[prefix:], rest)
