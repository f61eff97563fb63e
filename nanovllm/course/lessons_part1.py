"""What the notebooks of part 1 use: a scheduler without a model, and what can be counted in a trace."""

from itertools import pairwise
from typing import Any

from nanovllm.sampling_params import SamplingParams
from nanovllm.scheduler import BlockManager, Scheduler, Sequence
from nanovllm.trace.record import Record
from nanovllm.trace.state import State, capture, encode_state
from nanovllm.trace.trace import Trace


class ByHand:
    """A scheduler and its block manager, with you as the model: `step` runs what was scheduled and samples your token.

    The same records come out of it as of a watched engine (without tensors and times), so the same views draw them.
    num_blocks, block_size: the pool. The rest are the limits of `Scheduler`, small enough here to count by hand.
    """

    def __init__(
        self,
        num_blocks: int = 12,
        block_size: int = 4,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 8,
        max_model_len: int = 64,
    ) -> None:
        manager = BlockManager(num_blocks, block_size)
        self.scheduler = Scheduler(manager, max_num_seqs, max_num_batched_tokens, max_model_len)
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
        header = {"limits": {"block_size": block_size, "num_blocks": num_blocks, **limits}}
        self.trace = Trace(header)
        self._last, self._known, self._next_id = State(), dict[int, int](), 0

    @property
    def blocks(self) -> BlockManager:
        """The block manager."""
        return self.scheduler.block_manager

    @property
    def record(self) -> Record:
        """The newest step."""
        return self.trace[-1]

    def add(self, token_ids: list[int], max_tokens: int = 8) -> Sequence:
        """Queue a request and return it. Raises RequestError when it could never run."""
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        seq = Sequence(self._next_id, token_ids, params, self.blocks.block_size)
        self.scheduler.add(seq)
        self._next_id += 1
        return seq

    def step(self, token: int = 1) -> Record:
        """Schedule, "compute", postprocess; each request whose last known token was computed samples `token`."""
        before = capture(self.scheduler)
        seqs, is_prefill = self.scheduler.schedule()
        scheduled = capture(self.scheduler)
        live = dict(self.scheduler.sequences)
        sampled = [token if seq.scheduled_slice().needs_token else None for seq in seqs]
        self.scheduler.postprocess(seqs, sampled, is_prefill)
        leavers = [seq for seq_id, seq in live.items() if seq_id not in self.scheduler.sequences]
        after = capture(self.scheduler, leavers)
        line: dict[str, Any] = {
            "i": len(self.trace),
            "k": "idle" if not seqs else "prefill" if is_prefill else "decode",
            "t": 0.0,
            "ph": {},
            "b": encode_state(self._last, before),
            "s": encode_state(before, scheduled),
            "a": encode_state(scheduled, after),
            "d": [[d.kind.value, d.seq_id, d.reason, dict(d.facts)] for d in self.scheduler.decisions],
            "ar": [(i, seq.num_prompt_tokens) for i, seq in live.items() if i not in self._known],
            "new": {str(i): seq.token_ids[self._known.get(i, 0) :] for i, seq in live.items()},
        }
        self._known |= {i: seq.num_tokens for i, seq in live.items()}
        self._last = after
        self.trace.append(line)
        return self.record


def token_steps(trace: Trace, request: int) -> list[int]:
    """The steps of `trace` in which `request` got a new token."""
    found = []
    for record in trace:
        before, after = (state.column("num_tokens").get(request) for state in (record.scheduled, record.after))
        if before is not None and after is not None and after > before:
            found.append(record.step)
    return found


def longest_gap(trace: Trace, request: int) -> int:
    """The most steps from one token of `request` to its next one; 1 when it got one in every step."""
    return max((b - a for a, b in pairwise(token_steps(trace, request))), default=0)
