"""Batch preparation: from scheduled slices (token ids, block tables) to the flat tensors that the model reads.

Host work is vectorised numpy. Each rank does it for itself from the same slices.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, fields, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from nanovllm.paged_kv.context import ForwardContext
from nanovllm.scheduler.sequence import ScheduledSlice, Sequence


@dataclass
class HostBatch:
    """One step's arrays in host memory; names and shapes as in `ForwardContext`. T tokens, B sequences."""

    is_prefill: bool
    input_ids: np.ndarray  # [T] int64
    positions: np.ndarray  # [T] int64
    slot_mapping: np.ndarray  # [T] int64
    context_lens: np.ndarray  # [B] int32
    block_tables: np.ndarray | None  # [B, max_blocks] int32
    cu_seqlens_q: np.ndarray | None = None  # [B + 1] int32
    cu_seqlens_k: np.ndarray | None = None  # [B + 1] int32
    max_seqlen_q: int = 1
    max_seqlen_k: int = 1
    last_token_rows: np.ndarray | None = None  # [num_logits] int64


@dataclass
class DeviceBatch:
    """The same on the device: what the model's forward takes."""

    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    context: ForwardContext


@dataclass
class SamplingInputs:
    """How to sample each row of logits; one entry for each sequence that gets a token in this step, in order."""

    temperature: np.ndarray  # [n] float32
    top_k: np.ndarray  # [n] int64, 0: all
    top_p: np.ndarray  # [n] float32
    seed: np.ndarray  # [n] int64
    position: np.ndarray  # [n] int64, the index that the new token will have in its sequence
    seq_ids: list[int] = field(default_factory=list)  # [n]

    @property
    def cuts_vocabulary(self) -> bool:
        """True when a row asks for top-k or top-p, which need the logits sorted."""
        return bool((self.top_k > 0).any() or (self.top_p < 1).any())

    @classmethod
    def of(
        cls, seqs: Seq[Sequence], num_ahead: np.ndarray | int = 0, like: "SamplingInputs | None" = None
    ) -> "SamplingInputs":
        """Collect them for `seqs` (only those whose last known token is in the step).

        num_ahead: tokens of each that an earlier step is still sampling, [n] or one number. like: the inputs of an
        earlier step; where it was one of the same sequences, only their positions are new.
        """
        position = np.array([s.num_tokens for s in seqs], np.int64) + num_ahead
        seq_ids = [s.seq_id for s in seqs]
        if like is not None and like.seq_ids == seq_ids:
            return replace(like, position=position)
        params = [s.sampling_params for s in seqs]
        return cls(
            temperature=np.array([0.0 if p.is_greedy else p.temperature for p in params], np.float32),
            top_k=np.array([p.top_k for p in params], np.int64),
            top_p=np.array([p.top_p for p in params], np.float32),
            seed=np.array([s.seed for s in seqs], np.int64),
            position=position,
            seq_ids=seq_ids,
        )


def pad_block_tables(tables: Seq[list[int]], widths: np.ndarray) -> np.ndarray:
    """[B, max(widths)] int32: row i holds the first widths[i] entries of tables[i], then zeros."""
    counts = widths.tolist()
    width = max(counts)
    if [len(table) for table in tables] != counts:
        tables = [table[:count] for table, count in zip(tables, counts, strict=True)]
    entries = np.fromiter(chain.from_iterable(tables), np.int32, count=sum(counts))
    if min(counts) == width:
        return entries.reshape(-1, width)
    padded = np.zeros((len(tables), width), np.int32)
    padded[np.arange(width) < widths[:, None]] = entries
    return padded


def slots_of(block_tables: np.ndarray, rows: np.ndarray, positions: np.ndarray, block_size: int) -> np.ndarray:
    """[T] int64: the cache slot of each (row, position): physical block x block_size + offset in the block."""
    blocks = block_tables[rows, positions // block_size].astype(np.int64)
    return blocks * block_size + positions % block_size


def prepare_prefill(slices: Seq[ScheduledSlice], block_size: int) -> HostBatch:
    """Pack the not-yet-cached prompt slices of B sequences behind each other into T rows.

    Keys end where the chunk ends, not where the prompt does: context_lens = start + chunk length.
    """
    starts = np.array([s.start for s in slices], np.int64)
    q_lens = np.array([len(s.token_ids) for s in slices], np.int64)
    ends = starts + q_lens
    cu_q = np.concatenate([[0], np.cumsum(q_lens)])
    cu_k = np.concatenate([[0], np.cumsum(ends)])
    rows = np.repeat(np.arange(len(slices)), q_lens)
    positions = np.arange(cu_q[-1]) - (cu_q[:-1] - starts)[rows]
    tables = pad_block_tables([s.block_table for s in slices], (ends + block_size - 1) // block_size)
    needs_token = np.array([s.needs_token for s in slices], bool)
    return HostBatch(
        is_prefill=True,
        input_ids=np.concatenate([np.asarray(s.token_ids, np.int64) for s in slices]),
        positions=positions,
        slot_mapping=slots_of(tables, rows, positions, block_size),
        context_lens=ends.astype(np.int32),
        block_tables=tables if starts.any() else None,
        cu_seqlens_q=cu_q.astype(np.int32),
        cu_seqlens_k=cu_k.astype(np.int32),
        max_seqlen_q=int(q_lens.max()),
        max_seqlen_k=int(ends.max()),
        last_token_rows=cu_q[1:][needs_token] - 1,
    )


def prepare_decode(slices: Seq[ScheduledSlice], block_size: int) -> HostBatch:
    """One row a sequence: its newest token, whose K/V go to the slot after the cached ones."""
    positions = np.array([s.start for s in slices], np.int64)
    ends = positions + 1
    tables = pad_block_tables([s.block_table for s in slices], (ends + block_size - 1) // block_size)
    return HostBatch(
        is_prefill=False,
        input_ids=np.array([s.token_ids[0] for s in slices], np.int64),
        positions=positions,
        slot_mapping=slots_of(tables, np.arange(len(slices)), positions, block_size),
        context_lens=ends.astype(np.int32),
        block_tables=tables,
        max_seqlen_k=int(ends.max()),
    )


def prepare(slices: Seq[ScheduledSlice], is_prefill: bool, block_size: int) -> HostBatch:
    """The arrays of one step."""
    return (prepare_prefill if is_prefill else prepare_decode)(slices, block_size)


def to_device(host: HostBatch, device: torch.device) -> DeviceBatch:
    """Put a step's arrays on the device; on a GPU all in one asynchronous copy from pinned memory."""
    values = {f.name: getattr(host, f.name) for f in fields(host)}
    arrays = {name: v for name, v in values.items() if isinstance(v, np.ndarray)}
    move = _wrap if device.type == "cpu" else _move_together
    values.update(move(arrays, device))
    return DeviceBatch(values.pop("input_ids"), values.pop("positions"), ForwardContext(**values))


def _wrap(arrays: dict[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    return {name: torch.from_numpy(a) for name, a in arrays.items()}


def _move_together(arrays: dict[str, np.ndarray], device: torch.device) -> dict[str, Tensor]:
    """Views into one device buffer, each at a multiple of 16 bytes."""
    starts = np.cumsum([0, *[-(-a.nbytes // 16) * 16 for a in arrays.values()]]).tolist()
    host = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=True)
    view = host.numpy()
    for start, a in zip(starts, arrays.values(), strict=False):
        view[start : start + a.nbytes] = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
    moved = host.to(device, non_blocking=True)
    parts = zip(starts, arrays.items(), strict=False)
    return {
        name: moved[start : start + a.nbytes].view(torch.from_numpy(np.empty(0, a.dtype)).dtype).view(a.shape)
        for start, (name, a) in parts
    }
