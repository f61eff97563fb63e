"""The order in which recorded attention begins the rows of a batch: the longest first, padding last."""

import numpy as np
import pytest
import torch

from nanovllm.paged_kv.batch import prepare_decode
from nanovllm.paged_kv.cuda_graphs import DecodeBuffers
from nanovllm.scheduler.sequence import ScheduledSlice

CPU = torch.device("cpu")


def filled(buffers: DecodeBuffers, starts: list[int], size: int) -> list[int]:
    """The order of a batch of sequences that have `starts` tokens cached."""
    slices = [ScheduledSlice(i, [7], start, start + 1, [0] * 4) for i, start in enumerate(starts)]
    ones = np.ones(len(starts), np.float32)
    buffers.fill(prepare_decode(slices, 16), ones, np.zeros((len(starts), 2), np.int64), None, size)
    order = buffers.context(size, 64).order
    assert order is not None
    return order.tolist()


def test_the_longest_first_ties_as_they_are_and_padding_last() -> None:
    buffers = DecodeBuffers(8, 4, CPU)
    assert filled(buffers, [5, 40, 5, 63], 8) == [3, 1, 0, 2, 4, 5, 6, 7]
    assert filled(buffers, [9], 1) == [0]
    assert filled(buffers, [9, 9, 9], 4) == [0, 1, 2, 3]  # nothing of the first batch is left


@pytest.mark.parametrize("size", [1, 7, 33])
def test_every_row_is_begun_once(size: int) -> None:
    starts = np.random.default_rng(size).integers(0, 60, size).tolist()
    order = filled(DecodeBuffers(40, 4, CPU), starts, size + 5)
    assert sorted(order) == list(range(size + 5))
    assert [starts[i] for i in order[:size]] == sorted(starts, reverse=True)
