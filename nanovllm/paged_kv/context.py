"""What attention must know of a step, in one explicit object that travels through the model. There is no global."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class ForwardContext:
    """Step metadata. T tokens of B sequences; a step is all prefill or all decode.

    is_prefill: packed variable-length rows (prefill), or exactly one row a sequence (decode).
    slot_mapping: [T] int64, the cache slot that each token's K/V go to; -1 stores nothing (padding).
    block_tables: [B, max_blocks] int32, physical block of each logical one; entries past a sequence's end are 0 and
        never read. None in a prefill without cached prefix, which needs no cache read.
    context_lens: [B] int32, keys each sequence attends to: its cached tokens plus those of this step.
    cu_seqlens_q, cu_seqlens_k: [B + 1] int32, running sums of query and key lengths. Prefill only.
    max_seqlen_q, max_seqlen_k: the longest of them, in tokens.
    last_token_rows: [num_logits] int64, rows of the tokens whose logits are needed; None means all rows (decode).
    order: [B] int32, the rows by context_lens, longest first, in which decode attention begins them; None: as they are.
    """

    is_prefill: bool
    slot_mapping: Tensor
    context_lens: Tensor
    block_tables: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    max_seqlen_q: int = 1
    max_seqlen_k: int = 1
    last_token_rows: Tensor | None = None
    order: Tensor | None = None

    @cached_property
    def query_bounds(self) -> list[int]:
        """cu_seqlens_q on the host (a wait on a GPU, so only the torch reference uses it)."""
        assert self.cu_seqlens_q is not None
        return self.cu_seqlens_q.tolist()

    @cached_property
    def key_lens(self) -> list[int]:
        """context_lens on the host (a wait on a GPU, so only the torch reference uses it)."""
        return self.context_lens.tolist()

    def key_slots(self, block_size: int) -> Tensor:
        """[B, max_seqlen_k] int64: the cache slot of every position, read off the block tables; computed once a step.

        Positions past a sequence's end map to its own first slot: attention masks them, but a weight of 0 times a NaN
        is a NaN, so the slot must be one whose K/V this sequence computed.
        """
        cached: Tensor | None = self.__dict__.get("_key_slots")
        if cached is None:
            assert self.block_tables is not None
            offsets = torch.arange(block_size, device=self.block_tables.device)
            slots = self.block_tables.to(torch.int64).unsqueeze(-1) * block_size + offsets
            slots = slots.flatten(1)[:, : self.max_seqlen_k]
            inside = torch.arange(slots.shape[1], device=slots.device) < self.context_lens.unsqueeze(1)
            cached = self.__dict__["_key_slots"] = slots.where(inside, slots[:, :1])
        return cached

    def key_pages(self, block_size: int) -> list[slice | Tensor]:
        """Where each sequence's keys lie, on the host; computed once a step. Only the torch reference uses it.

        A slice of slots where the sequence's blocks are neighbours in the pool, so that its keys are a view; else its
        block ids [num_blocks] int64, in order.
        """
        cached: list[slice | Tensor] | None = self.__dict__.get("_key_pages")
        if cached is None:
            assert self.block_tables is not None
            tables = self.block_tables.to(torch.int64)
            num_blocks = (self.context_lens.to(torch.int64) + block_size - 1) // block_size
            inside = torch.arange(1, tables.shape[1], device=tables.device) < num_blocks.unsqueeze(1)
            is_run = ((tables.diff(dim=1) == 1) | ~inside).all(dim=1).tolist()
            rows = zip(tables, is_run, tables[:, 0].tolist(), num_blocks.tolist(), self.key_lens, strict=True)
            cached = self.__dict__["_key_pages"] = [
                slice(first * block_size, first * block_size + length) if run else table[:count]
                for table, run, first, count, length in rows
            ]
        return cached
