"""Decode kernels side by side on this GPU: attention of one layer, the four products of one, and logits with the race.

usage: kernel_times.py

Medians of CUDA graph replays, microseconds a layer. A graph holds LAYERS layers with weights and caches of their own,
so that none is still in the L2 cache when it is wanted, and so that kernels overlap as in a decode step. (Logits have
one weight, six times as large as that cache.) "Floor" counts each byte of K and V, or of the weights, once at 4.25
TB/s. The shapes are those of Qwen3-0.6B: 16 query heads, 8 KV heads, head_dim 128, hidden 1024, intermediate 3072,
vocabulary 151,936.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from triton.testing import do_bench

from nanovllm.paged_kv.attention import Attention
from nanovllm.paged_kv.backends.triton_backend import TritonBackend
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.kernels.decode import paged_decode
from nanovllm.qwen3 import split_linear
from nanovllm.qwen3.kernels import activation, gated_linear, heads, norm, small_linear, tile_linear
from nanovllm.qwen3.kernels.fused_decode import FusedDecode
from nanovllm.qwen3.kernels.race import exponential_race
from nanovllm.qwen3.ops import TritonOps
from nanovllm.qwen3.rotary import RotaryAngles

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, INNER, BLOCK = 16, 8, 128, 1024, 3072, 256
VOCABULARY = 151936
LAYERS, BYTES_PER_US = 16, 4.25e6
Product = Callable[[Tensor, Tensor], Tensor]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def microseconds(call: Callable[[], object]) -> float:
    """Median microseconds of one replay, a layer."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return float(1000 * do_bench(graph.replay, return_mode="median") / LAYERS)


@dataclass
class Step:
    """The inputs of the attention of one decode step: `batch` sequences whose newest token is number `context`.

    shortest: contexts are drawn from there to `context`, in no order.
    """

    batch: int
    context: int
    shortest: int | None = None

    def __post_init__(self) -> None:
        blocks = -(-self.context // BLOCK)
        shape = (2, self.batch * blocks, BLOCK, KV_HEADS, HEAD_DIM)
        self.caches = [random(*shape) for _ in range(LAYERS)]
        owned = torch.randperm(self.batch * blocks, device="cuda").int().view(self.batch, blocks)
        self.tables = torch.zeros(self.batch, 16, device="cuda", dtype=torch.int32)  # as max_model_len 4096 makes it
        self.tables[:, :blocks] = owned
        low = self.context if self.shortest is None else self.shortest
        self.lens = torch.randint(low, self.context + 1, (self.batch,), device="cuda", dtype=torch.int32)
        self.order = self.lens.argsort(descending=True, stable=True).int()
        self.positions = self.lens.long() - 1
        self.slots = owned.gather(1, self.positions[:, None] // BLOCK)[:, 0].long() * BLOCK + self.positions % BLOCK
        self.qkv = random(self.batch, (HEADS + 2 * KV_HEADS) * HEAD_DIM)
        self.gain, self.angles = random(HEAD_DIM), torch.randn(8192, HEAD_DIM, device="cuda")
        self.context_of_step = ForwardContext(False, self.slots, self.lens, self.tables, order=self.order)
        self.ops, self.layer = TritonOps(), Attention(HEADS, KV_HEADS, HEAD_DIM, TritonBackend())

    def as_the_engine(self, cache: Tensor) -> Tensor:
        """Ours as the engine takes it, the longest contexts first: for some sizes one kernel, else as `apart`."""
        self.layer.bind(cache[0], cache[1])
        angles = RotaryAngles(self.angles, self.positions)
        return self.ops.attend(self.qkv, self.gain, self.gain, 1e-6, angles, self.layer, self.context_of_step)

    @property
    def is_fused(self) -> bool:
        """True where the engine takes one kernel."""
        self.layer.bind(self.caches[0][0], self.caches[0][1])
        return FusedDecode.suits(self.qkv, self.layer, self.context_of_step)

    def qkv_heads(self, cache: Tensor) -> Tensor:
        args = self.qkv, self.gain, self.gain, 1e-6, self.angles, self.positions, HEADS, KV_HEADS, self.slots
        return heads.norm_rotate_store(*args, cache[0], cache[1])[0]

    def apart(self, cache: Tensor) -> Tensor:
        """One kernel for the heads, and ours for attention, the longest contexts first."""
        return self._paged_decode(cache, self.order)

    def as_they_are(self, cache: Tensor) -> Tensor:
        """The same with the rows begun as they are."""
        return self._paged_decode(cache, None)

    def _paged_decode(self, cache: Tensor, order: Tensor | None) -> Tensor:
        q = self.qkv_heads(cache)
        return paged_decode(q, cache[0], cache[1], self.tables, self.lens, 0.088, order=order)

    def flash(self, cache: Tensor) -> object:
        """One kernel for the heads, and flash-attn's for attention."""
        from flash_attn import flash_attn_with_kvcache

        q = self.qkv_heads(cache).unsqueeze(1)
        return flash_attn_with_kvcache(
            q, cache[0], cache[1], cache_seqlens=self.lens, block_table=self.tables, causal=True
        )


def attention(batch: int, context: int, shortest: int | None = None) -> None:
    """One line: heads and attention of a decode step."""
    step = Step(batch, context, shortest)
    ways = {"ours": step.as_the_engine, "flash-attn": step.flash}
    if step.is_fused:
        ways["ours with heads apart"] = step.apart
    if shortest is not None:
        ways["ours as they are"] = step.as_they_are
    cells = [f"floor {2 * int(step.lens.sum()) * KV_HEADS * HEAD_DIM * 2 / BYTES_PER_US:6.1f}"]
    for name, way in ways.items():
        with suppress(ImportError):  # flash-attn may be missing
            cells.append(f"{name} {microseconds(lambda: [way(cache) for cache in step.caches]):6.1f}")  # noqa: B023
    lengths = f"{context:5d}" if shortest is None else f"{shortest}..{context}"
    print(f"attention {batch:4d} x {lengths}: " + " | ".join(cells), flush=True)


def products(rows: int) -> None:
    """One line: norm + QKV, output, norm + gate and up + SiLU, down, by our kernels and by the library's."""
    shapes = ((4096, HIDDEN), (HIDDEN, HEADS * HEAD_DIM), (2 * INNER, HIDDEN), (HIDDEN, INNER))
    layers = [[random(*shape) / 32 for shape in shapes] for _ in range(LAYERS)]
    x, gain = random(rows, HIDDEN), random(HIDDEN)
    run = tile_linear if tile_linear.suits(x, INNER) else small_linear  # as small_batch.products chooses

    def ours() -> Tensor:
        y = residual = x
        for qkv, out, gate_up, down in layers:
            wide, residual = run.norm_linear(y, residual, gain, 1e-6, qkv)
            y = run.linear(wide[:, : HEADS * HEAD_DIM], out)
            gated, residual = run.norm_linear(y, residual, gain, 1e-6, gate_up, None, True)
            y = run.linear(gated, down)
        return y

    def apart(product: Product, gate: Product) -> Tensor:
        y = residual = x
        for qkv, out, gate_up, down in layers:
            y, residual = norm.add_rms_norm(y, residual, gain, 1e-6)
            y = product(F.linear(y, qkv)[:, : HEADS * HEAD_DIM], out)
            y, residual = norm.add_rms_norm(y, residual, gain, 1e-6)
            y = product(gate(y, gate_up), down)
        return y

    def library() -> Tensor:
        return apart(F.linear, lambda y, weight: activation.silu_and_mul(F.linear(y, weight)))

    def in_parts() -> Tensor:
        return apart(split_linear.partial_sums, gated_linear.gated)

    floor = sum(w.numel() * 2 for w in layers[0]) / BYTES_PER_US
    way = ours if rows <= tile_linear.MAX_ROWS else in_parts
    line = f"floor {floor:.1f} | ours {microseconds(way):.1f} | library {microseconds(library):.1f}"
    print(f"products of a layer, {rows:3d} rows: {line}", flush=True)


def logits(rows: int, weight: Tensor) -> None:
    """One line: the logits, and the race for a token of each row, by our kernel and by the library's product."""
    x, temperature = random(rows, HIDDEN), torch.full((rows, 1), 0.6, device="cuda")
    keys = torch.randint(2**31, (rows, 2), device="cuda")
    cells = [f"floor {weight.numel() * 2 / BYTES_PER_US:.1f}"]
    for name, product in (("ours", TritonOps().logits), ("library", F.linear)):
        alone = microseconds(lambda: [product(x, weight) for _ in range(LAYERS)])  # noqa: B023
        raced = microseconds(lambda: [exponential_race(product(x, weight), temperature, keys) for _ in range(LAYERS)])  # noqa: B023
        cells.append(f"{name} {alone:.1f}, with the race {raced:.1f}")
    print(f"logits, {rows:3d} rows: " + " | ".join(cells), flush=True)


def main() -> None:
    few = ((1, 512), (1, 4000), (2, 1024), (4, 1024), (8, 1024), (8, 4000), (16, 1024))
    for batch, context in (*few, (32, 1024), (64, 1024), (128, 600), (256, 512), (512, 160)):
        attention(batch, context)
        torch.cuda.empty_cache()
    mixed = ((4, 100, 2000), (8, 100, 2000), (16, 100, 2000))
    for batch, shortest, context in (*mixed, (64, 100, 2000), (256, 100, 2000), (512, 32, 600)):
        attention(batch, context, shortest)
        torch.cuda.empty_cache()
    for rows in (1, 2, 4, 8, 16, 32, 64, 128):
        products(rows)
    weight = random(VOCABULARY, HIDDEN) / 32
    for rows in (1, 2, 4, 8, 16, 32):
        logits(rows, weight)


if __name__ == "__main__":
    main()
