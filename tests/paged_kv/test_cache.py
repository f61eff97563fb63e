"""The pool's size in bytes, how many blocks a budget pays for, and the layers' views of it."""

import pytest
import torch

from nanovllm.errors import BackendError, MemoryBudgetError
from nanovllm.paged_kv.backends import backend_choices, choose_backend
from nanovllm.paged_kv.cache import KVCache, KVCacheSpec

CPU = torch.device("cpu")
QWEN3_06B = KVCacheSpec(num_layers=28, num_kv_heads=8, head_dim=128, block_size=256, dtype=torch.bfloat16)


def test_bytes_of_qwen3_06b() -> None:
    """2 (K, V) x 28 layers x 8 heads x 128 x 2 bytes = 114,688 bytes a token; 28 MiB a block of 256."""
    assert QWEN3_06B.bytes_per_token == 114_688
    assert QWEN3_06B.bytes_per_block == 28 * 2**20


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.float16, 2), (torch.bfloat16, 2)])
def test_the_pool_takes_the_bytes_that_the_formula_says(dtype: torch.dtype, size: int) -> None:
    spec = KVCacheSpec(num_layers=3, num_kv_heads=5, head_dim=6, block_size=7, dtype=dtype)
    pool = KVCache(spec, num_blocks=11, device=CPU)
    assert spec.bytes_per_token == 2 * 3 * 5 * 6 * size
    assert pool.tensor.nbytes == 11 * spec.bytes_per_block == 11 * 7 * spec.bytes_per_token
    assert pool.tensor.dtype == dtype
    assert not pool.tensor.any()


def test_blocks_in_a_budget() -> None:
    """Whole blocks only: rounded down."""
    block = QWEN3_06B.bytes_per_block
    assert QWEN3_06B.blocks_in(10 * block) == 10
    assert QWEN3_06B.blocks_in(11 * block - 1) == 10
    assert QWEN3_06B.blocks_in(block) == 1


@pytest.mark.parametrize("budget", [28 * 2**20 - 1, 0, -5])
def test_a_budget_for_no_block_is_refused(budget: int) -> None:
    with pytest.raises(MemoryBudgetError, match=r"no KV block fits: one of 256 tokens takes 28\.0 MiB") as caught:
        QWEN3_06B.blocks_in(budget)
    assert "lower kvcache_block_size" in str(caught.value)


def test_layers_are_views_of_their_own_part() -> None:
    spec = KVCacheSpec(num_layers=2, num_kv_heads=1, head_dim=2, block_size=3, dtype=torch.float32)
    pool = KVCache(spec, num_blocks=4, device=CPU)
    k, v = pool.layer(1)
    assert k.shape == v.shape == (4, 3, 1, 2)
    k[2, 1] = 1
    v[2, 1] = 2
    assert pool.tensor[0, 1, 2, 1].eq(1).all()
    assert pool.tensor[1, 1, 2, 1].eq(2).all()
    assert pool.tensor.sum() == 6


@pytest.mark.parametrize("name", ["triton", "flash_attn"])
def test_a_backend_that_cannot_run_is_refused_with_the_alternatives(name: str) -> None:
    with pytest.raises(BackendError, match=rf"attention backend '{name}' cannot run here: it needs .* GPU.*torch"):
        choose_backend(name, CPU, torch.float32, 256)


@pytest.mark.parametrize("block_size", [1, 3, 256])
def test_the_torch_backend_runs_anywhere(block_size: int) -> None:
    assert choose_backend("auto", CPU, torch.float32, block_size).name == "torch"
    assert choose_backend("torch", CPU, torch.bfloat16, block_size).usable
    assert [c.name for c in backend_choices(CPU, torch.float32, block_size)] == ["flash_attn", "triton", "torch"]
