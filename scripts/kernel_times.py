"""Decode kernels side by side on this GPU: attention (ours, flash-attn) and linear layers of a few rows.

usage: kernel_times.py

Times are medians of CUDA graph replays in microseconds; rates count each byte of K and V, or of the weight, once.
The shapes are those of Qwen3-0.6B: 16 query heads, 8 KV heads, head_dim 128, hidden 1024, intermediate 3072.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from triton.testing import do_bench

from nanovllm.paged_kv.kernels import decode
from nanovllm.qwen3.kernels import small_linear
from nanovllm.qwen3.ops import TritonOps

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 16, 8, 128, 256


def graph_time(call: Callable[[], object]) -> float:
    """Median microseconds of one replay."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return 1000 * do_bench(graph.replay, return_mode="median")


def attention(batch: int, context: int) -> None:
    """One line: both kernels, ours with every number of splits."""
    blocks = -(-context // BLOCK)
    shape = (batch * blocks, BLOCK, KV_HEADS, HEAD_DIM)
    k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    tables = torch.randperm(batch * blocks, device="cuda").int().view(batch, blocks)
    wide = torch.zeros(batch, 16, device="cuda", dtype=torch.int32)  # as wide as max_model_len 4096 makes it
    wide[:, :blocks] = tables
    lens = torch.full((batch,), context, device="cuda", dtype=torch.int32)
    q = torch.randn(batch, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    num_bytes = 2 * batch * context * KV_HEADS * HEAD_DIM * 2
    cells = []
    for splits in (1, 2, 4, 8, 16, 32):
        if splits == 1 or batch * splits <= 1024:
            us = graph_time(lambda: decode.paged_decode(q, k, v, wide, lens, 0.088, splits))  # noqa: B023
            cells.append(f"x{splits} {us:6.1f}")
    try:
        from flash_attn import flash_attn_with_kvcache

        def flash() -> torch.Tensor:
            return flash_attn_with_kvcache(q.unsqueeze(1), k, v, cache_seqlens=lens, block_table=wide, causal=True)

        cells.append(f"flash {graph_time(flash):6.1f}")
    except ImportError:
        pass
    floor = num_bytes / 4.25e6
    print(f"attention {batch:4d} x {context:5d}: floor {floor:6.1f} us | " + " | ".join(cells), flush=True)


def linear(rows: int, in_features: int, out_features: int, before: str) -> None:
    """One line: the small kernel with what stands before it (norm or silu) inside, and the same by separate kernels."""
    ops = TritonOps()
    x = torch.randn(rows, in_features * (2 if before == "silu" else 1), device="cuda", dtype=torch.bfloat16)
    residual = torch.randn(rows, in_features, device="cuda", dtype=torch.bfloat16)
    gain = torch.randn(in_features, device="cuda", dtype=torch.bfloat16)
    weights = [torch.randn(out_features, in_features, device="cuda", dtype=torch.bfloat16) for _ in range(16)]

    def fused(w: torch.Tensor) -> object:
        if before == "norm":
            return small_linear.norm_linear(x, residual, gain, 1e-6, w)
        return small_linear.silu_linear(x, w) if before == "silu" else small_linear.small_linear(x, w)

    def separate(w: torch.Tensor) -> object:
        if before == "norm":
            return F.linear(ops.add_rms_norm(x, residual, gain, 1e-6)[0], w)
        return F.linear(ops.silu_and_mul(x) if before == "silu" else x, w)

    def each(f: Callable[[torch.Tensor], object]) -> float:
        def all_weights() -> None:  # several weights in turn, so that none is still in the L2 cache
            for w in weights:
                f(w)

        return graph_time(all_weights) / len(weights)

    floor = 2 * in_features * out_features / 4.25e6
    print(
        f"linear {rows} x {in_features} -> {out_features}, {before or 'nothing'} before it: floor {floor:.1f} us | "
        f"small {each(fused):.1f} | library {each(separate):.1f}",
        flush=True,
    )


def main() -> None:
    for batch, context in ((1, 512), (1, 4000), (8, 1024), (16, 1024), (32, 1024), (64, 1024), (256, 512), (512, 160)):
        attention(batch, context)
    for rows in (1, 2, 4, 8):
        for before, *shape in (("norm", 1024, 4096), ("", 2048, 1024), ("norm", 1024, 6144), ("silu", 3072, 1024)):
            linear(rows, *shape, before)


if __name__ == "__main__":
    main()
