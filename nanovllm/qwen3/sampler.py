"""From logits to token ids: greedy, or the exponential race with temperature, top-k and top-p.

The race: if E_i are independent Exp(1) draws, then argmax_i p_i / E_i is a sample from p. It needs no cumulative sum
and no wait for the device, unlike a multinomial draw. In logarithms p_i / E_i becomes logit_i / temperature - log E_i,
which is the Gumbel-max trick.

The draws are a pure function of (request seed, position of the new token, vocabulary index). There is no generator
state, so a seeded request samples the same tokens whatever its batch mates, chunking, preemptions, ranks or graphs.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nanovllm.paged_kv.batch import SamplingInputs
from nanovllm.qwen3.hashing import MASK32, hash32

CUT_ROWS = 64  # rows whose vocabulary is cut at once: sorting takes about 30 bytes a logit
FEW = 64  # up to this top-k a row is not sorted
CPU_LOGITS = 2**18  # that a CPU takes at once: larger intermediate results are new pages of memory each time

# The constants of splitmix64.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


@dataclass
class SamplingTensors:
    """Sampling inputs on the device; n rows of logits.

    temperature [n, 1] fp32 (0: greedy); keys [n, 2] int64, two 32-bit numbers that seed row i's draws;
    top_k [n, 1] int64 (0: all) and top_p [n, 1] fp32, or None when no row asks for either.
    any_random: False when every row is greedy.
    few, cut: the rows [.] int64 that have a top-k of at most FEW, and those whose vocabulary is cut otherwise; whole:
    the others, greedy ones among them. None for no such row.
    """

    temperature: Tensor
    keys: Tensor
    top_k: Tensor | None
    top_p: Tensor | None
    any_random: bool
    few: Tensor | None = None
    cut: Tensor | None = None
    whole: Tensor | None = None


def mix(z: np.ndarray) -> np.ndarray:
    """One round of splitmix64 (Steele et al., 2014) on [n] uint64."""
    z = (z ^ (z >> _SHIFTS[0])) * _FACTORS[0]
    z = (z ^ (z >> _SHIFTS[1])) * _FACTORS[1]
    return z ^ (z >> _SHIFTS[2])


def row_keys(seed: np.ndarray, position: np.ndarray, mixed: np.ndarray | None = None) -> np.ndarray:
    """[n, 2] int64 in 0 .. 2^32-1: seed and position mixed by two rounds of splitmix64.

    mixed: `mixed_seeds(seed)`, where it is known already.
    """
    z = mix((mixed_seeds(seed) if mixed is None else mixed) + position.astype(np.uint64) * _GOLDEN)
    keys = np.empty((len(z), 2), np.int64)
    keys[:, 0], keys[:, 1] = z >> np.uint64(32), z & np.uint64(MASK32)
    return keys


def mixed_seeds(seed: np.ndarray) -> np.ndarray:
    """[n] uint64: the first round, which is the same in every step of a request."""
    return mix(seed.astype(np.uint64) + _GOLDEN)


def exponential_draws(keys: Tensor, vocab_size: int) -> Tensor:
    """[n, vocab_size] fp32 draws from Exp(1), a function of `keys` [n, 2] and the vocabulary index alone."""
    return draws_at(keys, torch.arange(vocab_size, device=keys.device, dtype=torch.int64))


def draws_at(keys: Tensor, index: Tensor) -> Tensor:
    """The draws of these vocabulary indices, [m] or [n, m] int64; [n, m]."""
    x = hash32((index * 0x9E3779B1 + keys[:, :1]) & MASK32)
    x = hash32(x ^ keys[:, 1:])
    # In (0, 1), never at its ends: 23 bits and a half fit fp32's 24; one more bit would round up to 1, a draw of 0,
    # which wins every race.
    uniform = ((x >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(uniform)


def keep_top(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Set to -inf what top-k and top-p exclude. logits [n, V] (temperature applied), top_k and top_p [n, 1].

    top_p keeps the smallest set of most likely tokens whose probability reaches it: a token stays while the
    probability *before* it is below top_p, so the one that crosses the threshold stays too. Of equal logits the lower
    index counts as more likely.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    keep = (rank < top_k) | (top_k == 0)
    probs = ordered.masked_fill(~keep, -torch.inf).softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs
    keep &= (before < top_p) | (top_p >= 1) | (rank == 0)
    return torch.full_like(logits, -torch.inf).scatter(-1, order, ordered.masked_fill(~keep, -torch.inf))


def likeliest(logits: Tensor, count: int) -> Tensor:
    """[n, count] int64: where the largest of logits [n, V] fp32 are, in that order; equal ones by index.

    Value and index make one integer, so no two are equal and the answer does not depend on how the largest are found.
    """
    bits = logits.view(torch.int32)
    ascending = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)  # integers in the order of the floats
    index = torch.arange(logits.shape[-1], device=logits.device)
    ranked = (ascending << 32) | (MASK32 - index)
    return MASK32 - (ranked.topk(min(count, logits.shape[-1]), dim=-1).values & MASK32)


class Sampler:
    """Samples one token a row. Rank 0 alone calls it, so ranks cannot disagree.

    fused: run the race as one Triton kernel (GPUs); rows with top-k or top-p take the torch path all the same.
    """

    def __init__(self, fused: bool = False) -> None:
        self._race = None
        self._seed = self._mixed = np.empty(0, np.int64)  # of the newest step
        if fused:
            from nanovllm.qwen3.kernels.race import exponential_race

            self._race = exponential_race

    def row_keys(self, inputs: SamplingInputs) -> np.ndarray:
        """[n, 2] int64: see `row_keys`."""
        if inputs.seed is not self._seed:  # steps of the same batch share the array
            self._seed, self._mixed = inputs.seed, mixed_seeds(inputs.seed)
        return row_keys(inputs.seed, inputs.position, self._mixed)

    def prepare(self, inputs: SamplingInputs, device: torch.device) -> SamplingTensors:
        """Move a step's sampling inputs to the device."""

        def column(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).unsqueeze(1).to(device, non_blocking=True)

        tensors = SamplingTensors(
            temperature=column(inputs.temperature),
            keys=torch.from_numpy(self.row_keys(inputs)).to(device, non_blocking=True),
            top_k=None,
            top_p=None,
            any_random=bool((inputs.temperature > 0).any()),
        )
        if inputs.cuts_vocabulary and tensors.any_random:
            is_random = inputs.temperature > 0
            few = is_random & (inputs.top_k > 0) & (inputs.top_k <= FEW)
            cut = is_random & ~few & ((inputs.top_k > 0) | (inputs.top_p < 1))
            rows = {"few": few, "cut": cut, "whole": ~(few | cut)}
            moved: dict[str, Any] = {
                name: torch.from_numpy(r.nonzero()[0]).to(device) for name, r in rows.items() if r.any()
            }
            tensors = replace(tensors, top_k=column(inputs.top_k), top_p=column(inputs.top_p), **moved)
        return tensors

    def __call__(self, logits: Tensor, tensors: SamplingTensors) -> Tensor:
        """logits [n, vocab_size] -> token ids [n] int64."""
        if not tensors.any_random:
            return logits.argmax(dim=-1)
        at_once = logits.shape[0] if logits.is_cuda else max(1, CPU_LOGITS // logits.shape[1])
        if tensors.top_k is None:
            parts = (x.split(at_once) for x in (logits, tensors.temperature, tensors.keys))
            return torch.cat([self.race(*part) for part in zip(*parts, strict=True)])
        chosen = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
        for rows in () if tensors.whole is None else tensors.whole.split(at_once):
            chosen[rows] = self.race(logits[rows], tensors.temperature[rows], tensors.keys[rows])
        sorted_at_once = CUT_ROWS if logits.is_cuda else max(8, at_once)  # a CPU's threads sort a row each
        for kind, among, size in (
            (tensors.few, self._race_of_few, min(at_once, CUT_ROWS)),
            (tensors.cut, self._race_of_cut, sorted_at_once),
        ):
            for rows in () if kind is None else kind.split(size):
                scaled = logits[rows].float() / tensors.temperature[rows]
                chosen[rows] = among(scaled, tensors, rows)
        return chosen

    def _race_of_few(self, scaled: Tensor, tensors: SamplingTensors, rows: Tensor) -> Tensor:
        """Those whose top-k is small race among their FEW likeliest tokens; nothing of the size of the vocabulary."""
        assert tensors.top_k is not None
        assert tensors.top_p is not None
        tokens = likeliest(scaled, FEW)
        kept = keep_top(scaled.gather(1, tokens), tensors.top_k[rows], tensors.top_p[rows])
        scores = kept - draws_at(tensors.keys[rows], tokens).log()
        return tokens.gather(1, scores.argmax(dim=-1, keepdim=True)).squeeze(1)

    def _race_of_cut(self, scaled: Tensor, tensors: SamplingTensors, rows: Tensor) -> Tensor:
        """The others race with the rest of their vocabulary at -inf."""
        assert tensors.top_k is not None
        assert tensors.top_p is not None
        kept = keep_top(scaled, tensors.top_k[rows], tensors.top_p[rows])
        return self.race(kept, torch.ones_like(tensors.top_p[rows]), tensors.keys[rows])  # divided already

    def race(self, logits: Tensor, temperature: Tensor, keys: Tensor) -> Tensor:
        """logits [n, vocab_size], temperature [n, 1] (0: greedy), keys [n, 2] -> token ids [n] int64."""
        if self._race is not None:
            return self._race(logits, temperature, keys)
        logits = logits.float()
        is_greedy = temperature == 0
        scores = logits / temperature.masked_fill(is_greedy, 1.0)
        scores = scores - exponential_draws(keys, logits.shape[-1]).log()
        return torch.where(is_greedy, logits, scores).argmax(dim=-1)
