"""The ranks of a model: the order in which they start together, and one step on all of them."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any, TypeVar

import torch

from nanovllm.engine.rank_executor import RankExecutor
from nanovllm.engine.rank_failures import RankTimeouts
from nanovllm.engine.ranks import RankGroup
from nanovllm.engine.startup import Plan
from nanovllm.engine.step_codec import HasBlockTable, StepEncoder
from nanovllm.errors import ConfigError
from nanovllm.paged_kv.batch import SamplingInputs
from nanovllm.paged_kv.in_flight import Feed, PendingTokens
from nanovllm.paged_kv.model_runner import ModelRunner
from nanovllm.qwen3.distributed import CollectiveRecorder, DistributedGroup
from nanovllm.scheduler.sequence import ScheduledSlice

T = TypeVar("T")


class ModelRanks:
    """Every rank of one engine, started: weights loaded, connected, cache pools of the same number of blocks.

    runner: rank 0's. num_blocks: the minimum of what the ranks can afford, so that one block table suits all.
    Raises what rank 0 raises while it starts, or RankError for another rank; no process is left then.
    """

    def __init__(self, plan: Plan) -> None:
        size = plan.config.tensor_parallel_size
        self.size = size
        self._encoder = StepEncoder()
        # Ranks on a CPU share its cores, and rank 0 computes with its share only during a step.
        self._num_threads = max(1, torch.get_num_threads() // size) if plan.device_type == "cpu" else None
        if size > 1:
            _check_importable((*plan.prepare, *plan.setup))
        timeouts = RankTimeouts(plan.config.rank_start_timeout, plan.config.rank_timeout)
        self.group = RankGroup(size, RankExecutor, (plan,), (self._num_threads,), timeouts)
        try:
            self.group.every("build")
            if size > 1:
                self.group.every("connect", self.group.local.open_store(), in_thread=True)
            self.num_blocks: int = min(self.group.every("affordable_blocks"))
            self.group.every("open_pool", self.num_blocks)
        except BaseException:
            self.group.kill()
            raise

    @property
    def runner(self) -> ModelRunner:
        """Rank 0's model runner."""
        runner: ModelRunner = self.group.local.runner
        return runner

    @property
    def is_closed(self) -> bool:
        """True once the ranks have ended, by `close` or by a failure."""
        return self.group.is_closed

    def run(
        self,
        slices: Seq[ScheduledSlice],
        is_prefill: bool,
        sampling: SamplingInputs,
        live: Mapping[int, HasBlockTable],
    ) -> list[int | None]:
        """One step on every rank; the token ids come from rank 0. `live`: every unfinished sequence, by id."""
        if self.size == 1:
            return self.runner.run(slices, is_prefill, sampling)
        return self._step(lambda: self.runner.run(slices, is_prefill, sampling), slices, is_prefill, live)

    def launch(
        self,
        slices: Seq[ScheduledSlice],
        is_prefill: bool,
        sampling: SamplingInputs,
        live: Mapping[int, HasBlockTable],
        feed: Feed | None = None,
    ) -> PendingTokens:
        """Start a step on every rank without waiting for its tokens; `read` waits. `feed`: see `ModelRunner.launch`."""
        if self.size == 1:
            return self.runner.launch(slices, is_prefill, sampling, feed)
        start = partial(self.runner.launch, slices, is_prefill, sampling, feed)
        return self._step(start, slices, is_prefill, live, feed is not None)

    def read(self, pending: PendingTokens) -> list[int | None]:
        """The token ids of a launched step. Another rank that fails before they are there ends in RankError."""
        return self.group.here(pending.result)

    def _step(
        self,
        own_part: Callable[[], T],
        slices: Seq[ScheduledSlice],
        is_prefill: bool,
        live: Mapping[int, HasBlockTable],
        is_fed: bool = False,
    ) -> T:
        message = self._encoder.encode(slices, is_prefill, live, is_fed)
        if self.recorder is not None:
            self.recorder.start_step()
        result: T = self.group.step(message, lambda: self._with_fair_share(own_part))
        return result

    def _with_fair_share(self, own_part: Callable[[], T]) -> T:
        """Rank 0's part of a step, with its share of the cores; the caller's number of threads comes back after it."""
        if self._num_threads is None:
            return own_part()
        before = torch.get_num_threads()
        torch.set_num_threads(self._num_threads)
        try:
            return own_part()
        finally:
            torch.set_num_threads(before)

    # --- looking inside ---------------------------------------------------------------------------------------------

    @property
    def recorder(self) -> CollectiveRecorder | None:
        """Rank 0's recorder of collectives; None while it is off, and always for a single rank."""
        group = self.group.local.group
        return group.recorder if isinstance(group, DistributedGroup) else None

    def record_collectives(self, on: bool = True) -> CollectiveRecorder | None:
        """Switch rank 0's recorder on or off; it holds the collectives of the newest step. None for a single rank."""
        group = self.group.local.group
        if isinstance(group, DistributedGroup):
            group.recorder = CollectiveRecorder() if on else None
        return self.recorder

    def call(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """`function(executor, *args)` on every rank, in rank order; what it is and returns must be picklable."""
        return self.group.every("call", function, *args)

    def close(self) -> None:
        """Give back the memory of every rank and end the processes. Harmless twice."""
        self.group.close()


def _check_importable(functions: Seq[Callable[..., Any]]) -> None:
    """Refuse what a worker could not import, before there is a worker."""
    for function in functions:
        home = getattr(function, "__module__", None) or type(function).__module__
        if home == "__main__" or type(function).__module__ == "__main__":
            raise ConfigError(
                f"{function!r}, given as prepare or setup, is defined in the running script or notebook, which the "
                "other ranks' processes cannot import: move it into a module"
            )
