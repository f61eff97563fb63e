"""Setup functions for engines under test: a planted failure in one rank, and ranks that can afford different pools."""

import os
import signal
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fault:
    """Fails on `rank` in `phase`: start, connect, prefill, decode, exit; by `kind`: raise, hang, kill, stop."""

    rank: int
    phase: str
    kind: str

    def __call__(self, executor: Any) -> None:
        if executor.rank != self.rank:
            return
        if self.phase == "start":
            self.happen()
        if self.phase == "connect":
            executor.connect = lambda port: self.happen()
            return
        runner = executor.runner
        if self.phase == "exit":
            runner.close = self.happen
            return
        launch = runner.launch

        def failing(slices: Any, is_prefill: bool, *rest: Any, **more: Any) -> Any:
            if is_prefill == (self.phase == "prefill"):
                self.happen()
            return launch(slices, is_prefill, *rest, **more)

        runner.launch = failing

    def happen(self) -> None:
        if self.kind == "raise":
            raise ValueError(f"planted in {self.phase}")
        if self.kind == "hang":
            time.sleep(3600)
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[self.kind])


def rank_1_affords_less(executor: Any) -> None:
    """Blocks: 41 on rank 0, 23 on rank 1, 40 on the others."""
    executor.affordable_blocks = lambda: {0: 41, 1: 23}.get(executor.rank, 40)


def pool_shape(executor: Any) -> tuple[int, int]:
    """(blocks, block size) of a rank's own pool."""
    cache = executor.runner.cache
    return cache.num_blocks, cache.spec.block_size


def num_known_tables(executor: Any) -> int:
    """Block tables that a worker remembers."""
    return len(executor._decoder.tables)


def num_threads(executor: Any) -> int:
    """Threads that torch uses on a rank."""
    import torch

    return torch.get_num_threads()
