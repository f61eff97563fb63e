"""Drives a scheduler by hand: what the engine does, with the sampled tokens given by the test."""

from typing import Any

from nanovllm.sampling_params import SamplingParams
from nanovllm.scheduler import BlockManager, Schedule, Scheduler, Sequence


class Driver:
    """A scheduler with small limits and short ways to add requests and play steps."""

    def __init__(
        self,
        block_size: int = 4,
        num_blocks: int = 16,
        max_num_seqs: int = 4,
        budget: int = 64,
        max_model_len: int = 64,
        eos: tuple[int, ...] = (),
        **manager_options: Any,
    ) -> None:
        self.block_size = block_size
        self.manager = BlockManager(num_blocks, block_size, **manager_options)
        self.scheduler = Scheduler(self.manager, max_num_seqs, budget, max_model_len, frozenset(eos))
        self.schedule = Schedule([], False)

    def sequence(self, seq_id: int, prompt: list[int], **params: Any) -> Sequence:
        return Sequence(seq_id, prompt, SamplingParams(**params), block_size=self.block_size)

    def add(self, seq_id: int, prompt: list[int], **params: Any) -> Sequence:
        seq = self.sequence(seq_id, prompt, **params)
        self.scheduler.add(seq)
        return seq

    def begin(self) -> list[int]:
        """Schedule a step and return the ids of its batch."""
        self.schedule = self.scheduler.schedule()
        self.scheduler.check_integrity()
        return [seq.seq_id for seq in self.schedule.seqs]

    def end(self, token: int = 7) -> None:
        """Book the step; every sequence that needs a token gets this one."""
        seqs, is_prefill = self.schedule
        tokens = [token if seq.scheduled_slice().needs_token else None for seq in seqs]
        self.scheduler.postprocess(seqs, tokens, is_prefill)
        self.scheduler.check_integrity()

    def step(self, token: int = 7) -> list[int]:
        batch = self.begin()
        self.end(token)
        return batch

    def run(self, limit: int = 500) -> None:
        """Step until nothing is left."""
        for _ in range(limit):
            if self.scheduler.is_finished():
                return
            self.step()
        raise AssertionError(f"not finished after {limit} steps: {self.scheduler.snapshot()}")

    @property
    def reasons(self) -> list[str]:
        return [decision.reason for decision in self.scheduler.decisions]

    def hits(self, prompt: list[int]) -> int:
        """Blocks that a request with this prompt would find in the prefix cache now."""
        return len(self.manager.match_prefix(self.sequence(999, prompt)))
