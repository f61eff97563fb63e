"""Which request runs next, and why: the smallest case of each rule, with the reasons in words."""

import re

import pytest
from scheduler_driver import Driver

from nanovllm.course.oracle import Request, Trace, run_trace
from nanovllm.errors import RequestError
from nanovllm.sampling_params import SamplingParams
from nanovllm.scheduler import (
    BlockManager,
    Decision,
    DecisionKind,
    FinishReason,
    Sequence,
    SequenceStatus,
    StepInFlight,
    schedule_ahead,
    slices_ahead,
    undo,
)

# --- prefill first, in order, within budgets -------------------------------------------------------------------------


def test_prefill_comes_first_and_a_step_is_one_kind() -> None:
    driver = Driver()
    driver.add(0, [1, 2], max_tokens=3)
    assert driver.step() == [0]
    driver.add(1, [3], max_tokens=3)
    assert driver.step() == [1]
    assert driver.schedule.is_prefill
    assert driver.step() == [0, 1]
    assert not driver.schedule.is_prefill


def test_an_idle_scheduler_schedules_nothing() -> None:
    driver = Driver()
    assert driver.scheduler.is_finished()
    assert driver.begin() == []
    assert not driver.schedule.is_prefill
    assert driver.reasons == []
    driver.end()


def test_the_token_budget_bounds_a_prefill_and_the_rest_follows_in_order() -> None:
    driver = Driver(budget=5)
    for seq_id in range(3):
        driver.add(seq_id, [seq_id] * 3, max_tokens=2)
    assert driver.begin() == [0, 1]
    assert [seq.num_scheduled_tokens for seq in driver.schedule.seqs] == [3, 2]
    driver.end()
    assert driver.begin() == [1, 2]
    assert [seq.num_scheduled_tokens for seq in driver.schedule.seqs] == [1, 3]
    driver.end()


def test_a_chunk_ends_where_its_tokens_end() -> None:
    """Twelve tokens at five a step: each slice has keys up to its own end, and only the last needs a token."""
    driver = Driver(block_size=4, budget=5)
    seq = driver.add(0, list(range(12)), max_tokens=1)
    seen = []
    while not seq.is_finished:
        driver.begin()
        piece = seq.scheduled_slice()
        seen.append((piece.start, piece.end, piece.needs_token))
        driver.end()
    assert seen == [(0, 5, False), (5, 10, False), (10, 12, True)]
    whole, chunked = (
        run_trace(Trace(4, 8, (Request(tuple(range(12)), 5),), max_num_batched_tokens=budget)) for budget in (64, 5)
    )
    assert whole.completions == chunked.completions


def test_a_partial_chunk_waits_at_the_head_with_its_blocks() -> None:
    driver = Driver(block_size=2, budget=3)
    seq = driver.add(0, [1, 2, 3, 4, 5], max_tokens=1)
    driver.add(1, [6], max_tokens=1)
    driver.step()
    assert (seq.status, seq.num_cached_tokens, len(seq.block_table)) == (SequenceStatus.WAITING, 3, 3)
    assert driver.scheduler.waiting[0] is seq
    assert driver.step() == [0, 1]


def test_a_chunk_is_sized_after_the_prefix_match() -> None:
    """Two requests with one prefix in six blocks of two; a hit leaves less to compute than the prompt's length."""
    driver = Driver(block_size=2, num_blocks=6, budget=5)
    driver.add(0, [1, 2, 3, 4, 5], max_tokens=1)
    driver.step()
    seq = driver.add(1, [1, 2, 3, 4, 6, 7], max_tokens=2)
    driver.begin()
    piece = seq.scheduled_slice()
    assert (piece.start, piece.end) == (4, 6)
    assert piece.end <= len(piece.block_table) * 2
    driver.end()
    driver.run()


def test_preempted_requests_with_a_shared_prefix_answer_as_alone() -> None:
    requests = (Request((1, 2, 3, 4), 6), Request((1, 2, 3, 5), 6))
    together = run_trace(Trace(2, 6, requests, max_num_batched_tokens=3))
    assert together.num_preemptions > 0
    for index, request in enumerate(requests):
        assert together.completions[index] == run_trace(Trace(2, 6, (request,))).completions[0]


def test_max_num_seqs_counts_the_running_ones() -> None:
    driver = Driver(max_num_seqs=2)
    for seq_id in range(2):
        driver.add(seq_id, [1], max_tokens=3)
    assert driver.step() == [0, 1]
    for seq_id in range(2, 4):
        driver.add(seq_id, [1], max_tokens=3)
    assert driver.step() == [0, 1]
    assert driver.step() == [0, 1]
    assert driver.step() == [2, 3]


def test_a_long_arrival_delays_running_requests_by_its_chunks() -> None:
    """Prefill first means just that; a wrapper that wants a bound on the wait sets it by the budget."""
    driver = Driver(budget=4, num_blocks=32)
    driver.add(0, [1], max_tokens=5)
    driver.step()
    driver.add(1, [2] * 40, max_tokens=1)
    batches = [driver.step() for _ in range(11)]
    assert batches == [[1]] * 10 + [[0]]


def test_the_order_of_a_batch_does_not_depend_on_who_left() -> None:
    driver = Driver(max_num_seqs=6)
    for seq_id in (4, 2, 5, 0, 3, 1):
        driver.add(seq_id, [seq_id], max_tokens=4)
    assert driver.step() == [4, 2, 5, 0, 3, 1]
    driver.scheduler.abort(5)
    driver.scheduler.abort(4)
    assert driver.step() == [2, 0, 3, 1]


# --- blocks run out --------------------------------------------------------------------------------------------------


def test_the_youngest_gives_way_and_continues_from_all_its_tokens() -> None:
    """Three blocks of eight, two requests of eight: the second loses its block but no token."""
    driver = Driver(block_size=8, num_blocks=3)
    driver.add(0, [1] * 8, max_tokens=4)
    young = driver.add(1, [2] * 8, max_tokens=4)
    driver.step(5)
    assert driver.begin() == [0]
    assert (young.status, young.block_table, young.token_ids) == (SequenceStatus.WAITING, [], [2] * 8 + [5])
    driver.end(6)
    driver.manager.reset_prefix_cache()  # or its block would be found again
    while 1 not in driver.begin():
        driver.end(6)
    assert young.scheduled_slice().token_ids == [2] * 8 + [5], "nine known tokens predict the tenth"
    while not young.is_finished:
        driver.end(6)
        driver.begin()
    assert young.completion_token_ids == [5, 6, 6, 6]
    assert (young.num_preemptions, young.num_recomputed_tokens) == (1, 8)


def test_recomputed_tokens_count_what_was_computed_again() -> None:
    """In chunks of four, the first of which fails once: eight of the nine tokens had been computed before."""
    driver = Driver(block_size=8, num_blocks=3, budget=16)
    driver.add(0, [1] * 8, max_tokens=2)
    young = driver.add(1, [2] * 8, max_tokens=4)
    driver.step()
    driver.step()
    assert (young.num_preemptions, young.num_recomputed_tokens) == (1, 0)
    driver.manager.reset_prefix_cache()
    driver.scheduler.max_num_batched_tokens = 4
    driver.begin()
    driver.scheduler.rollback(driver.schedule)
    driver.run()
    assert (young.num_preemptions, young.num_recomputed_tokens) == (1, 8)


@pytest.mark.parametrize("fails", [False, True])
def test_recomputed_tokens_of_steps_launched_ahead(fails: bool) -> None:
    """The same, each chunk of four launched while the one before it runs; one failure undoes two of them."""
    driver = Driver(block_size=8, num_blocks=3, budget=16)
    old = driver.add(0, [1] * 8, max_tokens=2)
    young = driver.add(1, [2] * 8, max_tokens=4)
    driver.step()
    driver.step()
    assert old.is_finished
    driver.manager.reset_prefix_cache()
    driver.scheduler.max_num_batched_tokens = 4
    driver.begin()
    step = StepInFlight(driver.schedule, [young.scheduled_slice()])
    for start in (4, 8):
        following = schedule_ahead(driver.scheduler, step)
        assert following is not None
        slices = slices_ahead(following, step)
        assert (slices[0].start, len(driver.manager.hash_to_block_id)) == (start, start // 8)
        if fails and start == 8:
            undo(driver.scheduler, step, following)
            assert (young.block_table, young.num_recomputed_tokens) == ([], 4)
            assert not driver.manager.hash_to_block_id, "nobody knows whether the block was written"
            return
        schedule, token_ids = step.to_book([None])
        driver.scheduler.postprocess(schedule.seqs, token_ids, schedule.is_prefill)
        step = StepInFlight(following, slices)
    assert young.num_recomputed_tokens == 8


def test_preempted_requests_return_in_their_old_order() -> None:
    driver = Driver(block_size=1, num_blocks=6)
    for seq_id in range(3):
        driver.add(seq_id, [seq_id, 9], max_tokens=4)
    driver.add(3, [9] * 5, max_tokens=1)
    driver.step()
    driver.step()
    assert [seq.seq_id for seq in driver.scheduler.waiting] == [2, 3]
    driver.step()
    assert [seq.seq_id for seq in driver.scheduler.waiting] == [1, 2, 3]


def test_a_request_larger_than_the_pool_is_refused_and_others_finish() -> None:
    driver = Driver(block_size=4, num_blocks=2)
    driver.add(0, [1, 2], max_tokens=3)
    with pytest.raises(RequestError, match=r"prompt of 9 tokens .*needs up to 3 KV blocks of 4 tokens .*pool has 2"):
        driver.add(1, [0] * 9, max_tokens=1)
    assert list(driver.scheduler.sequences) == [0]
    driver.run()


def test_a_request_that_would_corrupt_the_queue_is_refused() -> None:
    driver = Driver(block_size=4)
    driver.add(0, [1], max_tokens=2)
    with pytest.raises(RequestError, match="request 0 is unfinished already"):
        driver.add(0, [2], max_tokens=2)
    with pytest.raises(RequestError, match="request 1 has blocks of 256 tokens, the pool of 4"):
        driver.scheduler.add(Sequence(1, [2], SamplingParams(max_tokens=2)))
    with pytest.raises(RequestError, match="prompt of 0 tokens"):
        driver.add(2, [], max_tokens=2)
    driver.run()
    driver.add(0, [1], max_tokens=1)


def test_the_longest_request_that_fits_is_accepted_and_finishes() -> None:
    """The last sampled token is never fed in, so it needs no slot: 5 + 4 tokens fit in 8 slots."""
    driver = Driver(block_size=4, num_blocks=2)
    seq = driver.add(0, [0] * 5, max_tokens=4)
    driver.run()
    assert seq.num_completion_tokens == 4
    with pytest.raises(RequestError):
        driver.add(1, [0] * 5, max_tokens=5)


def test_a_prompt_without_room_for_an_answer_is_refused_with_both_numbers() -> None:
    driver = Driver(max_model_len=10)
    driver.add(0, [0] * 9, max_tokens=100)
    with pytest.raises(RequestError, match=r"prompt of 10 tokens leaves no room .* max_model_len 10: shorten it"):
        driver.add(1, [0] * 10, max_tokens=1)
    driver.run()


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "completion", "reason"),
    [
        ({"max_tokens": 3}, [7, 7, 7], FinishReason.LENGTH),
        ({"max_tokens": 1}, [7], FinishReason.LENGTH),
        ({"max_tokens": 9, "stop_token_ids": (7,)}, [7], FinishReason.STOP),
        ({"max_tokens": 1, "stop_token_ids": (7,)}, [7], FinishReason.STOP),
    ],
)
def test_a_request_ends_with_its_last_token_kept(params, completion, reason) -> None:
    driver = Driver()
    seq = driver.add(0, [1, 2], **params)
    driver.run()
    assert (seq.completion_token_ids, seq.finish_reason) == (completion, reason)
    assert driver.manager.num_free_blocks == driver.manager.num_blocks


def test_end_of_sequence_stops_unless_it_is_ignored() -> None:
    driver = Driver(eos=(7, 8))
    stops = driver.add(0, [1], max_tokens=3)
    ignores = driver.add(1, [1], max_tokens=3, ignore_eos=True)
    driver.run()
    assert (stops.completion_token_ids, ignores.completion_token_ids) == ([7], [7, 7, 7])


def test_max_model_len_ends_a_request() -> None:
    driver = Driver(max_model_len=5)
    seq = driver.add(0, [1, 2, 3], max_tokens=9)
    driver.run()
    assert (seq.num_tokens, seq.finish_reason) == (5, FinishReason.LENGTH)


# --- cancelling and failing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["waiting", "chunked", "running", "prefill in flight", "decode in flight"])
def test_cancelling_works_in_any_state_and_only_once(moment: str) -> None:
    driver = Driver(block_size=2, budget=3)
    seq = driver.add(0, [1, 2, 3, 4], max_tokens=5)
    other = driver.add(1, [5], max_tokens=2)
    steps = {"waiting": 0, "chunked": 1, "running": 2, "prefill in flight": 1, "decode in flight": 2}[moment]
    for _ in range(steps):
        driver.step()
    if "flight" in moment:
        driver.begin()
    assert driver.scheduler.abort(0)
    tokens = list(seq.token_ids)
    assert not driver.scheduler.abort(0)
    if "flight" in moment:
        driver.scheduler.postprocess(driver.schedule.seqs, [7] * len(driver.schedule.seqs), driver.schedule.is_prefill)
    driver.scheduler.check_integrity()
    driver.run()
    assert (seq.finish_reason, seq.token_ids, seq.block_table) == (FinishReason.ABORT, tokens, [])
    assert other.completion_token_ids == [7, 7]
    assert driver.manager.num_free_blocks == driver.manager.num_blocks


def test_cancelling_after_the_last_token_frees_nothing_twice() -> None:
    driver = Driver(block_size=2)
    shared = driver.add(0, [1, 2, 3], max_tokens=5)
    driver.step()
    last = driver.add(1, [1, 2, 4], max_tokens=1)
    driver.step()
    assert last.finish_reason is FinishReason.LENGTH
    assert not driver.scheduler.abort(1)
    assert driver.manager.blocks[shared.block_table[0]].ref_count == 1
    driver.scheduler.check_integrity()


def test_an_unknown_request_cannot_be_cancelled() -> None:
    assert not Driver().scheduler.abort(5)


def test_a_failed_prefill_goes_back_in_order_and_publishes_nothing() -> None:
    driver = Driver(block_size=2, budget=6)
    seqs = [driver.add(i, [i, i, i, i], max_tokens=2) for i in range(3)]
    assert driver.begin() == [0, 1]
    driver.scheduler.rollback(driver.schedule)
    driver.scheduler.check_integrity()
    assert list(driver.scheduler.waiting) == seqs
    assert not driver.scheduler.running
    assert driver.manager.num_used_blocks == 0
    assert driver.hits([0, 0, 0, 0]) == 0
    assert driver.step() == [0, 1]
    driver.run()


def test_a_failed_chunk_starts_again_from_what_was_published() -> None:
    driver = Driver(block_size=2, budget=3)
    seq = driver.add(0, [1, 2, 3, 4, 5, 6, 7], max_tokens=1)
    driver.step()
    driver.begin()
    driver.scheduler.rollback(driver.schedule)
    driver.begin()
    assert (seq.num_prefix_tokens, seq.num_scheduled_tokens) == (2, 3)
    driver.end()
    driver.run()


def test_a_failed_decode_is_tried_again_with_the_same_blocks() -> None:
    driver = Driver(block_size=2)
    seq = driver.add(0, [1, 2], max_tokens=3)
    driver.step()
    driver.begin()
    table = list(seq.block_table)
    driver.scheduler.rollback(driver.schedule)
    assert (seq.num_scheduled_tokens, seq.num_cached_tokens) == (0, 2)
    assert driver.step() == [0]
    assert seq.block_table == table
    assert seq.completion_token_ids == [7, 7]


def test_a_request_cancelled_in_a_failing_step_stays_away() -> None:
    driver = Driver()
    driver.add(0, [1], max_tokens=2)
    driver.add(1, [2], max_tokens=2)
    driver.begin()
    driver.scheduler.abort(0)
    driver.scheduler.rollback(driver.schedule)
    driver.scheduler.check_integrity()
    assert driver.step() == [1]


# --- reasons and views -----------------------------------------------------------------------------------------------


def test_each_decision_says_why_with_its_numbers() -> None:
    driver = Driver(block_size=2, num_blocks=4, max_num_seqs=2, budget=4)
    driver.add(0, [1, 2, 3, 4, 5], max_tokens=3)
    driver.step()
    assert driver.reasons == [
        "request 0 admitted: 4 of 5 tokens to compute, 0 found in the prefix cache, 3 blocks held"
    ]
    driver.add(1, [6, 7, 8], max_tokens=2)
    driver.begin()
    assert driver.reasons == [
        "request 0 continues its prefill: 1 of 1 remaining token",
        "request 1 not admitted: needs 2 blocks, 1 free",
    ]
    driver.end()
    driver.begin()
    assert driver.reasons == [
        "request 1 not admitted: needs 2 blocks, 1 free",
        "1 running request decodes one token each: the request at the head of the queue must wait",
    ]
    driver.end()
    driver.step()
    assert driver.reasons[-1] == "request 0 finished (length) after 3 completion tokens"
    driver.scheduler.abort(1)
    assert driver.reasons[-1] == "request 1 cancelled while waiting"


def test_hits_limits_and_preemptions_are_reasons_too() -> None:
    driver = Driver(block_size=2, num_blocks=4, max_num_seqs=2)
    driver.add(0, [1, 2], max_tokens=5)
    driver.add(1, [1, 2], max_tokens=4)
    driver.add(2, [1, 2, 3, 4, 5], max_tokens=1)
    driver.step()
    driver.begin()
    assert driver.reasons[0] == "request 2 not admitted: 2 requests run and max_num_seqs is 2"
    driver.end()
    driver.step()
    driver.begin()
    assert driver.reasons[1] == (
        "request 1 preempted: request 0 needs a block and 0 are free; it gives up its 2 blocks, and its 5 tokens wait "
        "at the head of the queue"
    )
    driver.end()
    driver.begin()
    assert driver.reasons[0] == (
        "request 1 admitted: 1 of 1 token to compute, 4 found in the prefix cache, 3 blocks held"
    )


def test_a_lack_of_blocks_names_the_hits_apart() -> None:
    driver = Driver(block_size=2, num_blocks=4)
    driver.add(0, [1, 2, 3], max_tokens=2)
    driver.step()
    driver.add(1, [1, 2, 9, 9, 9, 9, 9], max_tokens=1)
    driver.begin()
    assert driver.reasons[0] == ("request 1 not admitted: needs 3 blocks, 2 free (1 more come from the prefix cache)")


def test_decisions_are_those_of_the_current_step() -> None:
    driver = Driver()
    driver.add(0, [1], max_tokens=2)
    driver.step()
    assert [d.kind for d in driver.scheduler.decisions] == [DecisionKind.ADMIT]
    driver.step()
    assert [d.kind for d in driver.scheduler.decisions] == [DecisionKind.DECODE, DecisionKind.FINISH]


def test_snapshot_is_the_live_state_in_plain_values() -> None:
    driver = Driver(max_num_seqs=1)
    driver.add(3, [1, 2], max_tokens=3)
    driver.add(4, [5], max_tokens=3)
    driver.begin()
    shot = driver.scheduler.snapshot()
    assert (shot["waiting"], shot["running"]) == ([4], [3])
    assert shot["sequences"] == {s.seq_id: s.snapshot() for s in driver.scheduler.sequences.values()}
    assert [d["reason"] for d in shot["decisions"]] == driver.reasons
    assert [d["kind"] for d in shot["decisions"]] == ["admit", "defer"]
    driver.end()
    driver.scheduler.abort(4)
    assert shot["waiting"] == [4], "a snapshot does not change with the scheduler"


def test_the_integrity_check_notices_a_lost_request_and_a_broken_limit() -> None:
    driver = Driver()
    driver.add(0, [1], max_tokens=2)
    driver.add(1, [1], max_tokens=2)
    driver.step()
    driver.scheduler.max_num_seqs = 1
    with pytest.raises(AssertionError, match="2 requests hold blocks, limit 1"):
        driver.scheduler.check_integrity()
    driver.scheduler.running.pop()
    with pytest.raises(AssertionError, match="in both deques or in none"):
        driver.scheduler.check_integrity()


# --- cost, counted in operations -------------------------------------------------------------------------------------


class WatchedSequence(Sequence):
    """Counts how often its blocks are looked at."""

    looks = 0

    def block(self, index: int) -> list[int]:
        type(self).looks += 1
        return super().block(index)


def test_a_step_looks_at_no_waiting_request_but_the_head() -> None:
    driver = Driver(block_size=2, num_blocks=30, max_num_seqs=8)
    driver.add(0, [1] * 50, max_tokens=9)
    driver.step()
    driver.add(1, [2] * 20, max_tokens=2)  # the head: does not fit
    for seq_id in range(2, 40):
        driver.scheduler.add(WatchedSequence(seq_id, [3] * 20, SamplingParams(max_tokens=2), block_size=2))
    WatchedSequence.looks = 0
    for _ in range(5):
        assert driver.step() == [0]
    assert WatchedSequence.looks == 0


def test_a_decode_step_publishes_only_blocks_that_it_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[int] = []
    original = BlockManager._publish_block

    def counting(self, seq, index, parent_id):
        published.append(index)
        return original(self, seq, index, parent_id)

    monkeypatch.setattr(BlockManager, "_publish_block", counting)
    driver = Driver(block_size=4, num_blocks=16)
    driver.add(0, [1] * 6, max_tokens=12)
    driver.run()
    assert published == [0, 1, 2, 3], "17 tokens were fed in: each of four full blocks once"


def test_reasons_name_the_request_they_are_about() -> None:
    driver = Driver(block_size=1, num_blocks=4, budget=2)
    for seq_id in range(3):
        driver.add(seq_id, [seq_id, 5], max_tokens=3)
    for _ in range(40):
        if driver.scheduler.is_finished():
            break
        driver.step()
        for decision in driver.scheduler.decisions:
            named = re.search(r"request (\d+)", decision.reason)
            assert decision.seq_id is None or (named and int(named[1]) == decision.seq_id)
    assert driver.scheduler.is_finished()


def test_a_reason_counts_in_the_singular_only_for_one() -> None:
    def words(count: int) -> str:
        return Decision(DecisionKind.DECODE, None, {"count": count, "why": "nothing is waiting"}).reason

    assert words(1) == "1 running request decodes one token each: nothing is waiting"
    assert words(11) == "11 running requests decode one token each: nothing is waiting"
    finished = {"why": "length", "tokens": 1}
    assert Decision(DecisionKind.FINISH, 7, finished).reason == "request 7 finished (length) after 1 completion token"
