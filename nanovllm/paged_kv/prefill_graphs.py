"""CUDA graphs for short prefills: what decode steps have, for the step that a request's first token waits for.

Launched one by one, the kernels of a prefill take the host longer than the GPU needs for a few thousand tokens. So
prefills of up to some tokens and MAX_SEQS sequences are recorded too, in a few sizes, and a step is padded to the next:
a padded token belongs to no sequence and stores nothing (slot -1), a padded sequence has no tokens. Keys are always
read through the block tables, so one recording serves with and without a cached prefix.
"""

import numpy as np
import torch
from torch import Tensor

from nanovllm.paged_kv.batch import DeviceBatch, HostBatch
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.cuda_graphs import RecordedSteps
from nanovllm.paged_kv.fixed_inputs import Column, FixedInputs

MAX_SEQS = 16  # sequences of a recorded prefill
SMALLEST = 64  # tokens
FINER = 1024  # tokens from which sizes are closer, or a step's padding would take milliseconds
TOKEN_COLUMNS = ("input_ids", "positions", "slot_mapping")


def prefill_graph_sizes(max_tokens: int) -> list[int]:
    """64, 128, 192, 256, 384 ... 1024, 1280, 1536, 1792, 2048, 2560 ... up to max_tokens, and always that; [] for 0.

    In tokens, ascending: doubles with one size between them, and with three from FINER on. From 128 tokens on a third
    of a step at most is padding, from FINER on a fifth.
    """
    sizes = {max_tokens} if max_tokens > 0 else set()
    size = SMALLEST
    while size < max_tokens:
        step = size if size == SMALLEST else size // 2 if size < FINER else size // 4
        sizes.update(range(size, min(2 * size, max_tokens), step))
        size *= 2
    return sorted(sizes)


class PrefillBuffers(FixedInputs):
    """The inputs of the recorded prefills.

    [max_tokens] int64 each: input_ids, positions, slot_mapping. For MAX_SEQS sequences: last_token_rows (int64), keys
    [.., 2] (int64), temperature (fp32), context_lens (int32), block_tables [.., max_blocks] (int32), and cu_seqlens_q
    and cu_seqlens_k [MAX_SEQS + 1] (int32).
    """

    def __init__(self, max_tokens: int, max_blocks: int, device: torch.device) -> None:
        columns: list[Column] = [
            ("last_token_rows", np.int64, (MAX_SEQS,)),
            ("keys", np.int64, (MAX_SEQS, 2)),
            ("temperature", np.float32, (MAX_SEQS,)),
            ("context_lens", np.int32, (MAX_SEQS,)),
            ("cu_seqlens_q", np.int32, (MAX_SEQS + 1,)),
            ("cu_seqlens_k", np.int32, (MAX_SEQS + 1,)),
            ("block_tables", np.int32, (MAX_SEQS, max_blocks)),
        ]
        super().__init__([*columns, *((n, np.int64, (max_tokens,)) for n in TOKEN_COLUMNS)], device)

    def fill(
        self, batch: HostBatch, tables: np.ndarray, temperature: np.ndarray | None, keys: np.ndarray | None, size: int
    ) -> None:
        """Copy a prefill in, padded to `size` tokens and MAX_SEQS sequences.

        tables: [B, max_blocks] block tables. temperature, keys: of the rows that get a token, None on other ranks.
        """
        host = self.next_host()
        assert batch.cu_seqlens_q is not None
        assert batch.cu_seqlens_k is not None
        assert batch.last_token_rows is not None
        num_tokens = len(batch.input_ids)
        for name, filler in (("input_ids", 0), ("positions", 0), ("slot_mapping", -1)):
            host[name][:num_tokens], host[name][num_tokens:size] = getattr(batch, name), filler
        num_seqs, num_logits = len(batch.context_lens), len(batch.last_token_rows)
        for name, bounds in (("cu_seqlens_q", batch.cu_seqlens_q), ("cu_seqlens_k", batch.cu_seqlens_k)):
            host[name][: num_seqs + 1], host[name][num_seqs + 1 :] = bounds, bounds[-1]
        host["context_lens"][:num_seqs], host["context_lens"][num_seqs:] = batch.context_lens, 0
        host["block_tables"][:num_seqs, : tables.shape[1]], host["block_tables"][num_seqs:] = tables, 0
        host["last_token_rows"][:num_logits], host["last_token_rows"][num_logits:] = batch.last_token_rows, 0
        host["temperature"][:] = 0
        if temperature is not None:
            host["temperature"][:num_logits] = temperature
            host["keys"][:num_logits] = keys
        self.send()

    def context(self, size: int, max_seqlen_k: int) -> ForwardContext:
        """The metadata of a step of `size` tokens, padding included."""
        return self._first(size, MAX_SEQS, MAX_SEQS, size, max_seqlen_k)

    def real_part(self, batch: HostBatch) -> DeviceBatch:
        """The step without its padding."""
        assert batch.last_token_rows is not None
        num_tokens, num_logits = len(batch.input_ids), len(batch.last_token_rows)
        context = self._first(num_tokens, len(batch.context_lens), num_logits, batch.max_seqlen_q, batch.max_seqlen_k)
        return DeviceBatch(self.device["input_ids"][:num_tokens], self.device["positions"][:num_tokens], context)

    def _first(
        self, num_tokens: int, num_seqs: int, num_logits: int, max_seqlen_q: int, max_seqlen_k: int
    ) -> ForwardContext:
        """The metadata of the first tokens, sequences and rows of logits."""
        d = self.device
        return ForwardContext(
            True,
            d["slot_mapping"][:num_tokens],
            d["context_lens"][:num_seqs],
            d["block_tables"][:num_seqs],
            d["cu_seqlens_q"][: num_seqs + 1],
            d["cu_seqlens_k"][: num_seqs + 1],
            max_seqlen_q,
            max_seqlen_k,
            d["last_token_rows"][:num_logits],
        )


class PrefillGraphs(RecordedSteps[PrefillBuffers]):
    """The recorded prefills of one runner; a size counts tokens, and MAX_SEQS rows are sampled."""

    kind = "prefilling"

    def holds(self, batch: HostBatch) -> bool:
        """True when a recorded prefill is large enough for this one."""
        fits = bool(self.sizes) and len(batch.input_ids) <= self.sizes[-1]
        return fits and len(batch.context_lens) <= MAX_SEQS

    def _inputs(self, size: int) -> tuple[Tensor, Tensor, ForwardContext]:
        d = self.buffers.device
        return d["input_ids"][:size], d["positions"][:size], self.buffers.context(size, self.max_model_len)

    def _draws(self, size: int) -> tuple[Tensor, Tensor]:
        return self.buffers.device["temperature"], self.buffers.device["keys"]

    def _fill_with_padding(self) -> None:
        for name, tensor in self.buffers.device.items():
            tensor.fill_(-1 if name == "slot_mapping" else 0)
