"""The flash-attn backend: the library's prefill, our decode; block size a multiple of 256."""

import flash_attn
from flash_attn import flash_attn_interface, flash_attn_varlen_func
from torch import Tensor

from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.kernels.decode import paged_decode
from nanovllm.paged_kv.kernels.store import store_kv

_KNOWN_VERSION = flash_attn.__version__.startswith("2.8.")  # whose compiled function takes what _varlen_fwd gives it


def _varlen_fwd(q: Tensor, k: Tensor, v: Tensor, context: ForwardContext, scale: float) -> Tensor:
    """What flash_attn_varlen_func calls in the end. On its way there it imports torch's compiler, for seconds."""
    return flash_attn_interface.flash_attn_gpu.varlen_fwd(
        q,
        k,
        v,
        None,  # out: a new tensor
        context.cu_seqlens_q,
        context.cu_seqlens_k,
        None,  # seqused_k: all of the keys
        None,  # leftpad_k
        context.block_tables,
        None,  # alibi_slopes
        context.max_seqlen_q,
        context.max_seqlen_k,
        0.0,  # dropout
        scale,
        False,  # zero_tensors
        True,  # causal
        -1,  # window to the left
        -1,  # and to the right
        0.0,  # softcap
        False,  # return_softmax
        None,  # generator
    )[0]


class FlashAttnBackend:
    """See AttentionBackend. flash-attn reads block tables itself; storing K/V stays our kernel's job."""

    name = "flash_attn"
    supports_cuda_graphs = True
    fuses_decode = True

    def store(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
        """One program a token; -1 stores nothing."""
        store_kv(k, v, k_cache, v_cache, slot_mapping)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, context: ForwardContext, scale: float
    ) -> Tensor:
        """From the pool through block tables when a prefix is cached, else from this step's rows."""
        keys, values = (k, v) if context.block_tables is None else (k_cache, v_cache)
        if _KNOWN_VERSION and q.shape[-1] % 8 == 0:
            return _varlen_fwd(q, keys, values, context, scale)
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
        """Our kernel: on an H200 faster than the library's at 13 of 14 sizes tried (docs/gpu.md)."""
        assert context.block_tables is not None
        tables, lens = context.block_tables, context.context_lens
        return paged_decode(q, k_cache, v_cache, tables, lens, scale, order=context.order)
