"""The starvation bound in the overlapped loop: steps are chosen before the last tokens are known, and it holds."""

import random
from pathlib import Path
from typing import Any

import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.engine.outputs import StepOutput
from nanovllm.engine.overlap import OverlappedLoop
from nanovllm.scheduler import ScheduledSlice
from nanovllm.serve.policy import BoundedPrefill

ROOMY = {"num_kvcache_blocks": 300, "max_num_seqs": 16}
TIGHT = {"num_kvcache_blocks": 14, "max_num_seqs": 4}  # 56 tokens: prompts wait for blocks, requests are preempted


class Watch:
    """Notes how far apart, in steps, the tokens of a request that kept running were, and what was launched ahead."""

    def __init__(self, llm: LLM) -> None:
        self.llm, self.steps, self.longest_gap, self.in_flight = llm, 0, 0, 0
        self.beside_others = 0  # tokens of the largest prefill while other requests ran
        self.ahead: list[bool] = []
        self._last: dict[int, tuple[int, int]] = {}  # request: step of its last token, preemptions by then
        self._book, self._launch = llm.book, llm.ranks.launch
        llm.book, llm.ranks.launch = self.book, self.launch  # type: ignore[method-assign]

    def launch(self, slices: list[ScheduledSlice], is_prefill: bool, *args: Any) -> Any:
        self.in_flight += 1
        self.ahead.append(self.in_flight > 1)
        ids = {s.seq_id for s in slices}
        if is_prefill and any(seq.seq_id not in ids for seq in self.llm.scheduler.running):
            self.beside_others = max(self.beside_others, sum(len(s.token_ids) for s in slices))
        return self._launch(slices, is_prefill, *args)

    def book(self, *args: Any) -> StepOutput:
        self.in_flight -= 1
        output = self._book(*args)
        self.steps += 1
        for request_id, _ in output.new_tokens:
            seq = self.llm.scheduler.sequences.get(request_id)
            if seq is None:
                continue  # finished
            step, preemptions = self._last.get(request_id, (self.steps, seq.num_preemptions))
            if preemptions == seq.num_preemptions:
                self.longest_gap = max(self.longest_gap, self.steps - step)
            self._last[request_id] = self.steps, seq.num_preemptions
        return output


def play(
    tiny: Path, overlap: bool, policy: BoundedPrefill | None, limits: dict[str, int], seed: int
) -> tuple[dict[int, list[int]], Watch]:
    """Forty requests that arrive while others run, prompts in chunks, some cancelled; what the others answered."""
    rng = random.Random(seed)
    shared = [rng.randint(2, 60) for _ in range(9)]
    options = {"kvcache_block_size": 4, "max_num_batched_tokens": 7, "max_model_len": 56, "skip_tokenizer_init": True}
    answers: dict[int, list[int]] = {}
    with LLM(str(tiny), overlap=overlap, **{**options, **limits}) as llm:
        llm.policy = policy
        watch, loop, ids = Watch(llm), OverlappedLoop(llm), []
        while len(ids) < 40 or not llm.is_finished():
            if len(ids) < 40:
                prompt = shared[: rng.randint(0, 9)] + [rng.randint(2, 60) for _ in range(rng.randint(1, 20))]
                params = SamplingParams(temperature=len(ids) % 2, seed=len(ids), max_tokens=rng.randint(1, 12))
                ids.append(llm.add_request(prompt, params))
            if len(ids) % 9 == 5:
                llm.abort(ids[-3])
            answers |= {ids.index(o.request_id): o.token_ids for o in loop.step().finished}
            llm.scheduler.check_integrity()
        loop.cancel()
        llm.scheduler.check_integrity()
        assert llm.scheduler.block_manager.num_used_blocks == 0
    return {i: a for i, a in answers.items() if (i + 3) % 9 != 5}, watch


@pytest.mark.parametrize("limits", [ROOMY, TIGHT], ids=["roomy", "tight"])
@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_same_tokens_and_the_bound_holds(tiny: Path, limits: dict[str, int], most: int, seed: int) -> None:
    policies = [BoundedPrefill(most, max_prefill_tokens=5) for _ in range(2)]
    plain, _ = play(tiny, False, policies[0], limits, seed)
    overlapped, watch = play(tiny, True, policies[1], limits, seed)
    assert len(plain) > 25
    assert overlapped == plain
    assert watch.longest_gap <= policies[1].gap_bound
    assert watch.beside_others == 5
    assert policies[1].held_back["max_prefill_steps"] > 0
    assert sum(watch.ahead) > (0.9 if limits is ROOMY else 0.3) * len(watch.ahead)


def test_without_the_policy_the_gaps_are_longer(tiny: Path) -> None:
    """So the test above can fail."""
    _, watch = play(tiny, True, None, ROOMY, 0)
    assert watch.longest_gap > 3


def test_a_policy_that_cannot_look_ahead_is_asked_when_the_tokens_are_read(tiny: Path) -> None:
    asked = []

    def policy(scheduler: Any) -> Any:
        asked.append(len(scheduler.waiting))
        return scheduler.schedule()

    plain, _ = play(tiny, False, None, ROOMY, 1)
    overlapped, watch = play(tiny, True, policy, ROOMY, 1)  # type: ignore[arg-type]
    assert overlapped == plain
    assert any(asked)
    assert any(watch.ahead), "decode steps while nothing waits"
