"""The sampler: who can be drawn, how often, and that draws depend on seed and position alone."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from nanovllm import SamplingParams
from nanovllm.paged_kv.batch import SamplingInputs
from nanovllm.qwen3 import sampler as sampler_module
from nanovllm.qwen3.sampler import FEW, Sampler, exponential_draws, keep_top, likeliest, row_keys

CPU = torch.device("cpu")
NAIVE_EXAMPLE = torch.tensor([0.4, 0.3, 0.2, 0.1])


def inputs(params: Sequence[SamplingParams], seeds: Sequence[int], positions: Sequence[int]) -> SamplingInputs:
    return SamplingInputs(
        temperature=np.array([p.temperature for p in params], np.float32),
        top_k=np.array([p.top_k for p in params], np.int64),
        top_p=np.array([p.top_p for p in params], np.float32),
        seed=np.array(seeds, np.int64),
        position=np.array(positions, np.int64),
    )


def draw(logits: Tensor, params: Sequence[SamplingParams], seeds: Sequence[int], positions: Sequence[int]) -> Tensor:
    """One token a row."""
    sampler = Sampler()
    return sampler(logits, sampler.prepare(inputs(params, seeds, positions), CPU))


def draw_many(logits: Tensor, params: SamplingParams, count: int, seed: int = 0) -> Tensor:
    """[count] tokens from one row of logits, at as many positions."""
    return draw(logits.expand(count, -1), [params] * count, [seed] * count, range(count))


def chi_square(tokens: Tensor, probs: Tensor) -> float:
    """Pearson's statistic over the tokens that can be drawn; fails if another one was."""
    counts = torch.bincount(tokens, minlength=len(probs)).double()
    possible = probs > 0
    assert counts[~possible].sum() == 0
    wanted = probs[possible].double() * len(tokens)
    assert wanted.min() > 5
    return ((counts[possible] - wanted) ** 2 / wanted).sum().item()


def bound(degrees: int) -> float:
    """Chi-square is above this once in about 10,000 tries (Wilson-Hilferty, z = 3.72)."""
    return degrees * (1 - 2 / (9 * degrees) + 3.72 * (2 / (9 * degrees)) ** 0.5) ** 3


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("by", ["position", "seed"])
def test_the_race_draws_from_the_softmax(temperature: float, by: str) -> None:
    """20,000 draws against softmax(logits / temperature), over positions of one seed and over seeds."""
    logits = torch.randn(12, generator=torch.Generator().manual_seed(3))
    probs = (logits.double() / temperature).softmax(0)
    count = 20_000
    params = [SamplingParams(temperature=temperature)] * count
    seeds, positions = ([7] * count, range(count)) if by == "position" else (range(count), [7] * count)
    tokens = draw(logits.expand(count, -1), params, seeds, positions)
    assert chi_square(tokens, probs) < bound(11)
    wrong = (logits.double() / temperature * 1.15).softmax(0)
    assert chi_square(tokens, wrong) > bound(11)  # the test can tell


def test_neighbouring_draws_are_independent() -> None:
    """Pairs of tokens at positions p and p + 1 fill the product distribution."""
    probs = torch.tensor([0.5, 0.3, 0.2])
    tokens = draw_many(probs.log(), SamplingParams(), 20_000)
    pairs = tokens[:-1:2] * 3 + tokens[1::2]
    assert chi_square(pairs, torch.outer(probs, probs).flatten()) < bound(8)


def test_rows_of_neighbouring_seeds_are_independent() -> None:
    probs = torch.tensor([0.5, 0.3, 0.2])
    count = 20_000
    tokens = draw(probs.log().expand(count, -1), [SamplingParams()] * count, range(count), [0] * count)
    pairs = tokens[:-1:2] * 3 + tokens[1::2]
    assert chi_square(pairs, torch.outer(probs, probs).flatten()) < bound(8)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_p=0.6), 2),  # .4 is not enough: the token that crosses .6 stays
        (SamplingParams(top_p=0.4), 1),
        (SamplingParams(top_p=0.41), 2),
        (SamplingParams(top_p=0.71), 3),
        (SamplingParams(top_p=0.95), 4),
        (SamplingParams(top_p=1.0), 4),
        (SamplingParams(top_p=1e-9), 1),
        (SamplingParams(top_k=1), 1),
        (SamplingParams(top_k=3), 3),
        (SamplingParams(top_k=0), 4),
        (SamplingParams(top_k=-1), 4),
        (SamplingParams(top_k=100), 4),
        (SamplingParams(top_k=3, top_p=0.5), 2),  # of .44 .33 .22
        (SamplingParams(top_k=2, top_p=0.99), 2),
    ],
)
def test_top_k_and_top_p_keep_the_right_tokens_at_the_right_rates(params: SamplingParams, kept: int) -> None:
    """In any order of the vocabulary; what is kept keeps its proportions."""
    order = torch.tensor([2, 0, 3, 1])
    probs = torch.zeros(4)
    probs[order] = NAIVE_EXAMPLE
    wanted = torch.where(probs >= NAIVE_EXAMPLE[kept - 1], probs, 0)
    tokens = draw_many(probs.log(), params, 10_000)
    if kept == 1:
        assert tokens.eq(order[0]).all()
    else:
        assert chi_square(tokens, wanted / wanted.sum()) < bound(kept - 1)


def test_top_p_applies_after_the_temperature() -> None:
    """At temperature 0.5 the example is .53 .30 .13 .03, so .5 keeps one."""
    tokens = draw_many(NAIVE_EXAMPLE.log(), SamplingParams(temperature=0.5, top_p=0.5), 2000)
    assert tokens.eq(0).all()


def test_keep_top_against_the_definition() -> None:
    """Random rows, each with its own k and p: the smallest set of most likely tokens that reaches p."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 17, generator=generator) * 2
    top_k = torch.randint(0, 20, (200, 1), generator=generator)
    top_p = torch.rand(200, 1, generator=generator).clamp(min=1e-3)
    got = keep_top(logits, top_k, top_p)
    for row in range(200):
        ids = logits[row].argsort(descending=True).tolist()
        k = int(top_k[row]) or len(ids)
        ids = ids[:k]
        probs = logits[row][ids].double().softmax(0).tolist()
        kept, total = [], 0.0
        for token, p in zip(ids, probs, strict=True):
            kept.append(token)
            total += p
            if total >= top_p[row].item():
                break
        assert got[row].isfinite().nonzero().flatten().tolist() == sorted(kept)
        assert torch.equal(got[row][kept], logits[row][kept])


def test_the_likeliest_are_in_order_and_equal_ones_by_index() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (torch.randn(50, 300, generator=generator) * 2).to(torch.bfloat16).float()  # with many equal ones
    logits[:, ::7] = -torch.inf
    logits[3] = 0.0
    wanted = logits.sort(dim=-1, descending=True, stable=True).indices
    assert torch.equal(likeliest(logits, 64), wanted[:, :64])
    assert torch.equal(likeliest(logits, 1000), wanted)  # more than there are


@pytest.mark.parametrize("top_k", [1, 2, FEW - 1, FEW, FEW + 1, 0])
@pytest.mark.parametrize("top_p", [0.3, 0.95, 1.0])
def test_a_small_top_k_needs_no_sorted_vocabulary(top_k: int, top_p: float) -> None:
    """The winner among a few candidates is that of the definition: all other logits at -inf, then the race."""
    generator = torch.Generator().manual_seed(2)
    logits = (torch.randn(80, 900, generator=generator) * 2).to(torch.bfloat16)
    params = [SamplingParams(temperature=1.5, top_k=top_k, top_p=top_p)] * 80
    tokens = draw(logits, params, range(80), range(80))
    scaled = logits.float() / 1.5
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    if top_k:
        ordered[:, top_k:] = -torch.inf
    probs = ordered.softmax(dim=-1)
    ordered[(probs.cumsum(dim=-1) - probs >= top_p) & (top_p < 1)] = -torch.inf
    kept = torch.empty_like(scaled).scatter(-1, order, ordered)
    keys = torch.from_numpy(row_keys(np.arange(80), np.arange(80)))
    assert torch.equal(tokens, Sampler().race(kept, torch.ones(80, 1), keys))
    assert top_k == 1 or len(tokens.unique()) > 40


def test_temperature_zero_is_argmax_for_its_row_alone() -> None:
    """Greedy rows beside random ones, cut or not, in one call."""
    logits = torch.randn(8, 50, generator=torch.Generator().manual_seed(1))
    greedy, hot = SamplingParams(temperature=0), SamplingParams(temperature=5.0)
    mixed = [greedy, hot, greedy, SamplingParams(temperature=5.0, top_k=3), greedy, hot, greedy, hot]
    tokens = draw(logits, mixed, range(8), range(8))
    best = logits.argmax(dim=-1)
    assert torch.equal(tokens[::2], best[::2])
    assert not torch.equal(tokens[1::2], best[1::2])
    assert torch.equal(draw(logits, [greedy] * 8, range(8), range(8)), best)
    assert torch.equal(draw(logits, [hot] * 8, range(8), range(8))[[1, 5, 7]], tokens[[1, 5, 7]])


def test_a_row_does_not_depend_on_its_mates() -> None:
    """Alone, elsewhere in the batch, beside rows that are cut or greedy: the same token."""
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(2))
    params = [
        SamplingParams(temperature=1.2),
        SamplingParams(temperature=0.8, top_k=7),
        SamplingParams(temperature=1.0, top_p=0.7),
        SamplingParams(temperature=0),
        SamplingParams(temperature=2.0, top_k=20, top_p=0.9),
        SamplingParams(temperature=1.0),
    ]
    seeds, positions = [5, 6, 7, 8, 9, 2**62], [3, 3, 100, 5, 4000, 1]
    together = draw(logits, params, seeds, positions).tolist()
    alone = [draw(logits[i : i + 1], [params[i]], [seeds[i]], [positions[i]]).item() for i in range(6)]
    assert alone == together
    turned = draw(logits.flip(0), params[::-1], seeds[::-1], positions[::-1]).tolist()
    assert turned == together[::-1]


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_how_many_rows_are_drawn_at_once_changes_nothing(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(70, 50, generator=torch.Generator().manual_seed(6))
    kinds = [{}, {"top_k": 7}, {"top_p": 0.8}, {"top_k": 65}, {"temperature": 0}, {"top_k": 9, "top_p": 0.6}]
    for params in ([SamplingParams(**kinds[i % 6]) for i in range(70)], [SamplingParams(temperature=0.7)] * 70):
        wanted = draw(logits, params, range(70), range(70))
        with monkeypatch.context() as patch:
            patch.setattr(sampler_module, "CPU_LOGITS", at_once * 50)
            patch.setattr(sampler_module, "CUT_ROWS", 4)
            assert torch.equal(draw(logits, params, range(70), range(70)), wanted)


def test_logits_are_left_as_they_are() -> None:
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(4))
    before = logits.clone()
    draw(logits, [SamplingParams(temperature=0.5, top_k=2, top_p=0.5)] * 3, range(3), range(3))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_drawn_in_fp32(dtype: torch.dtype) -> None:
    logits = (torch.randn(64, 30, generator=torch.Generator().manual_seed(5)) * 3).to(dtype)
    params = [SamplingParams(temperature=0.7)] * 64
    assert torch.equal(draw(logits, params, range(64), range(64)), draw(logits.float(), params, range(64), range(64)))


def test_draws_are_exponential() -> None:
    """Mean 1, variance 1, and the share above 1 is 1/e; never 0 or infinite."""
    draws = exponential_draws(torch.from_numpy(row_keys(np.arange(200), np.zeros(200, np.int64))), 1000)
    assert draws.shape == (200, 1000)
    assert draws.min() > 0
    assert draws.isfinite().all()
    assert draws.mean().item() == pytest.approx(1.0, abs=0.01)
    assert draws.var().item() == pytest.approx(1.0, abs=0.03)
    assert draws.gt(1).double().mean().item() == pytest.approx(np.exp(-1), abs=0.005)


@pytest.mark.parametrize(("seed", "token"), [(45, 21092), (133, 13678), (216, 149603), (503, 87800)])
def test_no_draw_is_zero(seed: int, token: int) -> None:
    """The largest random bits must not round up to a uniform number of 1: a draw of 0 wins every race.

    These seeds have them within a vocabulary of 152,000, where about one row in a hundred has: there the most unlikely
    token would be chosen, or one that top-k excludes.
    """
    logits = torch.zeros(1, 152_000)
    logits[0, :10] = 40.0
    keys = torch.from_numpy(row_keys(np.array([seed]), np.array([0])))
    draws = exponential_draws(keys, 152_000)
    assert draws.argmin() == token
    assert draws.min() > 0
    for params in (SamplingParams(), SamplingParams(top_k=10), SamplingParams(top_p=0.9)):
        assert draw(logits, [params], [seed], [0]).item() < 10


def test_keys_of_seeds_and_positions_are_all_different() -> None:
    """Neighbouring seeds and positions do not collide, nor does (s, p + 1) with (s + 1, p)."""
    seeds, positions = np.meshgrid(np.arange(300), np.arange(300))
    keys = row_keys(seeds.flatten(), positions.flatten())
    assert len({tuple(k) for k in keys.tolist()}) == 90_000
    assert keys.min() >= 0
    assert keys.max() < 2**32
    assert row_keys(np.array([2**63 - 1]), np.array([10**9])).shape == (1, 2)


def test_draws_of_known_keys() -> None:
    """The random numbers are part of the interface: a seed gives the same completion in every release."""
    seeds, positions = [0, 1, 1234], [0, 5, 99]
    assert row_keys(np.array(seeds), np.array(positions)).tolist() == [
        [1210155558, 4282176703],
        [941092317, 4179981905],
        [2303816963, 1733134320],
    ]
    assert draw(torch.zeros(3, 1000), [SamplingParams()] * 3, seeds, positions).tolist() == [153, 172, 660]
