"""Small tensor-parallel layers on simulated ranks, for the checks of part 3: plain lists in, one result a rank out."""

from typing import Any

import torch
from torch import Tensor

from nanovllm.course.part3.ranks import MemoryReader, SimulatedGroup, on_ranks
from nanovllm.qwen3 import parallel
from nanovllm.qwen3.embedding import ParallelLMHead, VocabParallelEmbedding
from nanovllm.qwen3.linear import QKVParallelLinear, RowParallelLinear
from nanovllm.qwen3.parallel import TensorParallelGroup
from nanovllm.qwen3.placement import Placement


def kv_heads_of_ranks(num_kv_heads: int, size: int) -> list[Any]:
    """kv_head_range of every rank among `size`."""
    return [parallel.kv_head_range(num_kv_heads, SimulatedGroup(rank, size, [])) for rank in range(size)]


def load_qkv(q: Any, k: Any, v: Any, head_dim: int, ranks: int, bias: Any = None) -> list[dict[str, Any]]:
    """The packed weight of every rank, and how many numbers it read.

    q [Hq D, hidden], k and v [Hkv D, hidden]: the checkpoint's tensors. bias: those of q, k and v, or None.
    """
    named = {f"{name}_proj.weight": torch.tensor(rows) for name, rows in zip("qkv", (q, k, v), strict=True)}
    if bias is not None:
        named |= {f"{name}_proj.bias": torch.tensor(rows) for name, rows in zip("qkv", bias, strict=True)}
    heads, kv_heads = len(q) // head_dim, len(k) // head_dim
    found = []
    for rank in range(ranks):
        at = Placement(group=SimulatedGroup(rank, ranks, []))
        layer = QKVParallelLinear(len(q[0]), head_dim, heads, kv_heads, bias is not None, at)
        for parameter in layer.parameters():
            parameter.fill_(-1.0)
        reader: Any = MemoryReader(named)
        layer.load(reader, ("q_proj", "k_proj", "v_proj"))
        seen: dict[str, Any] = {"weight": layer.weight, "numbers_read": reader.numbers_read}
        found.append(seen if layer.bias is None else seen | {"bias": layer.bias})
    return found


def row_parallel(weight: Any, bias: Any, ranks: int, group: TensorParallelGroup) -> RowParallelLinear:
    """One rank's layer, its share of weight [out, in] put in by hand; bias [out] or None."""
    whole = torch.tensor(weight)
    layer = RowParallelLinear(whole.shape[1], whole.shape[0], bias is not None, "o_proj", Placement(group=group))
    layer.weight.copy_(whole.chunk(ranks, dim=1)[group.rank])
    if layer.bias is not None:
        layer.bias.copy_(torch.tensor(bias))
    return layer


def load_columns(weight: Any, bias: Any, ranks: int) -> list[dict[str, Any]]:
    """The weight (and bias) of every rank of a row-parallel layer, and how many numbers it read."""
    named = {"o_proj.weight": torch.tensor(weight)} | ({} if bias is None else {"o_proj.bias": torch.tensor(bias)})
    found = []
    for rank in range(ranks):
        layer = row_parallel(weight, bias, ranks, SimulatedGroup(rank, ranks, []))
        for parameter in layer.parameters():
            parameter.fill_(-1.0)
        reader: Any = MemoryReader(named)
        layer.load(reader, "o_proj")
        seen: dict[str, Any] = {"weight": layer.weight, "numbers_read": reader.numbers_read}
        found.append(seen if layer.bias is None else seen | {"bias": layer.bias})
    return found


def run_row_parallel(x: Any, weight: Any, bias: Any, ranks: int) -> dict[str, Any]:
    """y of every rank, and the collectives as [kind, where, shape]. x [T, in], weight [out, in]."""

    def work(group: TensorParallelGroup) -> Tensor:
        layer = row_parallel(weight, bias, ranks, group)
        return layer(torch.tensor(x).chunk(ranks, dim=1)[group.rank])

    return _run(ranks, work)


def run_embedding(vectors: Any, token_ids: list[int], ranks: int) -> dict[str, Any]:
    """The embedded tokens on every rank, and the collectives. vectors [vocab_size, hidden]."""

    def work(group: TensorParallelGroup) -> Tensor:
        layer = VocabParallelEmbedding(len(vectors), len(vectors[0]), Placement(group=group))
        _fill_rows(layer, vectors)
        return layer(torch.tensor(token_ids))

    return _run(ranks, work)


def run_logits(vectors: Any, hidden: Any, ranks: int) -> dict[str, Any]:
    """The logits on every rank (None on all but rank 0), and the collectives. hidden [n, hidden_size]."""

    def work(group: TensorParallelGroup) -> Tensor | None:
        layer = ParallelLMHead(len(vectors), len(vectors[0]), Placement(group=group))
        _fill_rows(layer, vectors)
        return layer.logits(torch.tensor(hidden))

    return _run(ranks, work)


def _fill_rows(layer: VocabParallelEmbedding, vectors: Any) -> None:
    mine = torch.tensor(vectors)[layer.first_row :][: layer.num_rows]
    layer.weight.zero_()
    layer.weight[: len(mine)] = mine


def _run(ranks: int, work: Any) -> dict[str, Any]:
    results, collectives = on_ranks(ranks, work)
    return {"ranks": results, "collectives": collectives}
