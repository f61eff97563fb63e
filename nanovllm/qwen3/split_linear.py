"""A product of few rows cut over its inputs, so that it fills a GPU: the library's batched product, in parts.

With 9 to 384 rows and as few outputs as hidden_size, a product has few tiles; a library leaves most of the GPU idle or
joins its parts in a kernel of its own. Here the parts stay as they are, in fp32, and the norm that comes next adds
them up as it reads them (`kernels/norm.py`). On an H200 that takes up to a third less time (docs/gpu.md).
"""

import torch
from torch import Tensor

MAX_ROWS = 384
MANY_ROWS = 192  # above them fewer parts are faster
KEEPS_FP32 = tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 8)  # bmm with out_dtype


def suits(x: Tensor, weight: Tensor) -> bool:
    """True for rows x [.., in_features] and a weight [out_features, in_features] that are worth cutting.

    Tried with the shapes of Qwen3-0.6B, 1.7B, 4B and 8B: the library's usual product is as fast for larger weights.
    """
    rows, largest = x.shape[-2], (26 if x.shape[-2] <= 128 else 4) * 2**20
    fits = 8 < rows <= MAX_ROWS and weight.numel() <= largest and weight.shape[1] % 64 == 0
    return fits and x.element_size() == 2 and (KEEPS_FP32 or not x.is_cuda)


def partial_sums(x: Tensor, weight: Tensor) -> Tensor:
    """[parts, rows, out_features] fp32, which add up to x [rows, in_features] times weight [.., in_features]^T."""
    parts = 4 if x.shape[0] <= MANY_ROWS else 2
    pieces = x.view(x.shape[0], parts, -1).transpose(0, 1)
    weights = weight.view(weight.shape[0], parts, -1).permute(1, 2, 0)
    if not x.is_cuda:  # a CPU's product has no other output dtype
        return torch.bmm(pieces.float(), weights.float())
    return torch.bmm(pieces, weights, out_dtype=torch.float32)
