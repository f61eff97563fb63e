"""The flash-attn backend: the library's variable-length and KV-cache kernels; block size a multiple of 256."""

from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from torch import Tensor

from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.kernels.decode import paged_decode
from nanovllm.paged_kv.kernels.store import store_kv

# Batches between which flash-attn's decode takes over. On an H200 (scripts/kernel_times.py) ours is faster up to 16 and
# at 512 sequences; from 32 to 256 the two are within 4 % of each other.
SMALL_BATCH, LARGE_BATCH = 16, 256


class FlashAttnBackend:
    """See AttentionBackend. flash-attn reads block tables itself; storing K/V stays our kernel's job."""

    name = "flash_attn"
    supports_cuda_graphs = True

    def store(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        """One program a token; -1 stores nothing."""
        store_kv(k, v, k_cache, v_cache, slot_mapping)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, context: ForwardContext, scale: float
    ) -> Tensor:
        """From the pool through block tables when a prefix is cached, else from this step's rows."""
        keys, values = (k, v) if context.block_tables is None else (k_cache, v_cache)
        return flash_attn_varlen_func(
            q,
            keys,
            values,
            cu_seqlens_q=context.cu_seqlens_q,
            cu_seqlens_k=context.cu_seqlens_k,
            max_seqlen_q=context.max_seqlen_q,
            max_seqlen_k=context.max_seqlen_k,
            softmax_scale=scale,
            causal=True,
            block_table=context.block_tables,
        )

    def decode(self, q: Tensor, k_cache: Tensor, v_cache: Tensor, context: ForwardContext, scale: float) -> Tensor:
        """One query a sequence against its cached keys; few or very many sequences take our kernel, which is faster."""
        if not SMALL_BATCH < q.shape[0] <= LARGE_BATCH:
            assert context.block_tables is not None
            return paged_decode(q, k_cache, v_cache, context.block_tables, context.context_lens, scale)
        out = flash_attn_with_kvcache(
            q.unsqueeze(1),
            k_cache,
            v_cache,
            cache_seqlens=context.context_lens,
            block_table=context.block_tables,
            softmax_scale=scale,
            causal=True,
        )
        return out.squeeze(1)
