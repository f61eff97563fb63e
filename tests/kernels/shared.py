"""Inputs for the kernels' tests and how close results must be: on the GPU where there is one, else on the CPU."""

import math

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# The interpreter computes tl.dot on bf16 wrongly, so bf16 is checked on a GPU only.
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE.type == "cuda" else [])
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.float(), expected.float(), atol=tolerance, rtol=tolerance)


def make_cache(
    lens: list[int], block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Caches of random numbers with NaN in every slot that no sequence owns, and shuffled block tables."""
    widths = [-(-n // block_size) for n in lens]
    num_blocks = sum(widths) + 2
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
    tables = torch.zeros(len(lens), max(max(widths), 1), dtype=torch.int32)
    cache = torch.full((2, num_blocks, block_size, kv_heads, head_dim), math.nan)
    filled = torch.randn(cache.shape, generator=torch.Generator().manual_seed(2))
    for row, (length, width) in enumerate(zip(lens, widths, strict=True)):
        blocks = [order.pop() for _ in range(width)]
        tables[row, :width] = torch.tensor(blocks, dtype=torch.int32)
        for position in range(length):
            at = blocks[position // block_size], position % block_size
            cache[:, at[0], at[1]] = filled[:, at[0], at[1]]
    cache = cache.to(DEVICE, dtype)
    return cache[0], cache[1], tables.to(DEVICE)
