"""Who owns which block, and which prefixes can be found: the smallest case of each rule."""

from collections import OrderedDict

import pytest
from scheduler_driver import Driver

from nanovllm.course.oracle import Request, Trace, run_trace
from nanovllm.scheduler import BlockManager, Sequence
from nanovllm.scheduler.block_manager import chained_hash


def sequence(tokens: list[int], block_size: int = 2, seq_id: int = 0) -> Sequence:
    return Sequence(seq_id, tokens, block_size=block_size)


def compute(manager: BlockManager, seq: Sequence) -> None:
    """Allocate if need be, and book all known tokens as computed."""
    if not seq.block_table:
        manager.allocate(seq)
    before, seq.num_cached_tokens = seq.num_cached_tokens, seq.num_tokens
    manager.publish(seq, before)


# --- ownership -------------------------------------------------------------------------------------------------------


def test_blocks_are_taken_and_given_back() -> None:
    manager = BlockManager(4, 2)
    seq = sequence([1, 2, 3])
    manager.allocate(seq)
    assert (seq.block_table, manager.num_free_blocks, manager.num_used_blocks) == ([0, 1], 2, 2)
    manager.check_integrity([seq])
    manager.deallocate(seq)
    manager.deallocate(seq)
    assert (seq.block_table, manager.num_free_blocks) == ([], 4)
    manager.check_integrity([])


def test_a_shared_block_is_free_only_after_its_last_owner() -> None:
    manager = BlockManager(4, 2)
    first, second = sequence([1, 2, 3]), sequence([1, 2, 4], seq_id=1)
    compute(manager, first)
    manager.allocate(second)
    assert second.block_table[0] == first.block_table[0]
    assert manager.blocks[0].ref_count == 2
    manager.deallocate(first)
    assert 0 not in manager.free_block_ids
    manager.check_integrity([second])
    manager.deallocate(second)
    assert 0 in manager.free_block_ids


def test_a_block_is_appended_exactly_when_the_newest_token_has_no_slot() -> None:
    """When append is asked, the sampled token is counted already: the new block comes at num_tokens % bs == 1."""
    manager = BlockManager(4, 2)
    seq = sequence([1])
    compute(manager, seq)
    sizes = []
    for token in range(5):
        seq.append_token(token)
        assert manager.can_append(seq)
        manager.append(seq)
        manager.append(seq)  # a retried step asks again
        sizes.append((seq.num_tokens, len(seq.block_table)))
    assert sizes == [(2, 1), (3, 2), (4, 2), (5, 3), (6, 3)]


def test_a_token_with_a_slot_needs_no_free_block() -> None:
    manager = BlockManager(1, 2)
    seq = sequence([1])
    compute(manager, seq)
    seq.append_token(2)
    assert manager.can_append(seq), "slot 1 of its only block"
    seq.append_token(3)
    assert not manager.can_append(seq)


def test_a_plan_counts_free_hits_as_taken() -> None:
    """Two free blocks, both of them hits: nothing is left for the third."""
    manager = BlockManager(3, 2)
    first = sequence([1, 2, 3, 4])
    compute(manager, first)
    manager.deallocate(first)
    holder = sequence([9], seq_id=1)
    manager.allocate(holder)  # takes the block that was never used
    assert manager.num_free_blocks == 2
    plan = manager.plan(sequence([1, 2, 3, 4, 5], seq_id=2))
    assert (plan.cached_block_ids, plan.num_new_blocks, plan.num_free_blocks, plan.missing) == ([0, 1], 1, 0, 1)
    assert not manager.can_allocate(sequence([1, 2, 3, 4, 5], seq_id=2))


def test_a_plan_changes_nothing() -> None:
    manager = BlockManager(3, 2)
    compute(manager, sequence([1, 2, 3]))
    shot = manager.snapshot()
    manager.plan(sequence([1, 2, 9], seq_id=1))
    assert manager.snapshot() == shot


def test_misuse_is_refused_with_both_numbers() -> None:
    manager = BlockManager(2, 2)
    seq = sequence([1, 2, 3])
    manager.allocate(seq)
    with pytest.raises(RuntimeError, match="sequence 0 already owns 2 blocks"):
        manager.allocate(seq)
    with pytest.raises(RuntimeError, match="sequence 7 needs 1 free blocks and 0 are free"):
        manager.allocate(sequence([1], seq_id=7))


def test_the_integrity_check_notices_each_kind_of_damage() -> None:
    def damaged() -> tuple[BlockManager, Sequence]:
        manager, seq = BlockManager(3, 2), sequence([1, 2, 3])
        compute(manager, seq)
        return manager, seq

    manager, seq = damaged()
    manager.blocks[1].ref_count += 1
    with pytest.raises(AssertionError, match="block 1: ref count 2, owners 1"):
        manager.check_integrity([seq])
    manager, seq = damaged()
    manager.free_block_ids[0] = None
    with pytest.raises(AssertionError, match="wrong free list"):
        manager.check_integrity([seq])
    manager, seq = damaged()
    manager.blocks[0].forget()
    with pytest.raises(AssertionError, match="hash entry of block 0 is stale"):
        manager.check_integrity([seq])


# --- the prefix cache ------------------------------------------------------------------------------------------------


def test_hashes_are_chained() -> None:
    first = chained_hash(None, [1, 2])
    assert chained_hash(None, [1, 2]) == first
    assert chained_hash(first, [1, 2]) != first, "the same tokens after themselves"
    assert chained_hash(None, [1, 2, 3]) != chained_hash(chained_hash(None, [1]), [2, 3])


def test_nothing_is_found_before_it_is_computed() -> None:
    """Two requests with one prefix in one step: the second must not lean on blocks still to be filled."""
    driver = Driver(block_size=2)
    one = driver.add(0, [1, 2, 3, 4, 5], max_tokens=2)
    two = driver.add(1, [1, 2, 3, 4, 5], max_tokens=2)
    assert driver.begin() == [0, 1]
    assert (one.num_scheduled_tokens, two.num_scheduled_tokens) == (5, 5)
    assert not set(one.block_table) & set(two.block_table)
    assert driver.hits([1, 2, 3, 4, 5]) == 0
    driver.end()
    assert driver.hits([1, 2, 3, 4, 5]) == 2


def test_only_full_blocks_are_found_and_one_token_is_left() -> None:
    driver = Driver(block_size=4)
    driver.add(0, [1, 2, 3, 4, 5, 6, 7, 8], max_tokens=1)
    driver.step()
    assert driver.hits([1, 2, 3]) == 0
    assert driver.hits([1, 2, 3, 4]) == 0, "it would leave nothing to compute"
    assert driver.hits([1, 2, 3, 4, 5]) == 1
    assert driver.hits([1, 2, 3, 4, 5, 6, 7, 8]) == 1
    assert driver.hits([1, 2, 3, 4, 5, 6, 7, 8, 9]) == 2


def test_a_fully_cached_prompt_recomputes_its_last_block_and_answers_the_same() -> None:
    prompt = (1, 2, 3, 4, 5, 6, 7, 8)
    result = run_trace(Trace(4, 8, (Request(prompt, 3), Request(prompt, 3, arrival=1))))
    assert result.completions[0] == result.completions[1]
    assert result.batches[1] == (True, [(1, 4, 4)])


def test_blocks_completed_while_decoding_are_found_by_the_next_turn() -> None:
    driver = Driver(block_size=2)
    seq = driver.add(0, [1, 2, 3], max_tokens=4)
    driver.run()
    talk = seq.token_ids
    assert len(talk) == 7
    assert driver.hits([*talk, 5]) == 3, "the last sampled token was never fed in"


def test_recycling_drops_the_entry() -> None:
    """What was published under a block must not be found once the block holds something else."""
    driver = Driver(block_size=2, num_blocks=2)
    driver.add(0, [1, 2, 3], max_tokens=1)
    driver.step()
    assert driver.hits([1, 2, 3]) == 1
    driver.add(1, [8, 9, 8], max_tokens=1)
    driver.begin()
    assert driver.hits([1, 2, 3]) == 0
    driver.end()
    assert driver.hits([8, 9, 8]) == 1
    assert len(driver.manager.hash_to_block_id) == 1


def test_few_blocks_and_a_vocabulary_of_three_never_serve_a_stale_block() -> None:
    prompts = [(0, 1, 2, 0, 1), (1, 1, 2), (0, 1, 2, 0, 2), (2, 2, 2, 2), (0, 1), (0, 1, 2, 0), (1, 1, 2, 1), (2, 2)]
    requests = tuple(Request(p, max_tokens=4, arrival=i // 3) for i, p in enumerate([*prompts, *prompts[:2]]))
    for hash_range in (None, 3):
        trace = Trace(2, 7, requests, max_num_seqs=3, vocab_size=3, hash_range=hash_range)
        assert len(run_trace(trace).completions) == 10


def test_taking_back_a_free_block_keeps_its_hash_and_tokens() -> None:
    driver = Driver(block_size=2, num_blocks=14)
    for seq_id in range(4):
        seq = driver.add(seq_id, [1, 2, 3, 4, 5], max_tokens=1)
        driver.begin()
        assert seq.num_prefix_tokens == (4 if seq_id else 0)
        assert seq.block_table[:2] == [0, 1]
        driver.end()
        assert driver.manager.blocks[0].token_ids == [1, 2]
        assert driver.manager.blocks[1].token_ids == [3, 4]


@pytest.mark.parametrize("num_values", [1, 3])
def test_colliding_hashes_never_mix_prefixes(num_values: int) -> None:
    def colliding(previous: int | None, token_ids: list[int]) -> int:
        return (sum(token_ids) + (previous or 0)) % num_values

    manager = BlockManager(40, 2, colliding)
    prompts = [[a, b, c, d, 0] for a in (0, 1) for b in (0, 1) for c in (0, 1) for d in (0, 1)]
    content: dict[int, list[int]] = {}
    for seq_id, prompt in enumerate(prompts * 2):
        seq = sequence(prompt, seq_id=seq_id)
        for index, block_id in enumerate(manager.match_prefix(seq)):
            assert content[block_id] == prompt[: 2 * index + 2], "the whole prefix, not only the block's own tokens"
        compute(manager, seq)
        for index in range(2):
            content.setdefault(seq.block_table[index], prompt[: 2 * index + 2])
        manager.deallocate(seq)
        content = {b: content[b] for b in content if manager.blocks[b].hash is not None}


def test_equal_blocks_of_two_sequences_publish_one_entry() -> None:
    manager = BlockManager(8, 2)
    one, two = sequence([1, 2, 3, 4, 5]), sequence([1, 2, 3, 4, 5], seq_id=1)
    manager.allocate(one)
    manager.allocate(two)
    compute(manager, one)
    compute(manager, two)
    assert manager.match_prefix(sequence([1, 2, 3, 4, 9])) == one.block_table[:2]
    two.append_token(6)
    compute(manager, two)  # its third block is full now, and follows the other's second
    assert manager.match_prefix(sequence([1, 2, 3, 4, 5, 6, 7])) == [*one.block_table[:2], two.block_table[2]]


def test_an_entry_whose_prefix_was_recycled_gives_way() -> None:
    """Request 1 published [3, 4] after request 0's [1, 2], which is gone: who computes both again must be found."""
    driver = Driver(block_size=2, num_blocks=8)
    driver.add(0, [1, 2, 3], max_tokens=1)
    driver.add(1, [1, 2, 3], max_tokens=6)
    driver.step(4)
    driver.step(5)
    assert driver.hits([1, 2, 3, 4, 5]) == 2
    driver.add(2, [9] * 11, max_tokens=1)
    driver.step()
    assert driver.hits([1, 2, 3, 4, 5]) == 0
    driver.add(3, [1, 2, 3, 4, 5], max_tokens=1)
    driver.step()
    assert driver.hits([1, 2, 3, 4, 5]) == 2


@pytest.mark.parametrize("direct", [False, True])
def test_an_emptied_cache_finds_nothing_and_fills_again(direct: bool) -> None:
    driver = Driver(block_size=2)
    running = driver.add(0, [1, 2, 3], max_tokens=6)
    driver.step(3)
    if direct:
        driver.manager.hash_to_block_id.clear()
    else:
        driver.manager.reset_prefix_cache()
    assert driver.hits([1, 2, 3]) == 0
    driver.step(3)
    driver.step(3)
    assert driver.manager.hash_to_block_id == {}, "a block after an unknown prefix is not published"
    driver.add(1, [1, 2, 3], max_tokens=1)
    driver.run()
    assert running.completion_token_ids == [3, 3, 3, 7, 7, 7]
    assert driver.hits([1, 2, 3]) == 1


def test_the_start_of_a_prefix_is_recycled_last() -> None:
    driver = Driver(block_size=2, num_blocks=3)
    driver.add(0, [1, 2, 3, 4, 5], max_tokens=1)
    driver.step()
    assert list(driver.manager.free_block_ids) == [2, 1, 0]
    driver.add(1, [9, 9, 9], max_tokens=1)
    driver.step()
    assert driver.hits([1, 2, 3, 4, 5]) == 1


def test_snapshot_is_the_live_state() -> None:
    manager = BlockManager(3, 2)
    seq = sequence([1, 2, 3])
    compute(manager, seq)
    hashed = chained_hash(None, [1, 2])
    assert manager.snapshot() == {
        "num_blocks": 3,
        "block_size": 2,
        "free": [2],
        "ref_counts": [1, 1, 0],
        "hashes": {0: hashed},
        "cached": {0: [1, 2]},
    }
    manager.deallocate(seq)
    assert (manager.snapshot()["free"], manager.snapshot()["ref_counts"]) == ([2, 1, 0], [0, 0, 0])


# --- cost, counted in operations -------------------------------------------------------------------------------------


class Counting:
    """A hash function that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, previous: int | None, token_ids: list[int]) -> int:
        self.calls += 1
        return chained_hash(previous, token_ids)


def test_each_full_block_is_hashed_once_however_often_it_waits() -> None:
    count = Counting()
    driver = Driver(block_size=2, num_blocks=10, hash_function=count)
    driver.add(0, [1] * 9, max_tokens=8)
    driver.step()
    driver.add(1, [2] * 13, max_tokens=2)
    while driver.scheduler.running:
        driver.step()
    driver.run()
    assert count.calls == 8 + 7, "the full blocks of the 16 and 14 tokens that were fed in"


class CountingOrderedDict(OrderedDict):
    """Counts iteration, which is the only way to reach the middle of the free list in linear time."""

    iterations = 0

    def __iter__(self):
        type(self).iterations += 1
        return super().__iter__()


def test_blocks_leave_the_middle_of_the_free_list_without_a_search() -> None:
    manager = BlockManager(1000, 2)
    assert isinstance(manager.free_block_ids, OrderedDict)
    seqs = [sequence([i, i, i], seq_id=i) for i in range(300)]
    for seq in seqs:
        compute(manager, seq)
        manager.deallocate(seq)
    manager.free_block_ids = CountingOrderedDict(manager.free_block_ids)
    CountingOrderedDict.iterations = 0
    for i in (150, 10, 290):
        again = sequence([i, i, i], seq_id=1000 + i)
        compute(manager, again)
        manager.deallocate(again)
        assert again.num_prefix_tokens == 2
    assert CountingOrderedDict.iterations == 0
