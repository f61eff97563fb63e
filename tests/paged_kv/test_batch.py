"""Batch preparation against a per-token reference that follows the definitions one token at a time."""

import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanovllm import SamplingParams
from nanovllm.paged_kv.batch import HostBatch, SamplingInputs, pad_block_tables, prepare, to_device
from nanovllm.scheduler.sequence import ScheduledSlice, Sequence


def a_slice(
    seq_id: int, start: int, length: int, unscheduled: int, block_size: int, dice: random.Random
) -> ScheduledSlice:
    """A slice of `length` tokens after `start` cached ones, `unscheduled` more to come, with scattered blocks."""
    num_tokens = start + length + unscheduled
    blocks = dice.sample(range(10_000), -(-num_tokens // block_size))
    tokens = [dice.randrange(1000) for _ in range(length)]
    return ScheduledSlice(seq_id, tokens, start, num_tokens, blocks)


@st.composite
def prefills(draw: st.DrawFn) -> tuple[list[ScheduledSlice], int]:
    block_size = draw(st.sampled_from([1, 2, 3, 4, 16, 256]))
    dice = random.Random(draw(st.integers(0, 2**32)))
    shapes = draw(
        st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=6)
    )
    return [a_slice(i, *shape, block_size, dice) for i, shape in enumerate(shapes)], block_size


def slot(s: ScheduledSlice, position: int, block_size: int) -> int:
    """Where the token at `position` lives: the definition."""
    return s.block_table[position // block_size] * block_size + position % block_size


@given(prefills())
def test_prefill_against_the_definition(case: tuple[list[ScheduledSlice], int]) -> None:
    slices, block_size = case
    batch = prepare(slices, True, block_size)
    ids, positions, slots, rows = [], [], [], []
    cu_q, cu_k = [0], [0]
    for s in slices:
        for offset, token in enumerate(s.token_ids):
            ids.append(token)
            positions.append(s.start + offset)
            slots.append(slot(s, s.start + offset, block_size))
        cu_q.append(len(ids))
        cu_k.append(cu_k[-1] + s.start + len(s.token_ids))
        if s.start + len(s.token_ids) == s.num_tokens:
            rows.append(len(ids) - 1)
    assert batch.is_prefill
    assert batch.input_ids.tolist() == ids
    assert batch.positions.tolist() == positions
    assert batch.slot_mapping.tolist() == slots
    assert batch.cu_seqlens_q.tolist() == cu_q
    assert batch.cu_seqlens_k.tolist() == cu_k
    assert batch.context_lens.tolist() == [s.start + len(s.token_ids) for s in slices]
    assert batch.max_seqlen_q == max(len(s.token_ids) for s in slices)
    assert batch.max_seqlen_k == max(s.start + len(s.token_ids) for s in slices)
    assert batch.last_token_rows.tolist() == rows
    check_dtypes(batch)
    if all(s.start == 0 for s in slices):
        assert batch.block_tables is None
    else:
        check_tables(batch, slices, block_size)


@given(prefills())
def test_decode_against_the_definition(case: tuple[list[ScheduledSlice], int]) -> None:
    slices, block_size = case
    slices = [ScheduledSlice(s.seq_id, s.token_ids[:1], s.start, s.start + 1, s.block_table) for s in slices]
    batch = prepare(slices, False, block_size)
    assert not batch.is_prefill
    assert batch.input_ids.tolist() == [s.token_ids[0] for s in slices]
    assert batch.positions.tolist() == [s.start for s in slices]
    assert batch.slot_mapping.tolist() == [slot(s, s.start, block_size) for s in slices]
    assert batch.context_lens.tolist() == [s.start + 1 for s in slices]
    assert batch.max_seqlen_k == max(s.start for s in slices) + 1
    assert batch.last_token_rows is None
    check_tables(batch, slices, block_size)
    check_dtypes(batch)


def check_tables(batch: HostBatch, slices: list[ScheduledSlice], block_size: int) -> None:
    """Each row: the blocks that hold this step's keys, then zeros; as wide as the longest needs."""
    used = [-(-s.end // block_size) for s in slices]
    assert batch.block_tables.shape == (len(slices), max(used))
    for row, s, n in zip(batch.block_tables.tolist(), slices, used, strict=True):
        assert row == s.block_table[:n] + [0] * (max(used) - n)


def check_dtypes(batch: HostBatch) -> None:
    """What the backends rely on."""
    for name in ("input_ids", "positions", "slot_mapping"):
        assert getattr(batch, name).dtype == np.int64
    for name in ("context_lens", "block_tables", "cu_seqlens_q", "cu_seqlens_k"):
        value = getattr(batch, name)
        assert value is None or value.dtype == np.int32


def test_a_chunk_attends_to_its_own_end() -> None:
    """Tokens 5..9 of a 12-token prompt: ten keys, not twelve, and no logits."""
    batch = prepare([ScheduledSlice(0, [1, 2, 3, 4, 5], 5, 12, [7, 3, 9])], True, 4)
    assert batch.context_lens.tolist() == [10]
    assert batch.cu_seqlens_k.tolist() == [0, 10]
    assert batch.slot_mapping.tolist() == [13, 14, 15, 36, 37]
    assert batch.last_token_rows.tolist() == []


def test_slots_beyond_32_bits() -> None:
    """Slot numbers are 64-bit: a large block id does not wrap."""
    batch = prepare([ScheduledSlice(0, [1], 300, 301, [0, 2**31 - 1])], False, 256)
    assert batch.slot_mapping.tolist() == [(2**31 - 1) * 256 + 44]


def test_one_cached_prefix_gives_every_row_a_block_table() -> None:
    slices = [ScheduledSlice(0, [1, 2], 0, 2, [5]), ScheduledSlice(1, [3], 4, 5, [6, 7])]
    assert prepare(slices, True, 4).block_tables.tolist() == [[5, 0], [6, 7]]
    assert prepare(slices[:1], True, 4).block_tables is None


def test_pad_block_tables_takes_only_what_is_used() -> None:
    """Blocks reserved for tokens of a later step stay out."""
    padded = pad_block_tables([[1, 2, 3], [4]], np.array([2, 1]))
    assert padded.tolist() == [[1, 2], [4, 0]]


def test_to_device_keeps_every_value() -> None:
    host = prepare([ScheduledSlice(0, [1, 2, 3], 4, 7, [3, 1]), ScheduledSlice(1, [9], 0, 2, [2])], True, 4)
    batch = to_device(host, torch.device("cpu"))
    assert batch.input_ids.tolist() == host.input_ids.tolist()
    assert batch.positions.tolist() == host.positions.tolist()
    context = batch.context
    for name in ("slot_mapping", "context_lens", "block_tables", "cu_seqlens_q", "cu_seqlens_k", "last_token_rows"):
        assert getattr(context, name).tolist() == getattr(host, name).tolist()
    assert (context.is_prefill, context.max_seqlen_q, context.max_seqlen_k) == (True, 3, 7)


def test_a_slice_survives_pickling() -> None:
    """What travels to other ranks, of a preempted sequence too: all token ids that the next step prefills."""
    seq = Sequence(3, [1, 2, 3, 4, 5], SamplingParams(max_tokens=4), block_size=4)
    seq.append_token(6)
    seq.num_preemptions, seq.block_table, seq.num_scheduled_tokens = 1, [8, 2], 6
    sent = seq.scheduled_slice()
    got = pickle.loads(pickle.dumps(sent))
    assert got == sent
    assert got.token_ids == [1, 2, 3, 4, 5, 6]
    assert got.needs_token
    assert prepare([got], True, 4).slot_mapping.tolist() == prepare([sent], True, 4).slot_mapping.tolist()


@pytest.mark.parametrize(("scheduled", "needs"), [(2, False), (3, True)])
def test_only_the_last_known_token_predicts(scheduled: int, needs: bool) -> None:
    seq = Sequence(0, [1, 2, 3, 4, 5], block_size=4)
    seq.num_cached_tokens, seq.num_scheduled_tokens, seq.block_table = 2, scheduled, [0, 1]
    s = seq.scheduled_slice()
    assert s.needs_token is needs
    assert s.token_ids == [3, 4, 5][:scheduled]
    assert (s.start, s.end) == (2, 2 + scheduled)


def test_sampling_inputs_collect_each_row() -> None:
    """The position is the index that the new token will have."""
    seqs = [
        Sequence(0, [1, 2, 3], SamplingParams(temperature=0), seed=5),
        Sequence(1, [1], SamplingParams(temperature=0.5, top_k=-1, top_p=0.9), seed=2**63 - 1),
        Sequence(2, [1, 2], SamplingParams(top_k=7), seed=0),
    ]
    inputs = SamplingInputs.of(seqs)
    assert inputs.temperature.tolist() == [0.0, 0.5, 1.0]
    assert inputs.top_k.tolist() == [0, 0, 7]
    assert inputs.top_p.tolist() == pytest.approx([1.0, 0.9, 1.0])
    assert inputs.seed.tolist() == [5, 2**63 - 1, 0]
    assert inputs.position.tolist() == [3, 1, 2]


def test_sampling_inputs_of_the_same_sequences_are_collected_once() -> None:
    """A later step takes over what an earlier one found, but never for other sequences or in another order."""
    seqs = [Sequence(i, [1] * (i + 1), SamplingParams(temperature=0.5 + i), seed=i) for i in range(3)]
    first = SamplingInputs.of(seqs)
    for seq in seqs:
        seq.append_token(7)
    later = SamplingInputs.of(seqs, num_ahead=1, like=first)
    assert later.temperature is first.temperature
    assert later.position.tolist() == [3, 4, 5]
    for others in (seqs[:2], seqs[::-1]):
        fresh = SamplingInputs.of(others, like=first)
        assert fresh.seed.tolist() == [seq.seed for seq in others]
        assert fresh.temperature.tolist() == [seq.sampling_params.temperature for seq in others]
