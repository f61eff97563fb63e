"""Random paged batches as plain values, and their answers in plain Python: no torch, no function of the engine."""

import math
import random
from typing import Any

from nanovllm.course.numeric import numbers

NOBODY = 9.0  # stands in every slot that no sequence owns, so that reading one shows


def tables_for(rng: random.Random, blocks_each: list[int]) -> list[list[int]]:
    """A block table for each sequence, with different blocks in no order; some blocks of the pool are nobody's."""
    pool = list(range(sum(blocks_each) + 2))
    rng.shuffle(pool)
    return [[pool.pop() for _ in range(count)] for count in blocks_each]


def ceil_div(number: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-number // by)


def padded(tables: list[list[int]], widths: list[int]) -> list[list[int]]:
    """The first widths[i] entries of each table, then zeros up to the widest."""
    widest = max(widths)
    return [table[:width] + [0] * (widest - width) for table, width in zip(tables, widths, strict=True)]


def slot(table: list[int], position: int, block_size: int) -> int:
    """The slot of a position of one sequence."""
    return table[position // block_size] * block_size + position % block_size


def filled_cache(
    rng: random.Random, tables: list[list[int]], lengths: list[int], block_size: int, heads: int, width: int
) -> Any:
    """One cache [num_blocks, block_size, heads, width]: numbers in the slots of the sequences, NOBODY elsewhere."""
    num_blocks = max(max(table) for table in tables) + 2
    cache = [[[[NOBODY] * width for _ in range(heads)] for _ in range(block_size)] for _ in range(num_blocks)]
    for table, length in zip(tables, lengths, strict=True):
        for position in range(length):
            cache[table[position // block_size]][position % block_size] = numbers(rng, heads, width)
    return cache


def rows_of(cache: Any, table: list[int], length: int) -> list[Any]:
    """Positions 0 .. length - 1 of one sequence, read from a cache: [length, heads, width]."""
    block_size = len(cache[0])
    return [cache[table[position // block_size]][position % block_size] for position in range(length)]


def attend(query: list[Any], keys: list[Any], values: list[Any], scale: float) -> list[list[float]]:
    """Attention of one row: query [Hq, D] to keys and values [L, Hkv, D]; [Hq, D]."""
    group = len(query) // len(keys[0])
    out = []
    for head, row in enumerate(query):
        scores = [sum(a * b for a, b in zip(row, key[head // group], strict=True)) * scale for key in keys]
        highest = max(scores)
        weights = [math.exp(score - highest) for score in scores]
        total = sum(weights)
        columns = zip(*(value[head // group] for value in values), strict=True)
        out.append([sum(w * x for w, x in zip(weights, column, strict=True)) / total for column in columns])
    return out


def causal(queries: list[Any], keys: list[Any], values: list[Any], scale: float) -> list[Any]:
    """Attention of one sequence's rows: query i sees the keys up to its own position."""
    before = len(keys) - len(queries)
    return [attend(q, keys[: before + i + 1], values[: before + i + 1], scale) for i, q in enumerate(queries)]
