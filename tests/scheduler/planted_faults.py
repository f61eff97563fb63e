"""Faulty and harmless variants of the scheduler's classes, each one small change to the source of a real method.

The faults are those that small engines had, and the slips a learner is likely to make. A change whose text is no longer
found in the method raises, so this table cannot quietly stop planting.
"""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nanovllm.course.oracle import scheduler_factory
from nanovllm.scheduler import BlockManager, Scheduler, Sequence
from nanovllm.scheduler.block_manager import AllocationPlan


def changed(cls: type, method: str, *changes: tuple[str, str]) -> type:
    """A subclass of `cls` in which each (old, new) text of `method` is replaced; each must occur exactly once."""
    source = textwrap.dedent(inspect.getsource(getattr(cls, method)))
    for old, new in changes:
        if source.count(old) != 1:
            raise ValueError(f"{cls.__name__}.{method} contains {old!r} {source.count(old)} times, not once")
        source = source.replace(old, new)
    namespace: dict[str, Any] = {}
    exec(source, dict(vars(inspect.getmodule(cls))), namespace)
    return type(f"Changed{cls.__name__}", (cls,), {method: namespace[method]})


@dataclass(frozen=True)
class Variant:
    """Classes to use instead of the real ones. small: requests that the shrunk counterexample may have."""

    name: str
    scheduler: Callable[..., Any] = Scheduler
    block_manager: Callable[..., Any] = BlockManager
    sequence: Callable[..., Any] = Sequence
    small: int = 3

    @property
    def make_scheduler(self) -> Callable[..., Any]:
        return scheduler_factory(self.scheduler, self.block_manager)


def in_scheduler(name: str, method: str, *changes: tuple[str, str]) -> Variant:
    return Variant(name, scheduler=changed(Scheduler, method, *changes))


def in_blocks(name: str, method: str, *changes: tuple[str, str]) -> Variant:
    return Variant(name, block_manager=changed(BlockManager, method, *changes))


class PublishesWhenAllocating(BlockManager):
    """Blocks can be found as soon as they are reserved."""

    def allocate(self, seq: Sequence, plan: AllocationPlan | None = None) -> None:
        super().allocate(seq, plan)
        cached, seq.num_cached_tokens = seq.num_cached_tokens, seq.num_tokens
        self.publish(seq, cached)
        seq.num_cached_tokens = cached


class WipesWhenTakingBack(BlockManager):
    """A free block that is found again loses its hash, as if it were recycled."""

    def _take(self, block_id: int) -> None:
        block = self.blocks[block_id]
        if block.ref_count == 0:
            self.hash_to_block_id.pop(block.hash, None)
            block.forget()
        super()._take(block_id)


class NoCache(BlockManager):
    """Never finds a prefix."""

    def match_prefix(self, seq: Sequence) -> list[int]:
        return []


FORGETS_ENTRY = (
    "if block.hash is not None and self.hash_to_block_id.get(block.hash) == block_id:",
    "if False:",
)

FAULTS = [
    # blocks and the prefix cache
    Variant("published before it is computed", block_manager=PublishesWhenAllocating),
    Variant("taking back a cached free block wipes its hash", block_manager=WipesWhenTakingBack),
    Variant("prefix cache never hits", block_manager=NoCache),
    in_blocks("stale entry survives recycling", "_recycle", FORGETS_ENTRY, ("block.forget()", "pass")),
    in_blocks("only own tokens compared", "_lookup", ("block.parent_id == parent_id and ", "")),
    in_blocks("hash trusted without comparing", "_lookup", ("return block if same else None", "return block")),
    in_blocks("fully cached prompt leaves no token", "match_prefix", ("(seq.num_tokens - 1) //", "seq.num_tokens //")),
    in_blocks("hash not chained", "block_hash", ("hashes[-1] if hashes else None", "None")),
    in_blocks(
        "whole prompt published after its first chunk",
        "publish",
        ("last = seq.num_cached_tokens //", "last = seq.num_tokens //"),
    ),
    in_blocks("first block of a chunk not published", "publish", ("range(first, last)", "range(first + 1, last)")),
    in_blocks("reference not counted when shared", "_take", ("block.ref_count += 1", "block.ref_count = 1")),
    in_blocks("reused free block stays on the free list", "_take", ("del self.free_block_ids[block_id]", "pass")),
    in_blocks(
        "free hits counted as free blocks", "plan", ("self.num_free_blocks - num_free_hits", "self.num_free_blocks")
    ),
    in_blocks(
        "new blocks taken before the hits",
        "allocate",
        (
            "for block_id in plan.cached",
            "new = [self._recycle() for _ in range(plan.num_new_blocks)]\n    for block_id in plan.cached",
        ),
        (
            "        self._take(block_id)\n    new = [self._recycle() for _ in range(plan.num_new_blocks)]",
            "        self._take(block_id)",
        ),
    ),
    in_blocks("block taken one token early", "append", ("num_ahead > len", "num_ahead >= len")),
    in_blocks("block taken one token late", "append", ("num_ahead > len", "num_ahead - 1 > len")),
    in_blocks("room checked one token early", "can_append", ("seq.num_tokens <= len", "seq.num_tokens < len")),
    in_blocks("blocks rounded down", "blocks_for", ("(num_tokens + self.block_size - 1)", "num_tokens")),
    in_blocks("freed blocks stay in the table", "deallocate", ("seq.block_table = []", "pass")),
    in_blocks("cached tokens kept after freeing", "deallocate", ("seq.num_cached_tokens = 0", "pass")),
    in_blocks("shared block freed by its first owner", "deallocate", ("if block.ref_count == 0:", "if True:")),
    # the schedule
    in_scheduler(
        "chunk sized before the prefix match",
        "_schedule_prefill",
        (
            "        if seq.block_table:\n",
            "        needed = seq.num_tokens - seq.num_cached_tokens\n        if seq.block_table:\n",
        ),
        ("        needed = seq.num_tokens - seq.num_cached_tokens\n        seq.num_sch", "        seq.num_sch"),
    ),
    in_scheduler("chunk ignores the budget", "_schedule_prefill", ("min(needed, budget)", "needed")),
    in_scheduler("budget not used up", "_schedule_prefill", ("budget -= seq.num_scheduled_tokens", "pass")),
    in_scheduler(
        "max_num_seqs ignores the running set",
        "_schedule_prefill",
        ("if len(self.running) >= self.max_num_seqs:", "if len(scheduled) >= self.max_num_seqs:"),
    ),
    in_scheduler(
        "max_num_seqs off by one",
        "_schedule_prefill",
        ("if len(self.running) >= self.max_num_seqs:", "if len(self.running) > self.max_num_seqs:"),
    ),
    in_scheduler(
        "partial chunk leaves the queue", "_schedule_prefill", ("if seq.num_scheduled_tokens < needed:", "if False:")
    ),
    in_scheduler("admits without blocks", "_schedule_prefill", ("if plan.missing:", "if False:")),
    in_scheduler("newest request first", "add", ("self.waiting.append(seq)", "self.waiting.appendleft(seq)")),
    in_scheduler("too large a request accepted", "check_fits", ("if needed > total:", "if False:")),
    in_scheduler("last fitting request refused", "check_fits", ("self.max_model_len) - 1", "self.max_model_len)")),
    in_scheduler(
        "batch order changes",
        "_schedule_decode",
        ("deque(scheduled)", "deque(sorted(scheduled, key=lambda s: -s.seq_id))"),
    ),
    in_scheduler("oldest preempted", "_schedule_decode", ("pending.pop()", "pending.popleft()")),
    in_scheduler("all preempted when one would do", "_schedule_decode", ("if victim is seq:", "if True:")),
    in_scheduler("preempted request to the end of the queue", "_preempt", ("waiting.appendleft(", "waiting.append(")),
    in_scheduler("preempted request keeps its blocks", "_preempt", ("self.block_manager.deallocate(seq)", "pass")),
    in_scheduler(
        "sampled token lost on preemption",
        "_preempt",
        ("seq.num_preemptions += 1", "seq.num_preemptions += 1\n    seq.num_tokens -= 1\n    seq.token_ids.pop()"),
    ),
    in_scheduler("preemption without a reason", "_preempt", ("self._note(DecisionKind.PREEMPT, seq, **facts)", "pass")),
    # after the step
    in_scheduler("cancelled request booked", "postprocess", ("if seq.is_finished:", "if False:")),
    in_scheduler(
        "chunk books a token", "postprocess", ("if token_id is None:\n            continue", "token_id = token_id or 0")
    ),
    in_scheduler("finished request keeps running", "postprocess", ("if finished:", "if False:")),
    in_scheduler("one token too many", "_finish_reason", ("prompt_tokens >= params", "prompt_tokens > params")),
    in_scheduler(
        "one token too few", "_finish_reason", ("- seq.num_prompt_tokens >=", "- seq.num_prompt_tokens + 1 >=")
    ),
    in_scheduler(
        "runs past max_model_len",
        "_finish_reason",
        ("num_tokens >= self.max_model_len", "num_tokens > self.max_model_len"),
    ),
    in_scheduler("end of sequence not seen", "_finish_reason", ("token_id in self.eos_token_ids", "False")),
    in_scheduler("ignore_eos not seen", "_finish_reason", ("not params.ignore_eos and ", "")),
    in_scheduler("finished request can be cancelled", "_finish", ("del self.sequences[seq.seq_id]", "pass")),
    in_scheduler("finished request keeps its blocks", "_finish", ("self.block_manager.deallocate(seq)", "pass")),
    in_scheduler(
        "cancelled request stays queued",
        "abort",
        ("(self.waiting if seq.status is SequenceStatus.WAITING else self.running).remove(seq)", "pass"),
    ),
    in_scheduler(
        "abort frees twice",
        "abort",
        (
            "self._finish(seq,",
            "self.block_manager.deallocate(seq)\n    "
            "seq.block_table = list(range(len(self.block_manager.blocks)))[:1]\n    self._finish(seq,",
        ),
    ),
    in_scheduler("rollback reverses the queue", "rollback", ("reversed(schedule.seqs)", "list(schedule.seqs)")),
    in_scheduler("rollback keeps the blocks", "rollback", ("self.block_manager.deallocate(seq)", "pass")),
    in_scheduler("rollback loses the requests", "rollback", ("self.waiting.appendleft(seq)", "pass")),
    Variant(
        "second chunk starts where the first did",
        sequence=changed(
            Sequence,
            "scheduled_slice",
            (
                "start = self.num_cached_tokens",
                "start = self.num_cached_tokens if self.num_completion_tokens else self.num_prefix_tokens",
            ),
        ),
    ),
    Variant(
        "second chunk in the slots of the first",
        sequence=changed(
            Sequence,
            "scheduled_slice",
            (
                "start, self.num_tokens, self.block_table",
                "start, self.num_tokens, self.block_table if start + len(tokens) == self.num_tokens or not start "
                "else self.block_table[:1] + self.block_table[:-1]",
            ),
        ),
    ),
]


class ForwardDeallocation(BlockManager):
    """Frees the first block first: prefixes live less long, nothing else changes."""

    def deallocate(self, seq: Sequence) -> None:
        for block_id in seq.block_table:
            block = self.blocks[block_id]
            block.ref_count -= 1
            if block.ref_count == 0:
                self.free_block_ids[block_id] = None
        seq.block_table = []
        seq.num_cached_tokens = 0


class ReHashing(BlockManager):
    """Hashes a block each time it is asked."""

    def block_hash(self, seq: Sequence, index: int) -> int:
        seq.block_hashes = []
        return super().block_hash(seq, index)


HARMLESS = [
    in_blocks("newest free block recycled first", "_recycle", ("popitem(last=False)", "popitem(last=True)")),
    Variant("blocks freed in table order", block_manager=ForwardDeallocation),
    Variant("hashes not kept", block_manager=ReHashing),
    in_blocks("newest of two equal blocks is found", "publish", ("if twin is not None:", "if False:")),
    in_blocks(
        "older of two equal hashes stays",
        "_publish_block",
        (
            "block = self.blocks",
            "if block_hash in self.hash_to_block_id:\n        return None\n    block = self.blocks",
        ),
    ),
    in_scheduler(
        "recomputed tokens not counted",
        "postprocess",
        ("if is_prefill and seq.num_preemptions and computed:", "if False:"),
    ),
    in_scheduler(
        "finished requests removed one by one", "postprocess", ("finished = True", "self.running.remove(seq)")
    ),
]
