"""4.5 An admission policy that bounds starvation."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant

_TRAFFIC = "from nanovllm.course.part4 import traffic\n"
_PATTERN = _TRAFFIC + "result = [traffic.pattern(max_prefill_steps=m, steps=8) for m in (2, 1)]"
_ALONE = _TRAFFIC + "result = traffic.alone(max_prefill_steps=1)  # nothing runs until the last chunk"
_FLOOD = _TRAFFIC + "result = [traffic.flood(max_prefill_steps=m) for m in (1, 2, 5)]"
_TIGHT = _TRAFFIC + "result = traffic.half_computed(free=0)"
_ROOMY = _TRAFFIC + "result = [traffic.half_computed(free=n) for n in (1, 2)]"
_RANDOM = _TRAFFIC + "result = traffic.random_traffic(number)"


def _flooded(most: int) -> dict[str, Any]:
    return {"answered": 200, "decode steps": 199 // (most + 1), "longest gap": most + 1}


def _after_a_decode(blocks: int, noted: int) -> dict[str, Any]:
    return {
        "blocks of the prompt": blocks,
        "kinds": "PPPD",
        "preemptions": [0, 0],
        "prompts noted to give up": noted,
        "tokens of the running request": 10,
    }


def _number(rng: random.Random, number: int) -> dict[str, Any]:
    return {"number": rng.randrange(10**6)}


def _all_well(number: int) -> dict[str, Any]:
    return {"beyond the bound": 0, "ended": True, "idle steps": 0, "wrong answers": 0}


_LIMIT = "self.prefill_steps >= self.max_prefill_steps"
_DIRECT = """
def next_batch(policy, scheduler):
    ran = len(scheduler.running)
    full = policy.prefill_steps >= policy.max_prefill_steps
    schedule = policy._decode(scheduler) if ran and scheduler.waiting and full else policy._plain(scheduler, ran > 0)
    policy.prefill_steps = policy.prefill_steps + 1 if schedule.is_prefill and ran else 0
    return schedule
"""
_ALTERNATES = """
def next_batch(policy, scheduler):
    if scheduler.running and scheduler.waiting and policy.prefill_steps:
        policy.prefill_steps = 0
        return policy._decode(scheduler)
    others_run = bool(scheduler.running)
    policy.prefill_steps = 1
    return policy._plain(scheduler, others_run)
"""
_DECODES_FIRST = """
def next_batch(policy, scheduler):
    if scheduler.running and scheduler.waiting:
        return policy._decode(scheduler)
    return policy._plain(scheduler, bool(scheduler.running))
"""
_BY_BLOCKS = """
def give_up_half_computed(scheduler):
    head, manager = scheduler.waiting[0], scheduler.block_manager
    at_an_edge = [s for s in scheduler.running if manager.blocks_for(s.num_tokens) > len(s.block_table)]
    if head.block_table and len(at_an_edge) > len(manager.free_block_ids):
        held = len(head.block_table)
        manager.deallocate(head)
        return Decision(DecisionKind.DEFER, head.seq_id, {"why": f"gives up {held} blocks"})
    return None
"""
_PREEMPTS = """
def give_up_half_computed(scheduler):
    head, manager = scheduler.waiting[0], scheduler.block_manager
    needed = sum(_needs_block(seq) for seq in scheduler.running)
    if not head.block_table or needed <= manager.num_free_blocks:
        return None
    scheduler._preempt(scheduler.running.pop(), by=head)
    return Decision(DecisionKind.DEFER, head.seq_id, {"why": "gives up a running request"})
"""

EXERCISE = Exercise(
    number="4.5",
    title="An admission policy that bounds starvation",
    file="part4/ex05_admission_policy.py",
    pieces=(("next_batch", seams.NEXT_BATCH), ("give_up_half_computed", seams.GIVE_UP_HALF_COMPUTED)),
    hints=(
        "Play the six steps of the example with m = 2 and write the counter beside each. When may it grow, when does "
        "it become 0, and at which value are the others held back?",
        "Ask whether requests run *before* you choose a batch: a prefill step puts its own into running. A step that "
        "was meant as a prefill can become a decode step; schedule.is_prefill says so. For the trap, compare the "
        "blocks that the step may need with those that are free.",
        "if others_run and waiting and prefill_steps >= m: _decode, else _plain. Not is_prefill: counter 0; else if "
        "others_run: counter + 1. give_up: needed = sum(num_tokens > len(block_table) * block_size over running); None "
        "if the head holds nothing or needed <= free; else deallocate and return the Decision.",
    ),
    groups=(
        Group(
            "the pattern of the steps",
            1,
            "P is a prefill step, D a decode step; one request runs from step 1 on and somebody always waits. Write "
            "your counter below each letter. Which letter is the first that differs?",
            (
                Example(_PATTERN, ["PPPDPPDP", "PPDPDPDP"]),
                Example(
                    _ALONE,
                    "PPPPDPD",
                    (
                        "Nothing runs before the first prompt is done, so nobody can starve: which steps did "
                        "you count then?"
                    ),
                ),
            ),
        ),
        Group(
            "the gap bounded, arrivals still answered",
            2,
            "200 steps with an arrival before each. How long does the running request wait, and do the arrivals get "
            "through? Each decode step too many costs them a step.",
            (Example(_FLOOD, [_flooded(m) for m in (1, 2, 5)]),),
        ),
        Group(
            "half-computed prompts give way, when they must",
            1,
            "The prompt holds 5 blocks and waits; the running request needs one more. With none free, who gives up "
            "what? And with one free?",
            (
                Example(
                    _TIGHT,
                    _after_a_decode(0, 1),
                    (
                        "No block is free, the running request needs one, and the prompt that is held back "
                        "holds five. Who gives up what?"
                    ),
                ),
                Example(
                    _ROOMY,
                    [_after_a_decode(5, 0)] * 2,
                    (
                        "One block is needed, and one or two are free: nothing has to be given up, and the chunk "
                        "computed so far is worth keeping."
                    ),
                ),
            ),
        ),
        Group(
            "random traffic on tight memory",
            2,
            "Everything must end, no step may be empty while work is left, and no gap be longer than the bound. Who "
            "holds blocks that somebody in front of it waits for?",
            numeric=Numeric((("number", 0, 0),), _number, _RANDOM, _all_well, cases=60),
        ),
    ),
    bugs=(
        Variant("holds nobody back", "next_batch", ((_LIMIT, "False"),)),
        Variant("allows one prefill step too many", "next_batch", ((_LIMIT, _LIMIT.replace(">=", ">")),)),
        Variant("never starts the count anew", "next_batch", (("self.decoded()", "pass"),)),
        Variant("counts steps while nothing runs", "next_batch", (("elif others_run:", "else:"),)),
        Variant(
            "asks who runs after the step",
            "next_batch",
            (("elif others_run:", "elif scheduler.running:"),),
        ),
        Variant(
            "counts only until the first decode", "next_batch", (("self.prefill_steps += 1", "self.prefill_steps = 1"),)
        ),
        Variant("alternates whatever the limit is", "next_batch", source=_ALTERNATES),
        Variant("decodes whenever somebody runs", "next_batch", source=_DECODES_FIRST),
        Variant("never gives up a half-computed prompt", "give_up_half_computed", (("or needed <= free", "or True"),)),
        Variant("always gives up a half-computed prompt", "give_up_half_computed", ((" or needed <= free", ""),)),
        Variant("gives up when blocks just suffice", "give_up_half_computed", (("needed <= free", "needed < free"),)),
        Variant("says it and frees nothing", "give_up_half_computed", (("manager.deallocate(head)", "pass"),)),
        Variant("gives up a running request instead", "give_up_half_computed", source=_PREEMPTS),
        Variant(
            "clears the block table and frees nothing",
            "give_up_half_computed",
            (("manager.deallocate(head)", "head.block_table.clear()"),),
        ),
    ),
    harmless=(
        Variant("counts in one line", "next_batch", source=_DIRECT),
        Variant("asks the manager how many blocks a request needs", "give_up_half_computed", source=_BY_BLOCKS),
    ),
)
