"""The exponential race over a row of logits in one read, greedy rows included."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime.jit import JITFunction

from nanovllm.paged_kv.kernels.launch import early, multiprocessors, wait_for_inputs

BLOCK = 2048  # logits a program looks at in one turn
MAX_TURNS = 16


@triton.jit
def _hash32(x):
    """As hashing.hash32, on uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _log2(x, FAST: tl.constexpr):
    return libdevice.fast_log2f(x) if FAST else tl.log2(x)


@triton.jit
def _minus_log_exponential(x, FAST: tl.constexpr):
    """-log(E) of the draw E = -log(u) that random bits x make, uint32; u as in sampler.draws_at.

    The GPU's own logarithm has 22 bits. That will do but where u is close to 1 and E to 0, which is where winners are:
    there E is the series of -log(1 - v), whose v = 1 - u is exact. The whole is within 1e-5 of exact logarithms, at
    less than half their instructions.
    """
    u = (x >> 9).to(tl.float32) * 1.1920928955078125e-07 + 5.9604644775390625e-08  # (.. + 0.5) * 2^-23
    v = 1.0 - u
    near = v * (1.0 + v * (0.5 + v * (0.3333333333 + v * (0.25 + v * 0.2))))
    draw = tl.where(v < 0.0625, near, -0.6931471805599453 * _log2(u, FAST))
    return -0.6931471805599453 * _log2(draw, FAST)


@triton.jit(do_not_specialize=["num_parts", "turns"])
def _race_kernel(
    logits_ptr,
    temperature_ptr,
    keys_ptr,
    best_score_ptr,
    best_index_ptr,
    vocab_size,
    logits_stride,
    num_parts,
    turns,
    BLOCK: tl.constexpr,
    FAST: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (row, part of the vocabulary): the winner of this part and its score.

    Each of BLOCK lanes keeps the best of its own `turns` logits; only at the end are the lanes compared.
    """
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_index = tl.zeros([BLOCK], tl.int32)
    wait_for_inputs(EARLY)  # the temperatures too may come from the kernel before: see Sampler.__call__
    temperature = tl.load(temperature_ptr + row)
    key0 = tl.load(keys_ptr + 2 * row).to(tl.uint32)
    key1 = tl.load(keys_ptr + 2 * row + 1).to(tl.uint32)
    random = temperature > 0
    per_degree = tl.where(random, 1.0 / tl.where(random, temperature, 1.0), 1.0)
    for turn in range(turns):
        index = (part * turns + turn) * BLOCK + lane
        inside = index < vocab_size
        score = tl.load(logits_ptr + row * logits_stride + index, mask=inside, other=float("-inf")).to(tl.float32)
        if random:
            x = _hash32(index.to(tl.uint32) * 0x9E3779B1 + key0)
            x = _hash32(x ^ key1)
            score = score * per_degree + _minus_log_exponential(x, FAST)
        better = (score > best) & inside
        best = tl.where(better, score, best)
        best_index = tl.where(better, index, best_index)
    highest = tl.max(best, 0)
    first = tl.min(tl.where(best == highest, best_index, 0x7FFFFFFF), 0)
    tl.store(best_score_ptr + row * num_parts + part, highest)
    tl.store(best_index_ptr + row * num_parts + part, first)


@triton.jit(do_not_specialize=["num_parts"])
def _winner_kernel(best_score_ptr, best_index_ptr, out_ptr, num_parts, BLOCK_P: tl.constexpr, EARLY: tl.constexpr):
    """One program a row: the winner among the parts; the lowest index on a tie, as argmax takes."""
    row = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, BLOCK_P)
    wait_for_inputs(EARLY)
    score = tl.load(best_score_ptr + row * num_parts + p, mask=p < num_parts, other=float("-inf"))
    _, part = tl.max(score, 0, return_indices=True)
    tl.store(out_ptr + row, tl.load(best_index_ptr + row * num_parts + part).to(tl.int64))


def exponential_race(logits: torch.Tensor, temperature: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """logits [n, V], temperature [n, 1] fp32 (0: greedy), keys [n, 2] int64 -> token ids [n] int64."""
    rows, vocab_size = logits.shape
    blocks = triton.cdiv(vocab_size, BLOCK)
    # As few turns as leave eight programs for each multiprocessor; a lane compared once costs as much as several turns.
    turns = max(1, min(MAX_TURNS, rows * blocks // (8 * multiprocessors(logits.device))))
    parts = triton.cdiv(blocks, turns)
    score = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    index = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    _race_kernel[(rows, parts)](
        logits,
        temperature,
        keys,
        score,
        index,
        vocab_size,
        logits.stride(0),
        parts,
        turns,
        BLOCK=BLOCK,
        FAST=isinstance(_race_kernel, JITFunction),  # the interpreter has no fast logarithm
        num_warps=4,
        **early(logits.device),
    )
    block_p = max(16, triton.next_power_of_2(blocks))  # the same for every number of parts: one compilation
    _winner_kernel[(rows,)](score, index, out, parts, BLOCK_P=block_p, num_warps=1, **early(logits.device))
    return out
