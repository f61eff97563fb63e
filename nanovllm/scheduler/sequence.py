"""One request as the scheduler sees it: its tokens, how many of them are cached, and the blocks that hold them."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from nanovllm.sampling_params import SamplingParams


class SequenceStatus(Enum):
    """Where a sequence is: in the waiting deque, in the running deque, or in neither."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


_FINISHED = SequenceStatus.FINISHED  # looked up for each request in each step, and slowly through the class


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"  # an end-of-sequence or stop token was sampled
    LENGTH = "length"  # max_tokens or max_model_len was reached
    ABORT = "abort"  # the caller cancelled it


@dataclass(slots=True)
class ScheduledSlice:
    """What one step needs to know of a sequence: all that batch preparation reads, and all that travels to other ranks.

    token_ids: the tokens whose K/V this step computes (a prompt slice in prefill, one token in decode).
    start: the position of the first of them; positions 0 .. start-1 are already cached.
    num_tokens: tokens that the sequence has in all (start + len(token_ids) unless this is a partial chunk).
    block_table: the physical block of each logical block, covering positions 0 .. start + len(token_ids) - 1 at least.
    """

    seq_id: int
    token_ids: list[int]
    start: int
    num_tokens: int
    block_table: list[int]

    @property
    def end(self) -> int:
        """The position after the last scheduled token, which is the number of keys that it attends to."""
        return self.start + len(self.token_ids)

    @property
    def needs_token(self) -> bool:
        """True when the last known token is in this step, so that its logits predict the next one."""
        return self.end == self.num_tokens


class Sequence:
    """A request: prompt, completion so far, and its place in the KV cache. Rank 0 alone owns and changes it.

    num_cached_tokens counts the tokens whose K/V are in the cache; they are always a prefix of `token_ids`. Between
    two steps of a running sequence exactly one token is uncached: the one sampled last, which the next step feeds in.
    """

    __slots__ = (
        "block_hashes",
        "block_size",
        "block_table",
        "finish_reason",
        "num_cached_tokens",
        "num_preemptions",
        "num_prefix_tokens",
        "num_prompt_tokens",
        "num_recomputed_tokens",
        "num_scheduled_tokens",
        "num_tokens",
        "sampling_params",
        "seed",
        "seq_id",
        "status",
        "token_ids",
    )

    def __init__(
        self,
        seq_id: int,
        prompt_token_ids: list[int],
        sampling_params: SamplingParams | None = None,
        block_size: int = 256,
        seed: int = 0,
    ) -> None:
        self.seq_id = seq_id
        self.token_ids = list(prompt_token_ids)  # prompt, then completion
        self.num_tokens = len(self.token_ids)
        self.num_prompt_tokens = self.num_tokens
        self.sampling_params = sampling_params or SamplingParams()
        self.block_size = block_size
        self.seed = seed  # of this request's random numbers; see qwen3/sampler.py
        self.status = SequenceStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.num_cached_tokens = 0
        self.num_scheduled_tokens = 0  # of the step in flight; 0 between steps
        self.num_prefix_tokens = 0  # found in the prefix cache when last admitted
        self.num_preemptions = 0
        self.num_recomputed_tokens = 0  # cached once, lost to preemption, not found again
        self.block_table: list[int] = []
        self.block_hashes: list[int] = []  # chained hashes of the leading full blocks, computed once each

    def __len__(self) -> int:
        return self.num_tokens

    def __repr__(self) -> str:
        return (
            f"Sequence({self.seq_id}, {self.status.value}, {self.num_prompt_tokens}+{self.num_completion_tokens} "
            f"tokens, {self.num_cached_tokens} cached, blocks {self.block_table})"
        )

    @property
    def last_token(self) -> int:
        """The newest token, which the next decode step feeds in."""
        return self.token_ids[-1]

    @property
    def num_completion_tokens(self) -> int:
        """Tokens sampled so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def completion_token_ids(self) -> list[int]:
        """The sampled tokens, oldest first."""
        return self.token_ids[self.num_prompt_tokens :]

    @property
    def num_blocks(self) -> int:
        """Blocks that hold all known tokens: ceil(num_tokens / block_size)."""
        return (self.num_tokens + self.block_size - 1) // self.block_size

    @property
    def last_block_num_tokens(self) -> int:
        """Tokens in the last block, 1 .. block_size."""
        return self.num_tokens - (self.num_blocks - 1) * self.block_size

    @property
    def is_finished(self) -> bool:
        """True once it has left both deques for good."""
        return self.status is _FINISHED

    def block(self, index: int) -> list[int]:
        """The tokens of logical block `index` (fewer than block_size in the last one)."""
        if not 0 <= index < self.num_blocks:
            raise IndexError(f"sequence {self.seq_id} has {self.num_blocks} blocks; there is no block {index}")
        return self.token_ids[index * self.block_size : (index + 1) * self.block_size]

    def append_token(self, token_id: int) -> None:
        """Add a sampled token; its K/V are not cached until the next step has fed it in."""
        self.token_ids.append(token_id)
        self.num_tokens += 1

    def scheduled_slice(self) -> ScheduledSlice:
        """What the step in flight needs of this sequence."""
        start = self.num_cached_tokens
        tokens = self.token_ids[start : start + self.num_scheduled_tokens]
        return ScheduledSlice(self.seq_id, tokens, start, self.num_tokens, self.block_table)

    def snapshot(self) -> dict[str, Any]:
        """The state as plain values, for traces, tests, views and error messages."""
        return {
            "seq_id": self.seq_id,
            "status": self.status.value,
            "finish_reason": self.finish_reason.value if self.finish_reason else None,
            "num_tokens": self.num_tokens,
            "num_prompt_tokens": self.num_prompt_tokens,
            "num_cached_tokens": self.num_cached_tokens,
            "num_scheduled_tokens": self.num_scheduled_tokens,
            "num_prefix_tokens": self.num_prefix_tokens,
            "num_preemptions": self.num_preemptions,
            "num_recomputed_tokens": self.num_recomputed_tokens,
            "block_table": list(self.block_table),
            "last_token": self.last_token,
        }
