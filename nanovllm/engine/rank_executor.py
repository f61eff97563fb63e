"""What one rank of an engine can do: build its shard, meet the others, size its cache, run a step, leave.

Rank 0 calls these methods on its own executor and, through the control channel, by name on every worker's.
"""

import threading
from typing import Any

import torch
from tqdm import tqdm

from nanovllm.engine.startup import Plan, affordable_blocks, build_runner, open_pool
from nanovllm.engine.step_codec import StepDecoder, StepMessage
from nanovllm.paged_kv.in_flight import SENT_BY_RANK_0
from nanovllm.paged_kv.model_runner import ModelRunner
from nanovllm.qwen3.distributed import DistributedGroup, Seat
from nanovllm.qwen3.parallel import TensorParallelGroup

CONNECT_SECONDS = 60.0  # for ranks that are all alive and ready to find each other


class RankExecutor:
    """One rank. Everything it needs to know is in the pickled plan; it holds no request and makes no choice.

    On every rank, a plan's `prepare` callables are called with this object before the model is built and its `setup`
    callables afterwards.
    """

    def __init__(self, seat: Seat, plan: Plan, num_threads: int | None = None) -> None:
        self.rank = seat.rank
        self.plan = plan
        self.group: TensorParallelGroup = TensorParallelGroup()
        if seat.size > 1:
            self.group = DistributedGroup(seat, self._device(plan), CONNECT_SECONDS)
        if seat.rank > 0:  # progress bars would lock through a named semaphore, which a killed process leaves behind
            tqdm.set_lock(threading.RLock())
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        self._decoder = StepDecoder()
        self._runner: ModelRunner | None = None

    def _device(self, plan: Plan) -> torch.device:
        if plan.device_type != "cuda":
            return torch.device("cpu")
        if self.rank > 0:
            torch.cuda.set_device(self.rank)  # a worker's process has no other use for its default device
        return torch.device("cuda", self.rank)

    @property
    def runner(self) -> ModelRunner:
        """The model runner. Raises RuntimeError before `build`."""
        if self._runner is None:
            raise RuntimeError(f"rank {self.rank} has not built its model")
        return self._runner

    def build(self) -> None:
        """Build the model shard and load its weights, between the plan's `prepare` and its `setup`."""
        for prepare in self.plan.prepare:
            prepare(self)
        self._runner = build_runner(self.plan, self.group)
        for setup in self.plan.setup:
            setup(self)

    def open_store(self) -> int:
        """Rank 0 alone: where the others will find it; a port of this machine."""
        assert isinstance(self.group, DistributedGroup)
        return self.group.open_store()

    def connect(self, port: int) -> None:
        """Meet the other ranks; all do it at the same time."""
        assert isinstance(self.group, DistributedGroup)
        self.group.connect(port)

    def affordable_blocks(self) -> int:
        """KV blocks that this rank's memory allows."""
        return affordable_blocks(self.plan, self.runner)

    def open_pool(self, num_blocks: int) -> None:
        """Create the cache pool and record CUDA graphs where they are wanted."""
        open_pool(self.plan, self.runner, num_blocks)

    def weight_bytes_read(self) -> int:
        """Bytes of the checkpoint that this rank took from disk; 0 for dummy weights."""
        return self.runner.weight_bytes_read

    def run_step(self, message: StepMessage) -> None:
        """A worker's part of a step; the sampled tokens are rank 0's business."""
        feed = SENT_BY_RANK_0 if message.is_fed else None
        self.runner.launch(self._decoder.decode(message), message.is_prefill, feed=feed)

    def call(self, function: Any, *args: Any) -> Any:
        """Run a picklable `function(executor, *args)` here, to look at or change any rank."""
        return function(self, *args)

    @property
    def waits_for_device(self) -> bool:
        """True where collectives run on the device and the host waits for them only at the end of a call."""
        return self.plan.device_type == "cuda"

    def abort(self) -> None:
        """Break off the collectives under way, from any thread."""
        if isinstance(self.group, DistributedGroup):
            self.group.abort()

    def exit(self) -> None:
        """Give back memory and leave the group. Harmless twice, or half-built."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()
        if isinstance(self.group, DistributedGroup):
            self.group.close()
