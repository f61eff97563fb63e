"""Traffic for an admission policy: arrivals that never end, long prompts, tight memory; on the slot oracle, no model.

Every function plays steps with the policy and returns plain values, which the checks of 4.5 compare. The tokens come
from the oracle's fake runner, which reads every slot through the block tables: a request whose blocks were given away
under it answers wrongly.
"""

import random
from typing import Any

from nanovllm.course.oracle import FakeRunner, Request, Trace, reference
from nanovllm.sampling_params import SamplingParams
from nanovllm.scheduler import BlockManager, DecisionKind, Schedule, Scheduler, Sequence
from nanovllm.serve.policy import BoundedPrefill

BLOCK_SIZE, MAX_MODEL_LEN, VOCABULARY = 4, 512, 1000
MOST_STEPS = 1500  # of random traffic: what has not ended by then hangs


class Player:
    """Plays one engine's steps and keeps count.

    kinds: "P" or "D" for each step. longest_gap: steps from one token of a running request to its next one, at most.
    ends: how many requests have ended. wrong: how many of those that were not cancelled answered wrongly.
    """

    def __init__(self, policy: BoundedPrefill, num_blocks: int, max_num_seqs: int = 64, budget: int = 16) -> None:
        self.policy = policy
        self.scheduler = Scheduler(BlockManager(num_blocks, BLOCK_SIZE), max_num_seqs, budget, MAX_MODEL_LEN)
        self.trace = Trace(BLOCK_SIZE, num_blocks, (), max_model_len=MAX_MODEL_LEN, vocab_size=VOCABULARY)
        self.runner = FakeRunner(num_blocks, BLOCK_SIZE, VOCABULARY)
        self.kinds = ""
        self.longest_gap = 0
        self.ends = self.wrong = 0
        self._last: dict[int, tuple[int, int]] = {}  # request: step of its newest token, its preemptions by then

    def add(self, seq_id: int, prompt: list[int], max_tokens: int) -> Sequence:
        """A new request."""
        seq = Sequence(seq_id, prompt, SamplingParams(max_tokens=max_tokens), BLOCK_SIZE)
        self.scheduler.add(seq)
        return seq

    def step(self) -> Schedule:
        """One step, its tokens from the fake runner."""
        schedule = self.policy(self.scheduler)
        self.scheduler.check_integrity()
        tokens = self.runner.run([seq.scheduled_slice() for seq in schedule.seqs])
        self.kinds += "P" if schedule.is_prefill else "D"
        self.scheduler.postprocess(schedule.seqs, tokens, schedule.is_prefill)
        self.scheduler.check_integrity()
        for seq, token in zip(schedule.seqs, tokens, strict=True):
            if seq.is_finished:
                self.ends += 1
                self.wrong += not self._is_right(seq)
            if token is not None:
                self._note_gap(seq)
                self._last[seq.seq_id] = (len(self.kinds), seq.num_preemptions)
        return schedule

    def close(self) -> None:
        """Who still waits for its next token counts too."""
        self.kinds += "."
        for seq in self.scheduler.running:
            self._note_gap(seq)

    def _is_right(self, seq: Sequence) -> bool:
        """Whether a finished request answered as it does alone."""
        prompt = tuple(seq.token_ids[: seq.num_prompt_tokens])
        wanted = reference(self.trace, Request(prompt, seq.sampling_params.max_tokens))
        return seq.token_ids == wanted.token_ids

    def _note_gap(self, seq: Sequence) -> None:
        step, preemptions = self._last.get(seq.seq_id, (0, -1))
        if preemptions == seq.num_preemptions:
            self.longest_gap = max(self.longest_gap, len(self.kinds) - step)


def pattern(max_prefill_steps: int, steps: int) -> str:
    """One request runs and somebody arrives before every step: the kinds of the steps, "P" and "D"."""
    player = Player(BoundedPrefill(max_prefill_steps), num_blocks=256)
    player.add(0, [1, 2, 3], 200)
    player.step()
    for number in range(1, steps):
        player.add(number, [number] * 6, 1)
        player.step()
    return player.kinds


def flood(max_prefill_steps: int, steps: int = 200) -> dict[str, Any]:
    """The same for long: the longest gap, and how many of the arrivals were answered (one token each)."""
    player = Player(BoundedPrefill(max_prefill_steps), num_blocks=1024, max_num_seqs=256)
    player.add(0, [1, 2, 3, 4, 5], 400)
    for number in range(1, steps + 1):
        player.add(number, [number] * 6, 1)
        player.step()
    player.close()
    return {"longest gap": player.longest_gap, "answered": player.ends, "decode steps": player.kinds.count("D")}


def alone(max_prefill_steps: int) -> str:
    """Prompts in many chunks while nothing runs: the kinds of the steps until all is done."""
    player = Player(BoundedPrefill(max_prefill_steps), num_blocks=64, budget=4)
    player.add(0, list(range(12)), 2)
    player.add(1, list(range(20, 26)), 2)
    while not player.scheduler.is_finished() and len(player.kinds) < 40:
        player.step()
    return player.kinds


def half_computed(free: int) -> dict[str, Any]:
    """A half-computed prompt of 5 blocks and a running request at a block edge, with `free` blocks left over.

    What becomes of both in the next decode step that holds the prompt back.
    """
    player = Player(BoundedPrefill(1), num_blocks=7 + free, budget=4)
    first = player.add(0, [1, 2, 3, 4, 5, 6, 7, 8], 20)
    player.step()
    player.step()  # 8 tokens computed and one sampled: its two blocks are full
    second = player.add(1, list(range(20, 40)), 4)
    player.step()  # a chunk: five blocks are its own now
    player.step()  # it is held back, and the first request needs a third block
    noted = [decision for decision in player.scheduler.decisions if decision.kind is DecisionKind.DEFER]
    return {
        "blocks of the prompt": len(second.block_table),
        "kinds": player.kinds,
        "preemptions": [first.num_preemptions, second.num_preemptions],
        "prompts noted to give up": len(noted) - 1,  # one note says that the prompt was held back
        "tokens of the running request": first.num_tokens,
    }


def random_traffic(seed: int) -> dict[str, Any]:
    """Tight pools, long prompts, cancellations: whether all ended, idle steps meanwhile, and gaps beyond the bound."""
    rng = random.Random(seed)
    num_blocks = rng.randint(6, 12)
    policy = BoundedPrefill(rng.randint(1, 3), rng.choice([None, None, 2, 7]))
    player = Player(policy, num_blocks, rng.randint(1, 5), rng.choice([1, 3, 5, 8, 16]))
    to_come, idle = list(range(20)), 0
    while len(player.kinds) < MOST_STEPS and (to_come or not player.scheduler.is_finished()):
        if to_come and rng.random() < 0.3:
            length = rng.randint(1, 16)
            prompt = [rng.randrange(VOCABULARY) for _ in range(length)]
            player.add(to_come.pop(0), prompt, rng.randint(1, num_blocks * BLOCK_SIZE - length))
        if player.scheduler.sequences and rng.random() < 0.02:
            player.scheduler.abort(rng.choice(list(player.scheduler.sequences)))
        busy = not player.scheduler.is_finished()
        idle += busy and not player.step().seqs
        if idle > 20:
            break  # nothing moves any more
    return {
        "beyond the bound": max(0, player.longest_gap - policy.gap_bound),
        "ended": player.scheduler.is_finished(),
        "idle steps": idle,
        "wrong answers": player.wrong,
    }
