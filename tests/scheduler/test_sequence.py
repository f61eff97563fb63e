"""One request's bookkeeping: tokens, blocks, the slice that a step needs."""

import pickle

import pytest
from scheduler_driver import Driver

from nanovllm.sampling_params import SamplingParams
from nanovllm.scheduler import FinishReason, ScheduledSlice, Sequence, SequenceStatus


def test_a_new_sequence_waits_with_nothing_cached() -> None:
    seq = Sequence(3, [5, 6, 7], SamplingParams(max_tokens=2), block_size=2)
    assert (len(seq), seq.num_prompt_tokens, seq.num_completion_tokens) == (3, 3, 0)
    assert (seq.status, seq.finish_reason, seq.is_finished) == (SequenceStatus.WAITING, None, False)
    assert (seq.num_cached_tokens, seq.block_table, seq.completion_token_ids) == (0, [], [])


def test_the_prompt_is_copied() -> None:
    prompt = [1, 2]
    seq = Sequence(0, prompt, block_size=2)
    seq.append_token(3)
    assert prompt == [1, 2]
    assert (seq.token_ids, seq.last_token, seq.completion_token_ids) == ([1, 2, 3], 3, [3])


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 5])
def test_blocks_partition_the_tokens(block_size: int) -> None:
    for count in range(1, 12):
        seq = Sequence(0, list(range(count)), block_size=block_size)
        blocks = [seq.block(i) for i in range(seq.num_blocks)]
        assert [token for block in blocks for token in block] == seq.token_ids
        assert all(len(b) == block_size for b in blocks[:-1])
        assert len(blocks[-1]) == seq.last_block_num_tokens
        assert 1 <= seq.last_block_num_tokens <= block_size


@pytest.mark.parametrize("index", [-1, 2])
def test_a_block_that_is_not_there_is_named(index: int) -> None:
    with pytest.raises(IndexError, match=f"sequence 4 has 2 blocks; there is no block {index}"):
        Sequence(4, [1, 2, 3], block_size=2).block(index)


def test_a_slice_is_what_is_scheduled_and_not_cached() -> None:
    seq = Sequence(1, list(range(10)), block_size=4)
    seq.block_table, seq.num_cached_tokens, seq.num_scheduled_tokens = [7, 3, 5], 4, 5
    piece = seq.scheduled_slice()
    assert (piece.token_ids, piece.start, piece.end, piece.num_tokens) == ([4, 5, 6, 7, 8], 4, 9, 10)
    assert not piece.needs_token, "the last known token is not in it"
    seq.num_scheduled_tokens = 6
    assert seq.scheduled_slice().needs_token


def test_a_slice_survives_pickling() -> None:
    piece = ScheduledSlice(1, [4, 5], 4, 6, [2, 0])
    assert pickle.loads(pickle.dumps(piece)) == piece


def test_a_preempted_sequence_travels_with_all_its_token_ids() -> None:
    """Another process that prefills it again needs the ids, not only the last one."""
    driver = Driver(block_size=2, num_blocks=3)
    driver.add(0, [1, 2], max_tokens=4)
    seq = driver.add(1, [3, 4], max_tokens=4)
    driver.step(8)
    driver.begin()
    assert seq.num_preemptions == 1
    driver.end(9)
    while 1 not in driver.begin():
        driver.end(9)
    arrived = pickle.loads(pickle.dumps(seq.scheduled_slice()))
    assert (arrived.start, arrived.token_ids, arrived.end) == (0, [3, 4, 8], 3)
    copy = pickle.loads(pickle.dumps(seq))
    assert copy.token_ids == [3, 4, 8]
    assert copy.snapshot() == seq.snapshot()


def test_snapshot_is_the_live_state_as_plain_values() -> None:
    driver = Driver()
    seq = driver.add(2, [1, 2, 3, 4, 5], max_tokens=1)
    driver.begin()
    shot = seq.snapshot()
    assert shot == {
        "seq_id": 2,
        "status": "running",
        "finish_reason": None,
        "num_tokens": 5,
        "num_prompt_tokens": 5,
        "num_cached_tokens": 0,
        "num_scheduled_tokens": 5,
        "num_prefix_tokens": 0,
        "num_preemptions": 0,
        "num_recomputed_tokens": 0,
        "block_table": [0, 1],
        "last_token": 5,
    }
    driver.end(9)
    assert shot["block_table"] == [0, 1], "a snapshot does not change with the sequence"
    assert (seq.snapshot()["finish_reason"], seq.finish_reason) == ("length", FinishReason.LENGTH)
    assert repr(seq) == "Sequence(2, finished, 5+1 tokens, 0 cached, blocks [])"
