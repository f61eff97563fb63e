"""The Triton backend: own kernels for store, prefill and decode; any block size, sm75 and newer."""

from torch import Tensor

from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.kernels.decode import paged_decode
from nanovllm.paged_kv.kernels.prefill import paged_prefill
from nanovllm.paged_kv.kernels.store import store_kv


class TritonBackend:
    """See AttentionBackend; what each kernel does is told beside it in `paged_kv/kernels`."""

    name = "triton"
    supports_cuda_graphs = True
    fuses_decode = True

    def store(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        """One program a token; -1 stores nothing."""
        store_kv(k, v, k_cache, v_cache, slot_mapping)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, context: ForwardContext, scale: float
    ) -> Tensor:
        """From the pool when a prefix is cached, else from this step's rows."""
        assert context.cu_seqlens_q is not None
        assert context.cu_seqlens_k is not None
        keys, values = (k, v) if context.block_tables is None else (k_cache, v_cache)
        return paged_prefill(
            q,
            keys,
            values,
            context.cu_seqlens_q,
            context.cu_seqlens_k,
            context.max_seqlen_q,
            scale,
            context.block_tables,
        )

    def decode(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, context: ForwardContext, scale: float) -> Tensor:
        """Split over the context."""
        assert context.block_tables is not None
        tables, lens = context.block_tables, context.context_lens
        return paged_decode(q, k_cache, v_cache, tables, lens, scale, order=context.order)
