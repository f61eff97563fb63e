"""A seeded request draws the same tokens whatever runs beside it."""

from pathlib import Path

import pytest
from helpers import make_llm, random_prompts, run_to_end, token_ids_of

from nanovllm import LLM, SamplingParams

Prompts = list[list[int]]
PROMPT = random_prompts([13], seed=3)[0]
SEEDED = SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True, seed=1234)
STYLES = {
    "plain": SEEDED,
    "top_k": SamplingParams(temperature=0.9, top_k=20, max_tokens=24, ignore_eos=True, seed=5),
    "top_p": SamplingParams(temperature=1.3, top_p=0.8, max_tokens=24, ignore_eos=True, seed=6),
    "both": SamplingParams(temperature=0.7, top_k=30, top_p=0.9, max_tokens=24, ignore_eos=True, seed=7),
}


def alone(tiny: Path, params: SamplingParams) -> list[int]:
    """The completion of PROMPT in an engine of its own."""
    with make_llm(tiny, kvcache_block_size=256, num_kvcache_blocks=2) as llm:
        return llm.generate([PROMPT], params, use_tqdm=False)[0].token_ids


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("budget", [1, 6, 16384])
@pytest.mark.parametrize("block_size", [1, 3, 4, 256])
def test_batch_mates_chunks_and_block_sizes(tiny: Path, style: str, budget: int, block_size: int) -> None:
    params = STYLES[style]
    blocks = 6 * -(-64 // block_size)
    limits = {"kvcache_block_size": block_size, "num_kvcache_blocks": blocks, "max_num_batched_tokens": budget}
    mates = random_prompts([4, 21, 9], seed=4)
    others = SamplingParams(temperature=1.0, max_tokens=18, ignore_eos=True)
    with make_llm(tiny, **limits) as llm:
        outputs = llm.generate([mates[0], PROMPT, *mates[1:]], [others, params, others, others], use_tqdm=False)
    assert outputs[1].token_ids == alone(tiny, params)


@pytest.mark.parametrize("style", STYLES)
def test_preemption(tiny: Path, style: str) -> None:
    """Tokens sampled before a preemption are kept; the ones after it are drawn as if it had not happened."""
    params = STYLES[style]
    with make_llm(tiny, num_kvcache_blocks=12, max_num_batched_tokens=16) as llm:
        for prompt in (random_prompts([9], seed=9)[0], PROMPT):
            llm.add_request(prompt, params)
        outputs = run_to_end(llm)
    assert outputs[1].metrics.num_preemptions > 0
    assert outputs[1].token_ids == alone(tiny, params)


def test_cached_prefix(llm: LLM, tiny: Path) -> None:
    first, again = (llm.generate([PROMPT], SEEDED, use_tqdm=False)[0] for _ in range(2))
    assert again.metrics.num_prefix_tokens == 12
    assert first.token_ids == again.token_ids == alone(tiny, SEEDED)


def test_seeds_matter(llm: LLM) -> None:
    """Other seeds draw other completions; the same seed twice in one batch draws the same."""
    params = [SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, seed=s) for s in (1, 2, 3, 1)]
    got = token_ids_of(llm.generate([PROMPT] * 4, params, use_tqdm=False))
    assert got[0] == got[3]
    assert len({tuple(ids) for ids in got}) == 3


def test_requests_without_a_seed_differ(llm: LLM) -> None:
    """Each draws its own seed, in one batch and in the next."""
    params = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True)
    got = [token_ids_of(llm.generate([PROMPT] * 3, params, use_tqdm=False)) for _ in range(2)]
    assert len({tuple(ids) for batch in got for ids in batch}) == 6


def test_the_engine_seed_reproduces_requests_without_one(tiny: Path) -> None:
    """Two engines of one seed draw the same, one of another seed does not."""
    params = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True)
    got = []
    for seed in (11, 11, 12):
        with make_llm(tiny, seed=seed) as llm:
            got.append(token_ids_of(llm.generate([PROMPT] * 2, params, use_tqdm=False)))
    assert got[0] == got[1] != got[2]


def test_greedy_rows_beside_random_ones(llm: LLM, prompts: Prompts, expected: Prompts) -> None:
    """Temperature 0 takes the most likely token for its row alone."""
    params = [
        SamplingParams(temperature=0.0 if i % 2 else 1.0, max_tokens=14, ignore_eos=True, seed=i)
        for i in range(len(prompts))
    ]
    got = token_ids_of(llm.generate(prompts, params, use_tqdm=False))
    assert got[1::2] == expected[1::2]
    assert got[0::2] != expected[0::2]


def test_a_temperature_near_zero_is_greedy(llm: LLM, prompts: Prompts, expected: Prompts) -> None:
    """Dividing by a tiny temperature must not overflow into a wrong token."""
    params = [
        SamplingParams(temperature=t, max_tokens=14, ignore_eos=True, seed=1, top_p=p)
        for t, p in [(1e-6, 1.0), (1e-30, 1.0), (1e-38, 1.0), (1e-40, 0.5), (1e-300, 1.0), (1e-38, 0.9)]
    ]
    got = token_ids_of(llm.generate(prompts[: len(params)], params, use_tqdm=False))
    assert got == expected[: len(params)]


def test_top_k_one_is_greedy(llm: LLM, prompts: Prompts, expected: Prompts) -> None:
    params = SamplingParams(temperature=1.0, top_k=1, max_tokens=14, ignore_eos=True)
    assert token_ids_of(llm.generate(prompts, params, use_tqdm=False)) == expected
