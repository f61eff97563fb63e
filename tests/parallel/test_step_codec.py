"""What a step sends: a worker rebuilds exactly the slices of rank 0, from little more than the new tokens."""

import pickle
import random

import pytest

from nanovllm.engine.step_codec import StepDecoder, StepEncoder, StepMessage
from nanovllm.sampling_params import SamplingParams
from nanovllm.scheduler import BlockManager, Scheduler, Sequence


def make_scheduler(num_blocks: int, block_size: int, max_num_seqs: int = 8, budget: int = 24) -> Scheduler:
    manager = BlockManager(num_blocks, block_size)
    return Scheduler(manager, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, max_model_len=96)


def add(scheduler: Scheduler, seq_id: int, tokens: list[int], max_tokens: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    scheduler.add(Sequence(seq_id, tokens, params, scheduler.block_manager.block_size))


class Wire:
    """An encoder, a pickle and a decoder behind each other, compared with what rank 0 runs."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self.scheduler, self.rng = scheduler, rng
        self.encoder, self.decoder = StepEncoder(), StepDecoder()
        self.messages: list[StepMessage] = []
        self.num_preemptions = 0

    def step(self) -> None:
        seqs, is_prefill = self.scheduler.schedule()
        slices = [seq.scheduled_slice() for seq in seqs]
        message = pickle.loads(pickle.dumps(self.encoder.encode(slices, is_prefill, self.scheduler.sequences)))
        rebuilt = self.decoder.decode(message)
        assert rebuilt == slices
        self.messages.append(message)
        self.num_preemptions += sum(d.kind.value == "preempt" for d in self.scheduler.decisions)
        sampled = [self.rng.randrange(5) if s.needs_token else None for s in slices]
        self.scheduler.postprocess(seqs, sampled, is_prefill)


@pytest.mark.parametrize("seed", range(12))
def test_workers_rebuild_every_step(seed: int) -> None:
    rng = random.Random(seed)
    block_size = rng.choice([1, 2, 4, 16])
    scheduler = make_scheduler(num_blocks=72 // block_size, block_size=block_size)
    wire = Wire(scheduler, rng)
    for seq_id in range(25):
        shared = [1, 2, 3, 4, 5, 6, 7, 8][: rng.randrange(9)]
        add(scheduler, seq_id, shared + [rng.randrange(5) for _ in range(rng.randrange(1, 20))], rng.randrange(1, 16))
        for _ in range(rng.randrange(3)):
            if not scheduler.is_finished():
                wire.step()
        if rng.random() < 0.2 and scheduler.sequences:
            scheduler.abort(rng.choice(list(scheduler.sequences)))
    while not scheduler.is_finished():
        wire.step()
    assert any(m.dropped for m in wire.messages)


def test_preempted_sequences_are_dropped_and_sent_again_whole() -> None:
    scheduler = make_scheduler(num_blocks=8, block_size=4)
    wire = Wire(scheduler, random.Random(0))
    for seq_id in range(3):
        add(scheduler, seq_id, [seq_id] * 7, 12)
    while not scheduler.is_finished():
        wire.step()
    assert wire.num_preemptions
    first = {m.tables[0][0]: i for i, m in reversed(list(enumerate(wire.messages))) if m.is_prefill}
    again = [t for i, m in enumerate(wire.messages) if m.is_prefill and i > max(first.values()) for t in m.tables]
    assert all(keep == 0 for _, keep, _ in again)


def test_a_decode_step_sends_one_token_a_sequence_and_only_new_blocks() -> None:
    scheduler = make_scheduler(num_blocks=64, block_size=4, budget=96)
    wire = Wire(scheduler, random.Random(0))
    for seq_id in range(4):
        add(scheduler, seq_id, [seq_id + 1] * (8 + seq_id), 9)
    while not scheduler.is_finished():
        wire.step()
    prefill, *decodes = wire.messages
    assert prefill.is_prefill
    assert len(prefill.tokens) == 8 + 9 + 10 + 11
    for message in decodes:
        assert not message.is_prefill
        assert message.lengths is None
        assert message.totals is None
        assert len(message.tokens) == len(message.seq_ids)
        assert all(keep > 0 and len(new) == 1 for _, keep, new in message.tables)
        crossing = [i for i, start in zip(message.seq_ids, message.starts, strict=True) if start % 4 == 0]
        assert [seq_id for seq_id, _, _ in message.tables] == [i for i in crossing if i in message.seq_ids]


def test_bytes_of_a_decode_step_do_not_grow_with_the_context() -> None:
    sizes = {}
    for length in (10, 80):
        scheduler = make_scheduler(num_blocks=64, block_size=16, budget=96)
        wire = Wire(scheduler, random.Random(0))
        for seq_id in range(4):
            add(scheduler, seq_id, [300 + seq_id] * length, 3)
        while not scheduler.is_finished():
            wire.step()
        sizes[length] = len(pickle.dumps(tuple(next(m for m in wire.messages if not m.is_prefill and not m.tables))))
    assert sizes[80] <= sizes[10] + 2
    assert sizes[10] < 80


def test_a_finished_sequence_is_forgotten_on_both_sides() -> None:
    scheduler = make_scheduler(num_blocks=64, block_size=4)
    wire = Wire(scheduler, random.Random(0))
    add(scheduler, 0, [1, 2, 3], 2)
    add(scheduler, 1, [4, 5, 6], 8)
    while not scheduler.is_finished():
        wire.step()
    add(scheduler, 2, [7, 8, 9], 2)
    while not scheduler.is_finished():
        wire.step()
    assert set(wire.decoder.tables) == {2}
