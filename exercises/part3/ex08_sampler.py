# ruff: noqa: F401 (imports that you may need)
"""3.8 Exponential-race sampler with top-p: draw a token without a cumulative sum and without a generator.

The race: token i runs for a time E_i / p_i, where E_i is a draw from the exponential distribution Exp(1). The first
one home is a sample from p. So the token is argmax p_i / E_i, or, in logarithms, where softmax's constant does not
matter:

    token = argmax ( logit_i / temperature - log E_i )

`exponential_draws(keys, vocab_size)` gives the E_i. They depend on the row's two key numbers only (made from the
request's seed and the position), so a request draws the same tokens whoever its batch mates are.

By hand: logits [1, 2], temperature 1, E = [0.1, 2.0]: 1 - log 0.1 = 3.303 and 2 - log 2 = 1.307. Token 0 wins, although
token 1 is more likely.

Top-k keeps the k most likely tokens. Top-p keeps the fewest most likely ones whose probabilities reach p: a token stays
while the sum *before* it is below p. By hand, probabilities 0.4 0.3 0.2 0.1 and p = 0.6: sums before are 0, 0.4, 0.7,
0.9, so two stay: 0.4 is not enough, and the token that crosses 0.6 is kept.
"""

from nanovllm.course import ExerciseNotDone
import torch
from torch import Tensor

from nanovllm.qwen3.sampler import Sampler, exponential_draws


def keep_top(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Set to -inf what top-k and top-p exclude; the others stay as they are, in their places.

    logits: [n, V] fp32, the temperature is applied already; not changed. top_k: [n, 1] int64, 0 keeps all. top_p:
    [n, 1] fp32, 1 keeps all. Each row has its own. Returns [n, V]. Top-k first: top-p looks at the probabilities of
    what it left (softmax over those). The most likely token always stays, however small p is.
    """
    raise ExerciseNotDone("3.8 sampler", "sort each row, decide by rank, and put the values back in place")


def race(sampler: Sampler, logits: Tensor, temperature: Tensor, keys: Tensor) -> Tensor:
    """One token a row. logits: [n, V], any float dtype, may hold -inf; not changed. temperature: [n, 1] fp32, 0 means
    greedy (the largest logit). keys: [n, 2] int64, for exponential_draws. Returns [n] int64. Compute in fp32.

    By hand: logits [[1, 5, 3]] with temperature [[0]] -> [1], whatever the keys are.
    """
    raise ExerciseNotDone("3.8 sampler", "the formula above for all rows; then torch.where for greedy ones")
