"""3.8 Exponential-race sampler with top-p."""

import math
import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.part3 import formulas

_IMPORTS = "import torch\nfrom nanovllm.qwen3 import sampler\n"
_KEEP = (
    _IMPORTS
    + """\
logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
result = []
for k, p in ((0, 0.6), (0, 0.75), (0, 1.0), (3, 1.0), (2, 0.5), (0, 0.01)):
    kept = sampler.keep_top(logits, torch.tensor([[k]]), torch.tensor([[p]]))
    result.append([token for token, value in enumerate(kept[0].tolist()) if value > -1e30])"""
)
_IN_PLACE = (
    _IMPORTS
    + """\
logits = torch.tensor([[1.0, 4.0, 2.0, 3.0]])
kept = sampler.keep_top(logits, torch.tensor([[2]]), torch.tensor([[1.0]]))
result = [[value if value > -1e30 else None for value in kept[0].tolist()], logits[0].tolist()]"""
)
_GREEDY = (
    _IMPORTS
    + """\
logits = torch.tensor([[1.0, 5.0, 3.0], [9.0, 5.0, float("-inf")]])
tokens = sampler.Sampler().race(logits, torch.zeros(2, 1), torch.tensor([[1, 2], [3, 4]]))
result = [str(tokens.dtype), tokens.tolist()]"""
)
_SHARES = (
    _IMPORTS
    + """\
rows = 4000  # each with keys of its own
keys = torch.stack([torch.arange(rows), torch.full((rows,), 7)], dim=1)
logits = torch.tensor([0.5, 0.3, 0.2]).log().expand(rows, 3)
result = []
for temperature in (1.0, 0.5):
    tokens = sampler.Sampler().race(logits, torch.full((rows, 1), temperature), keys)
    result.append([round((tokens == token).sum().item() / rows, 1) for token in range(3)])"""
)
_MATES = (
    _IMPORTS
    + """\
logits = torch.tensor([[0.1, 0.4, 0.2, 0.3, 0.0, 0.5]]).repeat(8, 1)
keys = torch.tensor([[row, 11] for row in range(8)])
warm = torch.ones(8, 1)
together = sampler.Sampler().race(logits, warm, keys).tolist()
again = sampler.Sampler().race(logits, warm, keys).tolist()
alone = [sampler.Sampler().race(logits[:1], warm[:1], keys[row : row + 1]).item() for row in range(8)]
result = [together == again, together == alone, len(set(together)) > 1]"""
)
_HALF = (
    _IMPORTS
    + """\
logits = torch.tensor([[1.0, 2.0, 1.5, 0.5]]).repeat(40, 1)
keys = torch.tensor([[row, 5] for row in range(40)])
warm = torch.ones(40, 1)
whole = sampler.Sampler().race(logits, warm, keys).tolist()
half = sampler.Sampler().race(logits.to(torch.bfloat16), warm, keys).tolist()
result = [half == whole, logits[0].tolist()]"""
)
# Drawn by the engine with its own sampler; the tests draw them again.
SAMPLED = [[223, 20, 18, 223, 20, 19, 223, 20], [19, 18, 0, 294, 285, 262, 75, 446]]
ENGINE = """\
from nanovllm import LLM, SamplingParams
prompts = [[462, 28, 223, 19, 25, 223, 19, 26, 223, 19, 27], [899, 28, 223, 27, 223]]
limits = dict(kvcache_block_size=4, num_kvcache_blocks=24, max_model_len=32, device="cpu", skip_tokenizer_init=True)
same = dict(seed=3, max_tokens=8, ignore_eos=True)
how = [SamplingParams(temperature=0.7, top_p=0.9, **same), SamplingParams(temperature=1.3, top_k=40, **same)]
with LLM("qwen3-tiny", **limits) as llm:
    result = [output.token_ids for output in llm.generate(prompts, how, use_tqdm=False)]"""


def _cut(rng: random.Random, rows: int, vocab: int) -> dict[str, Any]:
    """Logits that are far enough apart for every sum of probabilities to be on one side of top_p."""
    return {
        "logits": [rng.sample([round(-3 + 0.37 * i, 2) for i in range(vocab)], vocab) for _ in range(rows)],
        "top_k": [rng.choice([0, 0, 1, 2, vocab, 100]) for _ in range(rows)],
        "top_p": [rng.choice([1.0, round(rng.uniform(0.05, 0.95), 3)]) for _ in range(rows)],
    }


def _kept(logits: Any, top_k: Any, top_p: Any) -> Any:
    rows = zip(logits, top_k, top_p, strict=True)
    kept = [(row, formulas.kept(row, k, p)) for row, k, p in rows]
    return [[value if token in left else -math.inf for token, value in enumerate(row)] for row, left in kept]


def _race(rng: random.Random, rows: int, vocab: int) -> dict[str, Any]:
    return {
        "logits": [[round(rng.uniform(-2, 2), 2) for _ in range(vocab)] for _ in range(rows)],
        "temperature": [rng.choice([0.0, 0.5, 1.0, 2.0]) for _ in range(rows)],
        "keys": [[rng.randrange(2**32), rng.randrange(2**32)] for _ in range(rows)],
    }


def _winners(logits: Any, temperature: Any, keys: Any) -> Any:
    return [formulas.race(*row) for row in zip(logits, temperature, keys, strict=True)]


_CUT = (
    _IMPORTS
    + """\
result = sampler.keep_top(torch.tensor(logits), torch.tensor(top_k)[:, None], torch.tensor(top_p)[:, None])"""
)
_RUN = (
    _IMPORTS
    + """\
warmth = torch.tensor(temperature)[:, None]
result = sampler.Sampler().race(torch.tensor(logits), warmth, torch.tensor(keys))"""
)

_THRESHOLD = """
def keep_top(logits, top_k, top_p):
    out = logits.clone()
    for row in range(len(logits)):
        order = logits[row].argsort(descending=True).tolist()
        k, p, total, kept = int(top_k[row]), float(top_p[row]), 0.0, []
        left = order[:k] if k else order
        probs = logits[row][left].softmax(-1).tolist()
        for token, prob in zip(left, probs):
            if kept and total >= p and p < 1:
                break
            kept.append(token)
            total += prob
        for token in set(order) - set(kept):
            out[row, token] = -torch.inf
    return out
"""
_QUOTIENTS = """
def race(self, logits, temperature, keys):
    logits = logits.float()
    is_greedy = temperature == 0
    probs = (logits / temperature.masked_fill(is_greedy, 1.0)).softmax(dim=-1)
    runs = probs / exponential_draws(keys, logits.shape[-1])
    return torch.where(is_greedy, logits, runs).argmax(dim=-1)
"""
_SHORTEST_TIME = """
def race(self, logits, temperature, keys):
    logits = logits.float()
    is_greedy = temperature == 0
    scaled = logits / temperature.masked_fill(is_greedy, 1.0)
    times = exponential_draws(keys, logits.shape[-1]).log() - scaled
    return torch.where(is_greedy, -logits, times).argmin(dim=-1)
"""
_TORCH_DRAWS = """
def race(self, logits, temperature, keys):
    logits = logits.float()
    is_greedy = temperature == 0
    draws = torch.empty_like(logits).exponential_()
    scores = logits / temperature.masked_fill(is_greedy, 1.0) - draws.log()
    return torch.where(is_greedy, logits, scores).argmax(dim=-1)
"""

EXERCISE = Exercise(
    number="3.8",
    title="Exponential-race sampler with top-p",
    file="part3/ex08_sampler.py",
    pieces=(("keep_top", seams.KEEP_TOP), ("race", seams.RACE)),
    hints=(
        "race: one row with pencil, three logits and three draws; what does a small draw do for a token? keep_top: "
        "sort 0.4 0.3 0.2 0.1, write the sum before each below it, and compare with p.",
        "race: scores = logits / temperature - draws.log(), then argmax; replace a temperature of 0 by 1 before the "
        "division and choose with torch.where. keep_top: sort descending gives values and where they came from; "
        "scatter puts them back.",
        "before = probs.cumsum(-1) - probs; keep = ((rank < top_k) | (top_k == 0)) & ((before < top_p) | (top_p >= 1) "
        "| (rank == 0)); full_like(logits, -inf).scatter(-1, order, ordered.masked_fill(~keep, -inf)). In race: "
        "torch.where(temperature == 0, logits, scores).argmax(dim=-1).",
    ),
    groups=(
        Group(
            "what top-k and top-p keep",
            1,
            "Sort the row and write the sum of probabilities *before* each token below it. Who stays? Are they back in "
            "their places, and does every row use its own k and p?",
            (
                Example(_KEEP, [[0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2], [0], [0]]),
                Example(
                    _IN_PLACE,
                    [[None, 4.0, None, 3.0], [1.0, 4.0, 2.0, 3.0]],
                    "What stays must stay in its place, and the logits that came in must not change.",
                ),
            ),
            numeric=Numeric((("rows", 1, 3), ("vocab", 2, 8)), _cut, _CUT, _kept, cases=20),
        ),
        Group(
            "the winner of the race, and greedy rows",
            1,
            "Write logit / temperature - log E for each token of the smallest case; exponential_draws gives the E. Is "
            "a row with temperature 0 the largest logit, whatever the draws are?",
            (
                Example(
                    _GREEDY,
                    ["torch.int64", [1, 0]],
                    "Temperature 0 means the largest logit, whatever the draws are. Token ids are int64.",
                ),
                Example(
                    _HALF,
                    [True, [1.0, 2.0, 1.5, 0.5]],
                    (
                        "Half precision changes nothing here: compute in fp32 from exponential_draws alone, "
                        "and leave the logits as they are."
                    ),
                ),
            ),
            numeric=Numeric((("rows", 1, 4), ("vocab", 1, 8)), _race, _RUN, _winners, cases=20),
        ),
        Group(
            "shares, rows of their own, the running engine",
            1,
            "Tokens of probability 0.5, 0.3 and 0.2 must win in these shares (at temperature 0.5: in the shares of "
            "their squares), and each row must depend on its own keys only.",
            (
                Example(
                    _SHARES,
                    [[0.5, 0.3, 0.2], [0.7, 0.2, 0.1]],
                    (
                        "Tokens of probability 0.5, 0.3 and 0.2 must win in these shares; at temperature 0.5 "
                        "in the shares of their squares."
                    ),
                ),
                Example(
                    _MATES,
                    [True, True, True],
                    (
                        "The same keys must give the same token, alone or among others. What does a row use "
                        "besides its own logits and keys?"
                    ),
                ),
                Example(
                    ENGINE,
                    SAMPLED,
                    (
                        "The draws agree and those of the engine do not: what reaches your functions there? "
                        "Print shapes, dtypes, temperatures."
                    ),
                ),
            ),
        ),
    ),
    bugs=(
        Variant("drops the token that crosses p", "keep_top", (("- probs\n", "\n"),)),
        Variant(
            "lets top-p look at what top-k has cut",
            "keep_top",
            (("probs = ordered.masked_fill(~keep, -torch.inf).softmax", "probs = ordered.softmax"),),
        ),
        Variant("takes k = 0 for none", "keep_top", (("(rank < top_k) | (top_k == 0)", "rank < top_k.clamp(min=1)"),)),
        Variant("keeps one too many", "keep_top", (("rank < top_k", "rank <= top_k"),)),
        Variant(
            "leaves the values sorted",
            "keep_top",
            (
                (
                    "torch.full_like(logits, -torch.inf).scatter(-1, order, ordered.masked_fill(~keep, -torch.inf))",
                    "ordered.masked_fill(~keep, -torch.inf)",
                ),
            ),
        ),
        Variant("uses the p of the first row for all", "keep_top", (("before < top_p", "before < top_p[0]"),)),
        Variant(
            "multiplies by the temperature",
            "race",
            (("logits / temperature.masked_fill", "logits * temperature.masked_fill"),),
        ),
        Variant(
            "adds the logarithm of the draw", "race", (("scores - exponential_draws", "scores + exponential_draws"),)
        ),
        Variant("subtracts the draw, not its logarithm", "race", ((").log()", ")"),)),
        Variant(
            "forgets the temperature",
            "race",
            (("scores = logits / temperature.masked_fill(is_greedy, 1.0)", "scores = logits"),),
        ),
        Variant("draws for greedy rows too", "race", (("torch.where(is_greedy, logits, scores)", "scores"),)),
        Variant(
            "uses the keys of the first row for all",
            "race",
            (("exponential_draws(keys,", "exponential_draws(keys[:1],"),),
        ),
        Variant("draws with torch's generator", "race", source=_TORCH_DRAWS),
    ),
    harmless=(
        Variant("adds probabilities up token by token", "keep_top", source=_THRESHOLD),
        Variant("divides probabilities by draws", "race", source=_QUOTIENTS),
        Variant("looks for the shortest time", "race", source=_SHORTEST_TIME),
    ),
    uses_torch=True,
)
