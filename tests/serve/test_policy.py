"""The starvation bound and freedom from dead-lock, on the scheduler alone: no model, thousands of steps a second."""

import random
from collections.abc import Callable

import pytest

from nanovllm import SamplingParams
from nanovllm.errors import ConfigError
from nanovllm.scheduler import BlockManager, Schedule, Scheduler, Sequence
from nanovllm.serve.policy import BoundedPrefill

Choose = Callable[[Scheduler], Schedule]
BLOCK = 4


def make_scheduler(num_blocks: int, max_num_seqs: int = 4, budget: int = 16) -> Scheduler:
    return Scheduler(BlockManager(num_blocks, BLOCK), max_num_seqs, budget, max_model_len=256)


def add(scheduler: Scheduler, seq_id: int, num_prompt_tokens: int, max_tokens: int, rng: random.Random) -> Sequence:
    prompt = [rng.randrange(1000) for _ in range(num_prompt_tokens)]
    seq = Sequence(seq_id, prompt, SamplingParams(max_tokens=max_tokens), BLOCK)
    scheduler.add(seq)
    return seq


class Player:
    """Plays steps and notes the longest gap, in steps, between two tokens of a request that kept running."""

    def __init__(self, scheduler: Scheduler, choose: Choose) -> None:
        self.scheduler = scheduler
        self.choose = choose
        self.step_number = 0
        self.longest_gap = 0
        self._last: dict[int, tuple[int, int]] = {}  # request: step of its last token, preemptions by then
        self._held = False

    def step(self) -> Schedule:
        schedule = self.choose(self.scheduler)
        self.step_number += 1
        tokens = [7 if seq.scheduled_slice().needs_token else None for seq in schedule.seqs]
        self.scheduler.check_integrity()
        self.scheduler.postprocess(schedule.seqs, tokens, schedule.is_prefill)
        self.scheduler.check_integrity()
        for seq, token in zip(schedule.seqs, tokens, strict=True):
            if token is not None:
                self._token(seq)
        return schedule

    def _token(self, seq: Sequence) -> None:
        before = self._last.get(seq.seq_id)
        if before is not None and before[1] == seq.num_preemptions:
            self.longest_gap = max(self.longest_gap, self.step_number - before[0])
        self._last[seq.seq_id] = (self.step_number, seq.num_preemptions)


def flood(choose: Choose, steps: int = 400) -> Player:
    """A long-lived request runs while short ones arrive for ever, one before every step."""
    rng = random.Random(0)
    scheduler = make_scheduler(num_blocks=256, max_num_seqs=256)
    player = Player(scheduler, choose)
    add(scheduler, 0, 5, 200, rng)
    for seq_id in range(1, steps + 1):
        add(scheduler, seq_id, 6, 1, rng)
        player.step()
    player.step_number += 1
    if 0 in scheduler.sequences:  # it still waits for its next token: that gap counts too
        player._token(scheduler.sequences[0])
    return player


@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_gap_stays_within_the_bound_under_permanent_arrivals(most: int) -> None:
    policy = BoundedPrefill(most)
    assert flood(policy).longest_gap == policy.gap_bound == most + 1
    assert policy.held_back["max_prefill_steps"] > 10


def test_the_plain_policy_starves_a_running_request() -> None:
    assert flood(Scheduler.schedule, steps=400).longest_gap >= 400


def test_a_long_prompt_in_chunks_is_interleaved_with_decoding() -> None:
    rng = random.Random(1)
    scheduler = make_scheduler(num_blocks=128)
    player = Player(scheduler, BoundedPrefill(1))
    add(scheduler, 0, 3, 100, rng)
    player.step()
    add(scheduler, 1, 80, 2, rng)  # five chunks of 16
    kinds = [player.step().is_prefill for _ in range(10)]
    assert kinds == [True, False] * 5


def test_each_holding_back_is_noted_with_its_reason() -> None:
    rng = random.Random(2)
    scheduler = make_scheduler(num_blocks=128)
    player = Player(scheduler, BoundedPrefill(1))
    add(scheduler, 0, 3, 100, rng)
    player.step()
    add(scheduler, 1, 80, 2, rng)
    player.step()
    player.step()
    assert scheduler.decisions[0].reason == (
        "request 1 not admitted: held back for one step, because 1 prefill step ran since the last decode step and "
        "max_prefill_steps is 1"
    )


def test_max_prefill_tokens_bounds_a_step_only_while_requests_run() -> None:
    rng = random.Random(3)
    scheduler = make_scheduler(num_blocks=128, budget=32)
    player = Player(scheduler, BoundedPrefill(2, max_prefill_tokens=8))
    add(scheduler, 0, 30, 100, rng)
    assert sum(s.num_tokens for s in player.step().seqs) == 31  # 30 prompt tokens at once, one sampled
    add(scheduler, 1, 30, 2, rng)
    schedule = player.choose(scheduler)
    assert [s.num_scheduled_tokens for s in schedule.seqs] == [8]
    assert scheduler.max_num_batched_tokens == 32


def test_a_half_computed_prompt_gives_up_its_blocks_before_a_running_request_is_preempted() -> None:
    rng = random.Random(4)
    scheduler = make_scheduler(num_blocks=8, budget=4)  # 32 tokens in all
    policy = BoundedPrefill(1)
    player = Player(scheduler, policy)
    first = add(scheduler, 0, 8, 24, rng)
    for _ in range(3):  # two chunks, then a decode step takes its third block
        player.step()
    second = add(scheduler, 1, 20, 4, rng)  # five blocks: none is free now
    player.step()
    assert second.block_table
    assert scheduler.block_manager.num_free_blocks == 0
    for _ in range(20):
        player.step()
        if not second.block_table:
            break
    assert policy.held_back["half-computed prompt gave up its blocks"] == 1
    assert "gives up 5 blocks" in scheduler.decisions[0].reason
    assert (first.num_preemptions, second.num_preemptions) == (0, 0)
    assert list(scheduler.waiting) == [second]
    while not scheduler.is_finished():
        assert player.step().seqs
    assert player.longest_gap <= 2


@pytest.mark.parametrize("seed", range(60))
def test_random_traffic_ends_and_stays_within_the_bound(seed: int) -> None:
    """Tiny pools, long prompts, cancellations: no step is empty while work is left, and everything ends."""
    rng = random.Random(seed)
    num_blocks = rng.randint(6, 14)
    scheduler = make_scheduler(num_blocks, max_num_seqs=rng.randint(1, 5), budget=rng.choice([1, 3, 5, 8, 16]))
    policy = BoundedPrefill(rng.randint(1, 3), rng.choice([None, 1, 2, 7]))
    player = Player(scheduler, policy)
    ends = dict.fromkeys(range(40), 0)
    to_come = list(ends)
    for _ in range(20_000):
        if to_come and rng.random() < 0.3:
            length = rng.randint(1, 16)
            add(scheduler, to_come.pop(0), length, rng.randint(1, num_blocks * BLOCK - length), rng)
        if scheduler.sequences and rng.random() < 0.02:
            scheduler.abort(rng.choice(list(scheduler.sequences)))
        busy = not scheduler.is_finished()
        assert bool(player.step().seqs) == busy, f"nothing runs although work is left: {scheduler.snapshot()}"
        holders = [s for s in scheduler.waiting if s.block_table]
        assert holders == [] or holders == [scheduler.waiting[0]]
        if not to_come and scheduler.is_finished():
            break
    assert scheduler.is_finished()
    assert scheduler.block_manager.num_used_blocks == 0
    assert player.longest_gap <= policy.gap_bound


@pytest.mark.parametrize(("value", "named"), [(0, "at least 1"), ("2", "integer"), (True, "integer")])
def test_wrong_limits_are_refused(value: object, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        BoundedPrefill(value)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_prefill_tokens"):
        BoundedPrefill(1, value)  # type: ignore[arg-type]
