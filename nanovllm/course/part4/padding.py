"""What a recorded decode step would do with the rows of its buffers: played on the CPU, for the checks of 4.3."""

from typing import Any

import torch

from nanovllm.paged_kv.batch import prepare_decode
from nanovllm.paged_kv.cuda_graphs import DecodeBuffers
from nanovllm.scheduler.sequence import ScheduledSlice

MAX_NUM_SEQS, MAX_BLOCKS, NUM_BLOCKS, VOCABULARY = 6, 3, 20, 100


def replay(steps: list[dict[str, Any]], block_size: int) -> list[dict[str, Any]]:
    """Decode steps one after the other through the same buffers.

    steps: each {"batch": [[token, position, block table], ...], "size": rows of the graph}. Of every step: `rows`, for
    each sequence what its row feeds in, where it stores and which slots it reads; `padding`, for each row behind them
    [slot that it stores to or None, keys that it reads]; `exists`, whether all of it is there to be looked up.
    """
    buffers = DecodeBuffers(MAX_NUM_SEQS, MAX_BLOCKS, torch.device("cpu"))
    seen = []
    for step in steps:
        slices = [ScheduledSlice(i, [row[0]], row[1], row[1] + 1, row[2]) for i, row in enumerate(step["batch"])]
        buffers.fill(prepare_decode(slices, block_size), None, None, None, step["size"])
        seen.append(_seen(buffers, len(slices), step["size"], block_size))
    return seen


def _seen(buffers: DecodeBuffers, num_seqs: int, size: int, block_size: int) -> dict[str, Any]:
    held = {name: tensor[:size].tolist() for name, tensor in buffers.device.items()}
    rows = []
    for i in range(num_seqs):
        table = held["block_tables"][i]
        reads = [table[p // block_size] * block_size + p % block_size for p in range(held["context_lens"][i])]
        rows.append([held["input_ids"][i], held["positions"][i], held["slot_mapping"][i], reads])
    slots = [slot if slot >= 0 else None for slot in held["slot_mapping"][num_seqs:]]
    blocks = [block for table in held["block_tables"] for block in table]
    return {
        "rows": rows,
        "padding": [list(pair) for pair in zip(slots, held["context_lens"][num_seqs:], strict=True)],
        "exists": _within(held["input_ids"], VOCABULARY)
        and _within(blocks, NUM_BLOCKS)
        and min(held["positions"]) >= 0,
    }


def _within(numbers: list[int], count: int) -> bool:
    return all(0 <= number < count for number in numbers)
