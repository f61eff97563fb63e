"""Compile every Triton kernel for a GPU that is not there: `python compile_all.py CAPABILITY DTYPE`.

Launches made with CPU tensors are caught, and the kernel is compiled down to machine code for the capability (75, 90)
as it would be launched. Run without TRITON_INTERPRET. Prints the names of the compiled kernels.
"""

import sys
import warnings
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

from nanovllm.paged_kv.attention import Attention
from nanovllm.paged_kv.backends.triton_backend import TritonBackend
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.kernels import copies, prefill
from nanovllm.paged_kv.kernels.decode import paged_decode
from nanovllm.paged_kv.kernels.store import store_kv
from nanovllm.qwen3.kernels import (
    activation,
    embedding,
    fused_decode,
    gated_linear,
    heads,
    logits,
    norm,
    race,
    small_linear,
    tile_linear,
)

TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int32: "i32", torch.int64: "i64"}
OPTIONS = ("num_warps", "num_stages", "launch_pdl")


def catch_launches(capability: int) -> list[str]:
    """Make every launch compile instead; returns the list that the kernels' names go to."""
    names: list[str] = []

    def compile_instead(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        options = {k: kwargs.pop(k) for k in OPTIONS if k in kwargs}
        values = dict(zip(self.arg_names, args, strict=False)) | kwargs
        constants = {p.name: values[p.name] for p in self.params if p.is_constexpr}
        signature, attrs = {}, {}
        for i, p in enumerate(self.params):
            value = values[p.name]
            if p.is_constexpr:
                signature[p.name] = "constexpr"
            elif isinstance(value, torch.Tensor):
                signature[p.name] = f"*{TYPES[value.dtype]}"
                attrs[(i,)] = [["tt.divisibility", 16]]  # allocations are aligned, as torch's are
            elif prefill.CAN_DESCRIBE and isinstance(value, prefill.TensorDescriptor):
                signature[p.name] = mangle_type(value)
            else:
                signature[p.name] = "fp32" if isinstance(value, float) else "i32"
        source = ASTSource(fn=self, signature=signature, constexprs=constants, attrs=attrs)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        assert compiled.asm["cubin"]
        names.append(self.__name__)

    JITFunction.run = compile_instead
    return names


def launch_everything(
    dtype: torch.dtype, shapes: tuple[tuple[int, int, int, int], ...], can_describe: bool = False
) -> None:
    """Call every kernel's launcher. shapes: (heads, KV heads, head_dim, hidden_size) of each model.

    can_describe: the GPU can copy tiles by their descriptors.
    """
    for num_heads, num_kv_heads, head_dim, hidden in shapes:
        q = torch.zeros(3, num_heads, head_dim, dtype=dtype)
        k = torch.zeros(3, num_kv_heads, head_dim, dtype=dtype)
        cache = torch.zeros(4, 16, num_kv_heads, head_dim, dtype=dtype)
        tables, lens = torch.zeros(3, 4, dtype=torch.int32), torch.ones(3, dtype=torch.int32)
        slots, running = torch.zeros(3, dtype=torch.int64), torch.arange(4, dtype=torch.int32)
        store_kv(k, k, cache, cache, slots)
        attention = Attention(num_heads, num_kv_heads, head_dim, TritonBackend())
        attention.bind(*torch.zeros(2, 4, 64, num_kv_heads, head_dim, dtype=dtype))
        rows = torch.zeros(3, (num_heads + 2 * num_kv_heads) * head_dim, dtype=dtype)
        gain, table = torch.ones(head_dim, dtype=dtype), torch.zeros(9, head_dim)
        for splits in (1, 8):
            paged_decode(q, cache, cache, tables, lens, 0.1, splits)
            paged_decode(q, cache, cache, tables, lens, 0.1, splits, lens)
            fused_decode.choose_splits = lambda num_tasks, device, splits=splits: splits  # a CPU would have one
            for order in (None, lens):
                context = ForwardContext(False, slots, lens, tables, order=order)
                fused_decode.FusedDecode()(rows, gain, gain, 1e-6, table, slots, attention, context)
        whole_blocks = attention.k_cache  # of 64 tokens, in which a tile lies
        for described in {False, can_describe and dtype.itemsize == 2}:
            prefill.can_describe = lambda q, k, v, described=described: described
            for tiles in (prefill.Tiles(), prefill.Tiles(stages=3), prefill.Tiles(queries=128))[
                : 3 if described else 1
            ]:
                prefill.choose_tiles = lambda q, length, described, tiles=tiles: tiles
                prefill.paged_prefill(q, k, k, running, running, 1, 0.1)
                for pool in (cache, whole_blocks):
                    prefill.paged_prefill(q, pool, pool, running, running, 1, 0.1, tables)
        x, weight = torch.zeros(3, hidden, dtype=dtype), torch.zeros(hidden, dtype=dtype)
        norm.rms_norm(x, weight, 1e-6)
        norm.add_rms_norm(x, x, weight, 1e-6)
        activation.silu_and_mul(torch.zeros(3, 2 * hidden, dtype=dtype))
        wide = torch.zeros(64, hidden, dtype=dtype)
        for module, few in ((small_linear, x[:2]), (tile_linear, x)):
            module.linear(few, wide, torch.zeros(64, dtype=dtype))
            module.norm_linear(few, few, weight, 1e-6, wide, gated=True)
        tile_linear.norm_linear(torch.zeros(8, hidden, dtype=dtype), None, weight, 1e-6, wide)
        gated_linear.gated(x, wide)
        if hidden % 128 == 0 and dtype.itemsize == 2:  # others are the library's
            for few in (x, torch.zeros(17, hidden, dtype=dtype)):
                logits.logits(few, wide)
        norm.add_rms_norm(torch.zeros(4, 3, hidden), x, weight, 1e-6)
        for caches in ((cache, cache), (None, None)):
            heads.norm_rotate_store(rows, gain, gain, 1e-6, table, slots, num_heads, num_kv_heads, slots, *caches)
    ids = torch.zeros(8, dtype=torch.int64)
    embedding.embedding(ids, torch.zeros(9, 100, dtype=dtype))
    copies.copy_words(ids, ids)
    copies.copy_fed(ids, ids, ids[:4], ids, ids)
    race.exponential_race(torch.zeros(3, 5000, dtype=dtype), torch.zeros(3, 1), torch.zeros(3, 2, dtype=torch.int64))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    compiled = catch_launches(int(sys.argv[1]))
    # Qwen3-0.6B's shape and qwen3-tiny's. Below compute capability 8.0 the first takes Triton minutes to compile.
    published, tiny = (16, 8, 128, 1024), (8, 4, 64, 256)
    shapes = (published, tiny) if int(sys.argv[1]) >= 80 else (tiny,)
    launch_everything(getattr(torch, sys.argv[2]), shapes, prefill.CAN_DESCRIBE and int(sys.argv[1]) >= 90)
    print(" ".join(sorted(set(compiled))))
