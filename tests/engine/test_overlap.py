"""The overlapped loop gives the plain loop's tokens, whatever ends, waits, is preempted or is cancelled on the way."""

import random
from pathlib import Path
from typing import Any

import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.engine.overlap import OverlappedLoop

LIMITS = [
    {},
    {"kvcache_block_size": 4, "max_num_batched_tokens": 7},
    {"kvcache_block_size": 3, "num_kvcache_blocks": 24, "max_num_seqs": 4},  # requests wait and are preempted
    {"kvcache_block_size": 1, "num_kvcache_blocks": 60, "max_num_seqs": 6},
]


def requests(seed: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts with shared prefixes, some greedy, some seeded, some that stop early by a stop token."""
    rng = random.Random(seed)
    shared = [rng.randint(2, 60) for _ in range(8)]
    prompts = [shared[: rng.randint(0, 8)] + [rng.randint(2, 60) for _ in range(rng.randint(1, 14))] for _ in range(10)]
    params = [
        SamplingParams(
            temperature=rng.choice([0.0, 1.0]),
            seed=rng.randint(0, 99),
            top_k=rng.choice([0, 5]),
            max_tokens=rng.randint(1, 24),
            stop_token_ids=tuple(rng.sample(range(264), rng.choice([0, 60]))),
        )
        for _ in range(10)
    ]
    return prompts, params


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_same_tokens_and_reasons_as_the_plain_loop(tiny: Path, limits: dict[str, int], seed: int) -> None:
    prompts, params = requests(seed)
    results = []
    for overlap in (False, True):
        with LLM(str(tiny), overlap=overlap, skip_tokenizer_init=True, **limits) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            outputs += llm.generate(prompts, params, use_tqdm=False)  # now with a filled prefix cache
            llm.scheduler.check_integrity()
            assert llm.scheduler.block_manager.num_used_blocks == 0
        results.append([(o.token_ids, o.finish_reason) for o in outputs])
    assert results[0] == results[1]
    assert {reason for _, reason in results[0]} == {"stop", "length"}


def test_steps_really_overlap_and_the_late_token_of_a_stopped_request_is_dropped(tiny: Path) -> None:
    """Launches run one ahead of reads; with max_tokens n a request alone is launched n times, never n + 1 times."""
    prompt = [5, 6, 7]
    with LLM(str(tiny), overlap=False, skip_tokenizer_init=True) as llm:
        expected = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=9), use_tqdm=False)[0].token_ids
    stop = next(t for t in expected[2:] if t not in expected[:2])
    length = expected.index(stop) + 1
    for params, launches in (
        (SamplingParams(temperature=0, max_tokens=9), 9),
        (SamplingParams(temperature=0, max_tokens=9, stop_token_ids=(stop,)), min(length + 1, 9)),
    ):
        with LLM(str(tiny), overlap=True, skip_tokenizer_init=True) as llm:
            events: list[str] = []
            runner, launch, book = llm.model_runner, llm.model_runner.launch, llm.book
            runner.launch = lambda *a, **k: events.append("launch") or launch(*a, **k)  # noqa: B023
            llm.book = lambda *a: events.append("book") or book(*a)  # noqa: B023
            output = llm.generate([prompt], params, use_tqdm=False)[0]
            assert output.token_ids == expected[: len(output.token_ids)]
            assert events.count("launch") == launches
            assert events[:3] == ["launch", "launch", "book"]


@pytest.mark.parametrize(
    ("limits", "max_tokens", "least"),
    [
        ({"max_num_batched_tokens": 4}, 1, 1.0),  # prefills alone, most of them unfinished chunks
        ({"max_num_batched_tokens": 6}, 12, 1.0),  # after the last of them a decode, fed by it in part
        ({"max_num_seqs": 3}, 12, 0.6),  # requests wait all the time, for a place of one that ends
        ({"max_num_seqs": 3, "max_num_batched_tokens": 4}, 12, 0.6),
    ],
    ids=str,
)
def test_whatever_the_next_step_is_it_is_launched_before_the_last_one_is_read(
    tiny: Path, limits: dict[str, int], max_tokens: int, least: float
) -> None:
    """least: the share of steps that must have been launched with another one in flight."""
    prompts, _ = requests(5)
    params = [SamplingParams(temperature=1, seed=i, max_tokens=max_tokens, ignore_eos=True) for i in range(10)]
    totals, answers = [], []
    for overlap in (False, True):
        with LLM(str(tiny), overlap=overlap, skip_tokenizer_init=True, kvcache_block_size=2, **limits) as llm:
            in_flight, flown = [0], []
            launch, book = llm.ranks.launch, llm.book

            def launched(*args: Any) -> Any:
                in_flight[0] += 1  # noqa: B023
                flown.append(in_flight[0] > 1)  # noqa: B023
                return launch(*args)  # noqa: B023

            def booked(*args: Any) -> Any:
                in_flight[0] -= 1  # noqa: B023
                return book(*args)  # noqa: B023

            llm.ranks.launch, llm.book = launched, booked  # type: ignore[method-assign]
            ids = [llm.add_request(p, q) for p, q in zip(prompts, params, strict=True)]
            loop, done, steps = OverlappedLoop(llm), {}, []
            while not llm.is_finished():
                steps.append(loop.step())
                done.update({o.request_id: o.token_ids for o in steps[-1].finished})
            llm.scheduler.check_integrity()
            if overlap:
                assert sum(flown) >= least * (len(flown) - 1)
        answers.append([done[i] for i in ids])
        totals.append({p: sum(s.num_tokens for s in steps if s.is_prefill == p) for p in (True, False)})
    assert answers[0] == answers[1]
    assert totals[0] == totals[1]


def test_a_request_added_under_way_and_one_cancelled_under_way(tiny: Path) -> None:
    prompts, _ = requests(3)
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    with LLM(str(tiny), overlap=False, skip_tokenizer_init=True) as llm:
        expected = [o.token_ids for o in llm.generate(prompts, params, use_tqdm=False)]
    with LLM(str(tiny), overlap=True, skip_tokenizer_init=True) as llm:
        loop, ids, done = OverlappedLoop(llm), [llm.add_request(p, params) for p in prompts[:4]], {}
        for _ in range(6):
            loop.step()
        ids += [llm.add_request(p, params) for p in prompts[4:]]
        cancelled = llm.abort(ids[1])
        assert cancelled is not None
        while not llm.is_finished():
            done.update({o.request_id: o.token_ids for o in loop.step().finished})
        llm.scheduler.check_integrity()
    assert cancelled.token_ids == expected[1][: len(cancelled.token_ids)]
    assert [done.get(i) for i in ids] == [t if k != 1 else None for k, t in enumerate(expected)]


def test_leaving_early_loses_nothing(tiny: Path) -> None:
    """A step in flight that nobody reads is simply run again by whoever steps next."""
    prompts, _ = requests(4)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    with LLM(str(tiny), overlap=False, skip_tokenizer_init=True) as llm:
        expected = [o.token_ids for o in llm.generate(prompts, params, use_tqdm=False)]
    with LLM(str(tiny), overlap=True, skip_tokenizer_init=True, kvcache_block_size=2) as llm:
        ids, done = [llm.add_request(p, params) for p in prompts], {}
        while not llm.is_finished():
            loop = OverlappedLoop(llm)
            for _ in range(3):
                if not llm.is_finished():
                    done.update({o.request_id: o.token_ids for o in loop.step().finished})
            loop.cancel()
            llm.scheduler.check_integrity()
    assert [done[i] for i in ids] == expected


def test_a_watched_engine_takes_plain_steps(tiny: Path) -> None:
    with LLM(str(tiny), overlap=True, skip_tokenizer_init=True) as llm:
        assert llm.can_overlap
        llm.on_event = lambda name: None
        assert not llm.can_overlap
