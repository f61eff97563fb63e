"""The same prompt gives the same greedy tokens whatever the engine does around it."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import (
    assert_idle,
    assert_same_greedy,
    greedy,
    make_llm,
    random_prompts,
    run_to_end,
    token_ids_of,
)

from nanovllm import LLM, SamplingParams

from .conftest import COMPLETION

Prompts = list[list[int]]


def generate(llm: LLM, prompts: Prompts, max_tokens: int = COMPLETION) -> Prompts:
    """The greedy completions of one batch."""
    return token_ids_of(llm.generate(prompts, greedy(max_tokens), use_tqdm=False))


def test_the_completions_depend_on_their_prompts(expected: Prompts) -> None:
    """The oracle has something to tell apart: no two completions agree, and none repeats one token."""
    assert len({tuple(ids) for ids in expected}) == len(expected)
    assert all(len(set(ids)) > 3 for ids in expected)


def test_batched(llm: LLM, judge: Any, prompts: Prompts, expected: Prompts) -> None:
    assert_same_greedy(judge, prompts, expected, generate(llm, prompts))
    assert_idle(llm)


def test_batched_in_another_order(llm: LLM, judge: Any, prompts: Prompts, expected: Prompts) -> None:
    """Outputs come in the order of the prompts."""
    assert_same_greedy(judge, prompts[::-1], expected[::-1], generate(llm, prompts[::-1]))


@pytest.mark.parametrize("budget", range(1, 65))
def test_chunked(tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, budget: int) -> None:
    """A prefill step takes `budget` tokens at most, so prompts are computed in pieces."""
    with make_llm(tiny, max_num_batched_tokens=budget, skip_tokenizer_init=True) as llm:
        ids = [llm.add_request(p, greedy(COMPLETION)) for p in prompts]
        prefills, got = [], {}
        while not llm.is_finished():
            step = llm.step()
            if step.is_prefill:
                prefills.append(step.num_tokens)
            got.update((o.request_id, o) for o in step.finished)
        assert max(prefills) <= budget
        computed = sum(len(p) - got[i].metrics.num_prefix_tokens for i, p in zip(ids, prompts, strict=True))
        assert sum(prefills) == computed
        assert_same_greedy(judge, prompts, expected, [got[i].token_ids for i in ids])


@pytest.mark.parametrize("budget", [7, 16384])
@pytest.mark.parametrize("block_size", [1, 3, 4, 16, 256])
def test_block_sizes(tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, block_size: int, budget: int) -> None:
    blocks = 9 * -(-60 // block_size)
    limits = {"kvcache_block_size": block_size, "num_kvcache_blocks": blocks, "max_num_batched_tokens": budget}
    with make_llm(tiny, **limits) as llm:
        assert_same_greedy(judge, prompts, expected, generate(llm, prompts))
        assert_idle(llm)


@pytest.mark.parametrize("budget", [1, 5, 16384])
@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_with_a_cached_prefix(
    tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, block_size: int, budget: int
) -> None:
    """The second time every full block of the prompt but the last token's is found, and nothing changes."""
    with make_llm(tiny, kvcache_block_size=block_size, max_num_batched_tokens=budget) as llm:
        generate(llm, prompts)
        again = llm.generate(prompts, greedy(COMPLETION), use_tqdm=False)
        for prompt, output in zip(prompts, again, strict=True):
            assert output.metrics.num_prefix_tokens == (len(prompt) - 1) // block_size * block_size
        assert_same_greedy(judge, prompts, expected, token_ids_of(again))


@pytest.mark.parametrize("block_size", [1, 2, 4, 8])
@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_a_fully_cached_prompt_of_whole_blocks(tiny: Path, judge: Any, block_size: int, num_blocks: int) -> None:
    """At least one token is computed again, since its logits are needed."""
    prompts = random_prompts([block_size * num_blocks], seed=5)
    with make_llm(tiny, kvcache_block_size=block_size) as llm:
        first = generate(llm, prompts)
        again = llm.generate(prompts * 2, greedy(COMPLETION), use_tqdm=False)
        for output in again:
            assert output.metrics.num_prefix_tokens == block_size * (num_blocks - 1)
        assert_same_greedy(judge, prompts * 2, first * 2, token_ids_of(again))


def test_a_conversation_finds_its_own_completion(tiny: Path, judge: Any, llm: LLM) -> None:
    """Blocks filled by decode are found too: the next turn starts with the whole last one."""
    turn = random_prompts([10], seed=6)[0]
    for extra in random_prompts([3, 4, 9], seed=7):
        completion = generate(llm, [turn])[0]
        turn = turn + completion + extra
        output = llm.generate([turn], greedy(COMPLETION), use_tqdm=False)[0]
        assert output.metrics.num_prefix_tokens >= (len(turn) - len(extra) - 1) // 4 * 4 > 0
        with make_llm(tiny) as fresh:
            assert_same_greedy(judge, [turn], generate(fresh, [turn]), [output.token_ids])


@pytest.mark.parametrize("budget", [3, 16384])
@pytest.mark.parametrize(("block_size", "num_blocks"), [(1, 56), (1, 70), (3, 19), (3, 24), (4, 14), (4, 21), (16, 5)])
def test_preempted(
    tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, block_size: int, num_blocks: int, budget: int
) -> None:
    """A pool that cannot hold all: requests lose their blocks and are computed again."""
    limits = {"kvcache_block_size": block_size, "num_kvcache_blocks": num_blocks, "max_num_batched_tokens": budget}
    with make_llm(tiny, **limits) as llm:
        for prompt in prompts:
            llm.add_request(prompt, greedy(COMPLETION))
        outputs = run_to_end(llm)
        assert sum(o.metrics.num_preemptions for o in outputs.values()) > 0
        got = [outputs[i].token_ids for i in range(len(prompts))]
        assert_same_greedy(judge, prompts, expected, got)
        assert_idle(llm)


@pytest.mark.parametrize("num_blocks", [14, 21, 512])
@pytest.mark.parametrize("budget", [3, 16384])
def test_overlapped(tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, num_blocks: int, budget: int) -> None:
    """Launching a decode step before the last one's tokens are read changes no token, seeded ones included."""
    limits = {"num_kvcache_blocks": num_blocks, "max_num_batched_tokens": budget}
    seeded = SamplingParams(temperature=1.0, max_tokens=COMPLETION, ignore_eos=True, seed=3)
    drawn = []
    for overlap in (True, False):
        with make_llm(tiny, overlap=overlap, **limits) as llm:
            assert_same_greedy(judge, prompts, expected, generate(llm, prompts))
            drawn.append(token_ids_of(llm.generate(prompts, seeded, use_tqdm=False)))
            assert_idle(llm)
    assert drawn[0] == drawn[1]


def test_preemption_of_the_only_request_that_grows(tiny: Path, judge: Any) -> None:
    """Two requests, three blocks of 8 (a re-prefill after preemption must not lose the sampled token)."""
    prompts = random_prompts([7, 7], seed=8)
    with make_llm(tiny, kvcache_block_size=8, num_kvcache_blocks=3) as llm:
        for prompt in prompts:
            llm.add_request(prompt, greedy(12))
        outputs = run_to_end(llm)
        assert outputs[1].metrics.num_preemptions == 1
        assert outputs[1].metrics.num_recomputed_tokens > 0
    for i, prompt in enumerate(prompts):
        with make_llm(tiny) as alone:
            assert_same_greedy(judge, [prompt], generate(alone, [prompt], 12), [outputs[i].token_ids])


@pytest.mark.parametrize("abort_after", range(8))
def test_after_an_abort_of_batch_mates(
    tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, abort_after: int
) -> None:
    """Freed blocks go to others while the survivors go on."""
    with make_llm(tiny, num_kvcache_blocks=24, max_num_batched_tokens=20) as llm:
        ids = [llm.add_request(p, greedy(COMPLETION)) for p in prompts]
        got = {}
        for _ in range(abort_after):
            got.update((o.request_id, o.token_ids) for o in llm.step().finished)
        for request_id in ids[::2]:
            llm.abort(request_id)
        got.update((i, o.token_ids) for i, o in run_to_end(llm).items())
        survivors = ids[1::2]
        assert_same_greedy(
            judge, [prompts[i] for i in survivors], [expected[i] for i in survivors], [got[i] for i in survivors]
        )
        assert_idle(llm)


@pytest.mark.parametrize("stop_after", [1, 2, 5, 9])
def test_after_a_generate_that_was_broken_off(
    tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, stop_after: int
) -> None:
    """What an interrupted batch left in the pool and in the prefix cache does no harm."""
    with make_llm(tiny, max_num_batched_tokens=30) as llm:
        steps = 0

        def stop(event: str) -> None:
            nonlocal steps
            steps += event == "begin"
            if steps > stop_after:
                raise KeyboardInterrupt

        llm.on_event = stop
        with pytest.raises(KeyboardInterrupt):
            generate(llm, prompts)
        llm.on_event = None
        assert_idle(llm)
        assert_same_greedy(judge, prompts, expected, generate(llm, prompts))


@pytest.mark.parametrize("budget", [9, 16384])
def test_garbage_in_unused_slots_never_leaks(
    tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, budget: int
) -> None:
    """A NaN in a slot that nobody has written stays unseen, although its attention weight of 0 would multiply it."""
    with make_llm(tiny, kvcache_block_size=16, num_kvcache_blocks=40, max_num_batched_tokens=budget) as llm:
        assert llm.model_runner.cache is not None
        llm.model_runner.cache.tensor.fill_(torch.nan)
        assert_same_greedy(judge, prompts, expected, generate(llm, prompts))


@pytest.mark.parametrize("seed", range(40))
def test_random_traffic(tiny: Path, judge: Any, prompts: Prompts, expected: Prompts, seed: int) -> None:
    """Random limits, arrivals between steps, repeated prompts, cancellations: survivors get the expected tokens."""
    dice = random.Random(seed)
    block_size = dice.choice([1, 2, 3, 4, 5, 16])
    at_least = -(-(max(map(len, prompts)) + COMPLETION - 1) // block_size)
    limits = {
        "kvcache_block_size": block_size,
        "num_kvcache_blocks": at_least + dice.randrange(2 * at_least),
        "max_num_seqs": dice.choice([1, 2, 3, 8]),
        "max_num_batched_tokens": dice.choice([1, 4, 13, 64, 500]),
    }
    with make_llm(tiny, skip_tokenizer_init=True, **limits) as llm:
        which: dict[int, int] = {}
        got: dict[int, list[int]] = {}
        left = 14
        while left or not llm.is_finished():
            if left and dice.random() < 0.4:
                left -= 1
                number = dice.randrange(len(prompts))
                which[llm.add_request(prompts[number], greedy(COMPLETION))] = number
            if llm.scheduler.sequences and dice.random() < 0.04:
                cancelled = dice.choice(list(llm.scheduler.sequences))
                assert llm.abort(cancelled) is not None
                del which[cancelled]
            got.update((o.request_id, o.token_ids) for o in llm.step().finished)
            llm.scheduler.check_integrity()
        assert got.keys() == which.keys()
        numbers = list(which.values())
        assert_same_greedy(
            judge, [prompts[n] for n in numbers], [expected[n] for n in numbers], [got[i] for i in which]
        )
        assert_idle(llm)
