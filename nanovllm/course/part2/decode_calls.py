"""What the checks of 2.8 run: small programs that call the learner's kernel and leave their findings in `result`."""

# The caches lie in a larger tensor, so that a stray read finds a number.
CALL = """\
import math
import torch
from nanovllm.paged_kv.backends import triton_backend
caches = torch.full((2, 20000 + math.prod(shape)), 9.0)
for part, keys in zip(caches, (k_rows, v_rows)):
    part[10000:-10000].view(shape).flatten(0, 1)[torch.tensor(slots)] = torch.tensor(keys)
k_cache, v_cache = (part[10000:-10000].view(shape) for part in caches)
tables, lens = torch.tensor(block_tables, dtype=torch.int32), torch.tensor(context_lens, dtype=torch.int32)
result = triton_backend.paged_decode(torch.tensor(q), k_cache, v_cache, tables, lens, scale)"""
LARGE_SCORES = """\
import torch
from nanovllm.paged_kv.backends import triton_backend
k_cache = torch.tensor([100.0] * 99 + [300.0]).view(50, 2, 1, 1)  # exp(300) is more than fp32 can hold
v_cache = torch.tensor([1.0] * 99 + [2.0]).view(50, 2, 1, 1)
tables, lens = torch.arange(50, dtype=torch.int32).view(1, 50), torch.tensor([100], dtype=torch.int32)
out = triton_backend.paged_decode(torch.ones(1, 1, 1), k_cache, v_cache, tables, lens, 1.0)
result = [round(x, 4) for x in out.flatten().tolist()]"""
PADDED_ROW = """\
import torch
from nanovllm.paged_kv.backends import triton_backend
cache = torch.ones(2, 2, 1, 2)
tables, lens = torch.tensor([[1], [0]], dtype=torch.int32), torch.tensor([2, 0], dtype=torch.int32)
out = triton_backend.paged_decode(torch.ones(2, 1, 2), cache, cache, tables, lens, 1.0)
result = out.flatten(1).tolist()"""
KEPT = """\
import torch
from nanovllm.paged_kv.backends import triton_backend
projected = torch.tensor([[2.0, 1.0, 5.0]])  # q, k and v of one token side by side, as the projection leaves them
q, k, v = projected.view(1, 3, 1).split(1, dim=1)  # views: what is written into q stands in projected
k_cache, v_cache = k.view(1, 1, 1, 1).clone(), v.view(1, 1, 1, 1).clone()
tables, lens = torch.tensor([[0]], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
triton_backend.paged_decode(q, k_cache, v_cache, tables, lens, 0.5)
result = [projected.tolist(), k_cache.item(), v_cache.item()]"""
PAST_THE_END = """\
import torch
from nanovllm.paged_kv.backends import triton_backend
made, empty = [], torch.empty
def watched(*size, **how):  # a new tensor with 64 numbers behind it, which nobody may touch
    plain = empty(*size, **how)
    made.append(torch.full((plain.numel() + 64,), 7, dtype=plain.dtype))
    return made[-1][: plain.numel()].view(plain.shape)
cache = torch.ones(1, 1, 1, 3)
tables, lens = torch.tensor([[0]], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
torch.empty = watched
try:
    out = triton_backend.paged_decode(torch.ones(1, 1, 3), cache, cache, tables, lens, 1.0)
finally:
    torch.empty = empty
result = [out.flatten().tolist(), sum(int((tensor[-64:] != 7).sum()) for tensor in made)]"""
