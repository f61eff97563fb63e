"""Several ranks as threads of one process: real gloo collectives without the cost of starting processes."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from nanovllm.qwen3.distributed import DistributedGroup
from nanovllm.qwen3.parallel import TensorParallelGroup


@dataclass
class ThreadSeat:
    rank: int
    size: int
    entered: int = 0
    left: int = 0

    def enter_collective(self) -> None:
        self.entered += 1

    def leave_collective(self) -> None:
        self.left += 1


def on_ranks(size: int, work: Callable[[TensorParallelGroup], Any], seats: list[ThreadSeat] | None = None) -> list[Any]:
    """`work(group)` on `size` connected ranks at once; the results in rank order."""
    if size == 1:
        return [work(TensorParallelGroup())]
    seats = seats or [ThreadSeat(rank, size) for rank in range(size)]
    groups = [DistributedGroup(seat, torch.device("cpu"), 30) for seat in seats]
    port = groups[0].open_store()
    outcome: dict[int, Any] = {}

    def target(group: DistributedGroup) -> None:
        try:
            group.connect(port)
            with torch.inference_mode():  # which is a state of the thread
                outcome[group.rank] = work(group)
        except BaseException as error:
            outcome[group.rank] = error

    threads = [threading.Thread(target=target, args=(g,), daemon=True) for g in groups]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    for g in groups:
        g.close()
    for rank in range(size):
        if isinstance(outcome.get(rank), BaseException):
            raise outcome[rank]
    return [outcome[rank] for rank in range(size)]
