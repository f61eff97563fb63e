"""The way to flash-attn's compiled function without torch's compiler: the same numbers as the public one's."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("flash_attn")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("paged", [False, True], ids=["from the rows", "from the pool"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_both_ways_to_the_library_give_the_same_bits(
    paged: bool, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nanovllm.paged_kv.backends import flash_attn_backend
    from nanovllm.paged_kv.context import ForwardContext

    assert flash_attn_backend._KNOWN_VERSION, "this version of flash-attn is new: see that _varlen_fwd suits it"
    torch.manual_seed(0)
    lens, cached = [5, 300, 64], [0, 256, 0] if paged else [0, 0, 0]
    queries = [n - c for n, c in zip(lens, cached, strict=True)]

    def bounds(sizes: list[int]) -> Tensor:
        return torch.tensor([0, *sizes], device="cuda").cumsum(0).int()

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    context = ForwardContext(
        True,
        slot_mapping=torch.full((sum(queries),), -1, device="cuda"),
        context_lens=torch.tensor(lens, device="cuda", dtype=torch.int32),
        block_tables=torch.tensor([[4, 0], [2, 1], [3, 0]], device="cuda", dtype=torch.int32) if paged else None,
        cu_seqlens_q=bounds(queries),
        cu_seqlens_k=bounds(lens),
        max_seqlen_q=max(queries),
        max_seqlen_k=max(lens),
    )
    q, k, v = random(sum(queries), 4, head_dim), random(sum(lens), 2, head_dim), random(sum(lens), 2, head_dim)
    pool = random(5, 256, 2, head_dim), random(5, 256, 2, head_dim)
    backend = flash_attn_backend.FlashAttnBackend()
    ours = backend.prefill(q, k, v, *pool, context, 0.1)
    monkeypatch.setattr(flash_attn_backend, "_KNOWN_VERSION", False)
    public = backend.prefill(q, k, v, *pool, context, 0.1)
    assert ours.float().abs().sum() > 0
    assert torch.equal(ours, public)
