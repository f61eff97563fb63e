"""The two deques and the decisions: which sequences run in the next step, and what happens to them after it."""

from collections import deque
from typing import Any, NamedTuple

from nanovllm.errors import RequestError
from nanovllm.scheduler.block_manager import AllocationPlan, BlockManager
from nanovllm.scheduler.decisions import Decision, DecisionKind
from nanovllm.scheduler.sequence import FinishReason, Sequence, SequenceStatus


class Schedule(NamedTuple):
    """The batch of one step, all prefill or all decode; `seqs` is empty when nothing can run."""

    seqs: list[Sequence]
    is_prefill: bool

    def without_finished(self) -> "Schedule":
        """The batch without requests that were cancelled since: they hold no blocks any more."""
        return Schedule([seq for seq in self.seqs if not seq.is_finished], self.is_prefill)


class Scheduler:
    """Prefill first: a step runs waiting requests while budgets and blocks allow, and decodes only if it found none.

    max_num_seqs bounds the requests that hold blocks (running, plus one whose prefill is under way).
    max_num_batched_tokens bounds the tokens of a prefill step; a longer prompt is computed in chunks. A decode step
    takes one token of each running request, so max_num_seqs bounds it already.
    max_model_len ends a request whose prompt and completion reach it.
    """

    def __init__(
        self,
        block_manager: BlockManager,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        eos_token_ids: frozenset[int] = frozenset(),
    ) -> None:
        self.block_manager = block_manager
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.eos_token_ids = eos_token_ids
        self.waiting: deque[Sequence] = deque()
        self.running: deque[Sequence] = deque()  # oldest admission first
        self.sequences: dict[int, Sequence] = {}  # every unfinished one, by id
        self.decisions: list[Decision] = []  # of the current step; `schedule` starts a new list

    # --- requests come and go ---------------------------------------------------------------------------------------

    def check_fits(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """Raise RequestError unless such a request can finish in this pool when it runs alone."""
        if num_prompt_tokens < 1:
            raise RequestError("a prompt of 0 tokens has nothing to predict from: give it at least 1")
        if num_prompt_tokens >= self.max_model_len:
            raise RequestError(
                f"prompt of {num_prompt_tokens:,} tokens leaves no room for a completion in max_model_len "
                f"{self.max_model_len:,}: shorten it or raise max_model_len"
            )
        # The last sampled token is returned but never fed in, so it needs no slot.
        longest = min(num_prompt_tokens + max_tokens, self.max_model_len) - 1
        needed, total = self.block_manager.blocks_for(longest), self.block_manager.num_blocks
        if needed > total:
            raise RequestError(
                f"a prompt of {num_prompt_tokens:,} tokens with max_tokens {max_tokens:,} needs up to {needed:,} KV "
                f"blocks of {self.block_manager.block_size} tokens and the whole pool has {total:,}: shorten the "
                "prompt, lower max_tokens or give the engine more KV blocks"
            )

    def add(self, seq: Sequence) -> None:
        """Queue a request. Raises RequestError, with nothing changed, if it could never finish or is no new one."""
        self.check_fits(seq.num_prompt_tokens, seq.sampling_params.max_tokens)
        if seq.seq_id in self.sequences:
            raise RequestError(f"request {seq.seq_id} is unfinished already: give each request an id of its own")
        if seq.block_size != (pool_size := self.block_manager.block_size):
            raise RequestError(f"request {seq.seq_id} has blocks of {seq.block_size} tokens, the pool of {pool_size}")
        self.waiting.append(seq)
        self.sequences[seq.seq_id] = seq

    def abort(self, seq_id: int) -> bool:
        """Cancel a request in any state; False if it is unknown or has finished (then nothing changes)."""
        seq = self.sequences.get(seq_id)
        if seq is None:
            return False
        (self.waiting if seq.status is SequenceStatus.WAITING else self.running).remove(seq)
        self._note(DecisionKind.ABORT, seq, why=seq.status.value)
        self._finish(seq, FinishReason.ABORT)
        return True

    def is_finished(self) -> bool:
        """True when no request is waiting or running."""
        return not self.waiting and not self.running

    # --- one step ---------------------------------------------------------------------------------------------------

    def schedule(self, hold_back: str | None = None) -> Schedule:
        """Choose the next batch, reserve its blocks, and note why. Empty only when there is nothing to run.

        hold_back: why waiting requests must not run in this step, so that the running ones decode (serve/policy.py).
        """
        self.decisions = []
        if hold_back is not None and self.waiting:
            self._note(DecisionKind.DEFER, self.waiting[0], why=hold_back)
        elif seqs := self._schedule_prefill():
            return Schedule(seqs, True)
        return Schedule(self._schedule_decode(), False)

    def _schedule_prefill(self) -> list[Sequence]:
        """Take waiting requests in order until a budget or the blocks run out; the last one may be a partial chunk."""
        scheduled: list[Sequence] = []
        budget = self.max_num_batched_tokens
        while self.waiting and budget > 0:
            seq = self.waiting[0]
            if len(self.running) >= self.max_num_seqs:
                limit = f"{len(self.running)} requests run and max_num_seqs is {self.max_num_seqs}"
                self._note(DecisionKind.DEFER, seq, why=limit)
                break
            if seq.block_table:
                kind = DecisionKind.CONTINUE
            else:
                plan = self.block_manager.plan(seq)
                if plan.missing:
                    self._note_lack_of_blocks(seq, plan)
                    break
                self.block_manager.allocate(seq, plan)
                kind = DecisionKind.ADMIT
            # Sized after the prefix match: a hit shortens what is left to compute.
            needed = seq.num_tokens - seq.num_cached_tokens
            seq.num_scheduled_tokens = min(needed, budget)
            budget -= seq.num_scheduled_tokens
            scheduled.append(seq)
            self._note(
                kind,
                seq,
                tokens=seq.num_scheduled_tokens,
                needed=needed,
                hit=seq.num_prefix_tokens,
                blocks=len(seq.block_table),
            )
            if seq.num_scheduled_tokens < needed:
                break  # a partial chunk used up the budget; it stays at the head of the queue, holding its blocks
            self.waiting.popleft()
            seq.status = SequenceStatus.RUNNING
            self.running.append(seq)
        return scheduled

    def _note_lack_of_blocks(self, seq: Sequence, plan: AllocationPlan) -> None:
        why = f"needs {plan.num_new_blocks} blocks, {plan.num_free_blocks} free"
        if plan.cached_block_ids:
            why += f" ({len(plan.cached_block_ids)} more come from the prefix cache)"
        self._note(DecisionKind.DEFER, seq, why=why)

    def _schedule_decode(self) -> list[Sequence]:
        """One token for each running request, oldest first; the youngest give way when blocks run out."""
        manager = self.block_manager
        scheduled: list[Sequence] = []
        pending = self.running
        while pending:
            seq = pending.popleft()
            while not manager.can_append(seq):
                victim = pending.pop() if pending else seq
                self._preempt(victim, by=seq)
                if victim is seq:
                    break
            else:
                manager.append(seq)
                seq.num_scheduled_tokens = 1
                scheduled.append(seq)
        self.running = deque(scheduled)
        if scheduled:
            why = "the request at the head of the queue must wait" if self.waiting else "nothing is waiting"
            self.decisions.append(Decision(DecisionKind.DECODE, None, {"count": len(scheduled), "why": why}))
        return scheduled

    def _preempt(self, seq: Sequence, by: Sequence) -> None:
        """Release the blocks of `seq` and put it back at the head of the queue, to be recomputed later."""
        facts = {"by": by.seq_id, "blocks": len(seq.block_table), "tokens": seq.num_tokens}
        self._note(DecisionKind.PREEMPT, seq, **facts)
        seq.status = SequenceStatus.WAITING
        seq.num_preemptions += 1
        self.block_manager.deallocate(seq)
        self.waiting.appendleft(seq)

    def postprocess(self, seqs: list[Sequence], token_ids: list[int | None], is_prefill: bool) -> None:
        """Book the step that just ran: publish full blocks, append sampled tokens, end what is done.

        token_ids: one entry a sequence; None where the step computed a prompt chunk that does not reach the end yet.
        """
        finished = False
        for seq, token_id in zip(seqs, token_ids, strict=True):
            if seq.is_finished:  # cancelled while the step ran
                continue
            before, computed = seq.num_cached_tokens, seq.num_scheduled_tokens
            seq.num_cached_tokens += computed
            seq.num_scheduled_tokens = 0
            if is_prefill and seq.num_preemptions and computed:  # all but its newest token had been computed before
                seq.num_recomputed_tokens += min(seq.num_cached_tokens, seq.num_tokens - 1) - before
            if seq.num_cached_tokens // seq.block_size > before // seq.block_size:
                self.block_manager.publish(seq, before)
            if token_id is None:
                continue
            seq.append_token(token_id)
            reason = self._finish_reason(seq, token_id)
            if reason is not None:
                self._note(DecisionKind.FINISH, seq, why=reason.value, tokens=seq.num_completion_tokens)
                self._finish(seq, reason)
                finished = True
        if finished:  # one pass, not one removal each
            self.running = deque(s for s in self.running if not s.is_finished)

    def rollback(self, schedule: Schedule) -> None:
        """Undo `schedule` after its step failed: the same requests can be scheduled again, nobody else is touched.

        A prefill's requests return to the head of the queue in their old order and give their blocks back, since
        nobody knows which K/V were written; nothing of them was published. A decode's merely lose the step.
        """
        for seq in reversed(schedule.seqs):
            if seq.is_finished:
                continue
            seq.num_scheduled_tokens = 0
            if schedule.is_prefill:
                (self.waiting if seq.status is SequenceStatus.WAITING else self.running).remove(seq)
                seq.status = SequenceStatus.WAITING
                self.block_manager.deallocate(seq)
                self.waiting.appendleft(seq)

    def _finish_reason(self, seq: Sequence, token_id: int) -> FinishReason | None:
        params = seq.sampling_params
        if token_id in params.stop_token_ids or (not params.ignore_eos and token_id in self.eos_token_ids):
            return FinishReason.STOP
        num_tokens = seq.num_tokens
        if num_tokens - seq.num_prompt_tokens >= params.max_tokens or num_tokens >= self.max_model_len:
            return FinishReason.LENGTH
        return None

    def _finish(self, seq: Sequence, reason: FinishReason) -> None:
        seq.status = SequenceStatus.FINISHED
        seq.finish_reason = reason
        seq.num_scheduled_tokens = 0
        del self.sequences[seq.seq_id]
        self.block_manager.deallocate(seq)

    def _note(self, kind: DecisionKind, seq: Sequence, **facts: Any) -> None:
        self.decisions.append(Decision(kind, seq.seq_id, facts))

    # --- looking inside ---------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise AssertionError when deques, limits, block ownership or the free list contradict each other."""
        assert len(self.waiting) + len(self.running) == len(self.sequences), "a sequence is in both deques or in none"
        holders = [s for s in self.sequences.values() if s.block_table]
        assert len(holders) <= self.max_num_seqs, f"{len(holders)} requests hold blocks, limit {self.max_num_seqs}"
        self.block_manager.check_integrity(holders)

    def snapshot(self) -> dict[str, Any]:
        """The state as plain values, for traces, tests, views and error messages."""
        return {
            "waiting": [s.seq_id for s in self.waiting],
            "running": [s.seq_id for s in self.running],
            "sequences": {s.seq_id: s.snapshot() for s in self.sequences.values()},
            "decisions": [{"kind": d.kind.value, "seq_id": d.seq_id, "reason": d.reason} for d in self.decisions],
        }
