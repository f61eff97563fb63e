"""What must hold of a scheduler at every step, checked on its live state, whatever its code looks like."""

from collections.abc import Container, Iterable
from dataclasses import dataclass

from nanovllm.course.oracle.report import Violation
from nanovllm.course.oracle.trace import Trace
from nanovllm.scheduler import BlockManager, Schedule, ScheduledSlice, Scheduler, Sequence


@dataclass(slots=True)
class Before:
    """The state just before `schedule()`: both deques in order, each block table, the free blocks."""

    waiting: list[Sequence]
    running: list[Sequence]
    tables: dict[int, list[int]]
    num_free: int

    @classmethod
    def of(cls, scheduler: Scheduler, live: Iterable[Sequence]) -> "Before":
        """Copy what `check_schedule` compares with."""
        tables = {seq.seq_id: list(seq.block_table) for seq in live}
        return cls(list(scheduler.waiting), list(scheduler.running), tables, scheduler.block_manager.num_free_blocks)

    def without(self, seqs: list[Sequence]) -> "Before":
        """The same with the requests of a prefill back at the head of the queue."""
        gone = set(ids(seqs))
        waiting = [*seqs, *(s for s in self.waiting if s.seq_id not in gone)]
        return Before(waiting, [s for s in self.running if s.seq_id not in gone], self.tables, self.num_free)


def ids(seqs: Iterable[Sequence]) -> list[int]:
    """Request ids, in order."""
    return [seq.seq_id for seq in seqs]


def check_pool(manager: BlockManager, live: Iterable[Sequence]) -> None:
    """Free + used = total, each reference count equals the owners, the free list holds exactly the unowned."""
    owners = [0] * len(manager.blocks)
    for seq in live:
        if len(set(seq.block_table)) != len(seq.block_table):
            raise Violation("blocks", f"request {seq.seq_id} owns each block once", f"block table {seq.block_table}")
        for block_id in seq.block_table:
            owners[block_id] += 1
    for block_id, (block, count) in enumerate(zip(manager.blocks, owners, strict=True)):
        if block.ref_count != count:
            raise Violation("blocks", f"block {block_id} has ref count {count}", f"it has {block.ref_count}")
    free = {block_id for block_id, count in enumerate(owners) if count == 0}
    listed = list(manager.free_block_ids)
    if len(listed) != len(free) or set(listed) != free:
        raise Violation("blocks", f"free blocks {sorted(free)}", f"the free list holds {listed}")


def check_state(scheduler: Scheduler, live: dict[int, Sequence], trace: Trace) -> None:
    """Every unfinished request is in exactly one deque, within the limits, with its blocks accounted for."""
    held = ids(scheduler.waiting) + ids(scheduler.running)
    if sorted(held) != sorted(live):
        raise Violation("deques", f"requests {sorted(live)} wait or run", f"the deques hold {held}")
    holders = [seq for seq in live.values() if seq.block_table]
    if len(holders) > trace.max_num_seqs:
        expected = f"at most {trace.max_num_seqs} requests hold blocks (max_num_seqs)"
        raise Violation("limits", expected, f"requests {ids(holders)} do")
    check_pool(scheduler.block_manager, live.values())


def check_between_steps(scheduler: Scheduler, in_flight: Iterable[ScheduledSlice] = ()) -> None:
    """A running request has all tokens cached but the newest; a waiting one has none, save the head's chunks.

    in_flight: the step that is launched already; what it computes is scheduled and not cached yet.
    """
    launched = {piece.seq_id: piece for piece in in_flight}
    for seq in [*scheduler.running, *scheduler.waiting]:
        piece = launched.get(seq.seq_id)
        count = 0 if piece is None else len(piece.token_ids)
        if seq.num_scheduled_tokens != count:
            expected = f"{count} tokens of request {seq.seq_id} are scheduled between steps"
            raise Violation("counts", expected, f"{seq.num_scheduled_tokens} are")
        if piece is not None and seq.num_cached_tokens != piece.start:
            expected = f"request {seq.seq_id} has {piece.start} tokens cached while the ones after them are computed"
            raise Violation("counts", expected, f"{seq.num_cached_tokens} are cached")
    for seq in scheduler.running:
        if seq.seq_id not in launched and seq.num_cached_tokens != seq.num_tokens - 1:
            expected = f"running request {seq.seq_id} has all but its newest token cached between steps"
            raise Violation("counts", expected, f"{seq.num_cached_tokens} of {seq.num_tokens} are cached")
    for place, seq in enumerate(scheduler.waiting):
        if (place or not seq.block_table) and (seq.num_cached_tokens or seq.block_table):
            expected = f"waiting request {seq.seq_id} holds nothing"
            raise Violation("counts", expected, f"{seq.num_cached_tokens} cached tokens, blocks {seq.block_table}")


def check_schedule(scheduler: Scheduler, before: Before, schedule: Schedule, trace: Trace) -> None:
    """The batch is within its budget, in queue order, and no smaller than the blocks and limits force it to be."""
    seqs = schedule.seqs
    if not seqs:
        raise Violation("stall", "something is scheduled while requests are unfinished", "the batch is empty")
    if len(set(ids(seqs))) != len(seqs):
        raise Violation("order", "each request is scheduled once", f"the batch is {ids(seqs)}")
    if schedule.is_prefill:
        _check_prefill(scheduler, before, seqs, trace)
    else:
        _check_decode(scheduler, before, seqs)
    _check_idle_capacity(scheduler, before, schedule, trace)
    _check_decisions(scheduler, before, schedule)


def _check_prefill(scheduler: Scheduler, before: Before, seqs: list[Sequence], trace: Trace) -> None:
    if ids(seqs) != ids(before.waiting[: len(seqs)]):
        raise Violation("order", f"a prefill takes the queue {ids(before.waiting)} in order", f"it took {ids(seqs)}")
    total = sum(seq.num_scheduled_tokens for seq in seqs)
    budget = trace.max_num_batched_tokens
    if total > budget:
        raise Violation("limits", f"at most {budget} tokens in a prefill step (max_num_batched_tokens)", f"{total} are")
    for seq in seqs:
        end = seq.num_cached_tokens + seq.num_scheduled_tokens
        if seq.num_scheduled_tokens < 1 or end > seq.num_tokens:
            expected = f"request {seq.seq_id} computes at least one token and at most those not cached"
            actual = (
                f"{seq.num_scheduled_tokens} are scheduled while {seq.num_cached_tokens} of {seq.num_tokens} are cached"
            )
            raise Violation("counts", expected, actual)
        if end < seq.num_tokens and (seq is not seqs[-1] or total < budget):
            expected = f"request {seq.seq_id} computes all its tokens, as the budget of {budget} allows"
            raise Violation("counts", expected, f"positions {seq.num_cached_tokens} .. {end - 1} of {seq.num_tokens}")
    full = [s for s in seqs if s.num_cached_tokens + s.num_scheduled_tokens == s.num_tokens]
    running = ids(before.running) + ids(full)
    if ids(scheduler.running) != running:
        raise Violation("order", f"running requests {running}", f"{ids(scheduler.running)}")


def _check_decode(scheduler: Scheduler, before: Before, seqs: list[Sequence]) -> None:
    stay = len(seqs)
    if ids(seqs) != ids(before.running[:stay]) or ids(scheduler.running) != ids(seqs):
        expected = f"a decode step runs {ids(before.running)} in order, the youngest giving way if need be"
        raise Violation("order", expected, f"the batch is {ids(seqs)}, running is {ids(scheduler.running)}")
    for seq in seqs:
        if seq.num_scheduled_tokens != 1 or seq.num_cached_tokens != seq.num_tokens - 1:
            expected = f"request {seq.seq_id} decodes its newest token, position {seq.num_tokens - 1}"
            raise Violation("counts", expected, f"{seq.num_scheduled_tokens} from position {seq.num_cached_tokens}")
    queue = ids(before.running[stay:]) + ids(before.waiting)
    if ids(scheduler.waiting) != queue:
        raise Violation("order", f"preempted requests at the head: {queue}", f"waiting is {ids(scheduler.waiting)}")
    if stay < len(before.running):
        _check_preemption_was_needed(scheduler.block_manager, before, stay)


def _check_preemption_was_needed(manager: BlockManager, before: Before, stay: int) -> None:
    """With one more request kept, the blocks would not have sufficed."""
    kept, victims = before.running[: stay + 1], before.running[stay + 1 :]
    full = [s for s in kept if s.num_tokens > len(before.tables[s.seq_id]) * manager.block_size]
    still_owned = {b for s in kept for b in before.tables[s.seq_id]}
    released = {b for s in victims for b in before.tables[s.seq_id]} - still_owned
    available = before.num_free + len(released)
    if len(full) <= available:
        expected = f"requests {ids(kept)} keep running: {len(full)} blocks needed, {available} available"
        raise Violation("capacity", expected, f"request {kept[-1].seq_id} was preempted")


def _check_idle_capacity(scheduler: Scheduler, before: Before, schedule: Schedule, trace: Trace) -> None:
    """A prefill stops only for a budget, a limit or lack of blocks; a decode runs only if no prefill could."""
    used = sum(seq.num_scheduled_tokens for seq in schedule.seqs) if schedule.is_prefill else 0
    taken = len(schedule.seqs) if schedule.is_prefill else 0
    occupied = len(before.running) + taken
    if taken == len(before.waiting) or used >= trace.max_num_batched_tokens or occupied >= trace.max_num_seqs:
        return
    head = before.waiting[taken]
    free = scheduler.block_manager.num_free_blocks if schedule.is_prefill else before.num_free
    needed = -(-head.num_tokens // trace.block_size)
    if before.tables[head.seq_id] or needed <= free:
        expected = f"request {head.seq_id} is scheduled: it needs {needed} blocks and {free} are free"
        raise Violation("capacity", expected, "it was left waiting")


def _check_decisions(scheduler: Scheduler, before: Before, schedule: Schedule) -> None:
    """Each decision has a reason in words, and everything that happened was decided."""
    noted: set[tuple[str, int | None]] = set()
    for decision in scheduler.decisions:
        noted.add((decision.kind.value, decision.seq_id))
        reason = decision.reason
        if not isinstance(reason, str) or not reason.strip():
            raise Violation("reasons", f"{decision} says why", f"its reason is {reason!r}")
        if decision.seq_id is not None and str(decision.seq_id) not in reason:
            raise Violation("reasons", f"the reason names request {decision.seq_id}", reason)
    wanted: set[tuple[str, int | None]]
    if schedule.is_prefill:
        wanted = {
            ("continue" if before.tables[s.seq_id] and s in before.waiting else "admit", s.seq_id)
            for s in schedule.seqs
        }
    else:
        wanted = {("preempt", s.seq_id) for s in before.running[len(schedule.seqs) :]} | {("decode", None)}
    if not wanted <= noted:
        raise Violation("reasons", f"decisions {sorted(wanted - noted, key=str)}", f"noted {sorted(noted, key=str)}")


def check_rolled_back(scheduler: Scheduler, before: Before, schedule: Schedule) -> None:
    """The failed step left the queue as if it had not been (a decode's preemptions stay)."""
    alive = set(scheduler.sequences)
    if schedule.is_prefill:
        waiting, running = before.waiting, before.running
    else:
        cut = len(schedule.seqs)
        waiting, running = before.running[cut:] + before.waiting, before.running[:cut]
    for name, wanted, deque in (("waiting", waiting, scheduler.waiting), ("running", running, scheduler.running)):
        expected = [i for i in ids(wanted) if i in alive]
        if ids(deque) != expected:
            raise Violation("rollback", f"{name} is {expected} after a failed step", f"it is {ids(deque)}")


def check_ahead(
    scheduler: Scheduler, before: Before, unread: Container[int], schedule: Schedule | None, trace: Trace
) -> None:
    """A prefill is scheduled ahead exactly as in the plain schedule, a decode when that would have no choice.

    unread: ids of the requests whose newest token the step in flight samples. schedule: what was scheduled ahead.
    """
    if schedule is not None and schedule.is_prefill:
        check_schedule(scheduler, before, schedule, trace)
        return
    _check_idle_capacity(scheduler, before, Schedule([], False), trace)
    ending = [s for s in before.running if s.seq_id in unread and s.num_tokens >= _longest(s, trace)]
    going_on = [s for s in before.running if s not in ending]
    ahead = {s.seq_id: s.num_tokens + (s.seq_id in unread) for s in going_on}
    needed = {i: max(-(-count // trace.block_size), len(before.tables[i])) for i, count in ahead.items()}
    num_new = sum(count - len(before.tables[i]) for i, count in needed.items())
    why_not = ""
    if not going_on:
        why_not = "no request goes on for certain"
    elif before.waiting and ending:
        why_not = f"requests {ids(before.waiting)} wait, and {ids(ending)} end with the step in flight"
    elif num_new > before.num_free:
        why_not = f"{num_new} blocks are needed and {before.num_free} are free"
    actual = "nothing is" if schedule is None else f"requests {ids(schedule.seqs)} are"
    if why_not and schedule is not None:
        raise Violation("ahead", f"nothing is scheduled ahead: {why_not}", actual)
    if not why_not and (schedule is None or ids(schedule.seqs) != ids(going_on)):
        raise Violation("ahead", f"requests {ids(going_on)} are scheduled ahead, whatever they sample", actual)
    for seq in [*scheduler.running, *scheduler.waiting]:
        old, table = before.tables[seq.seq_id], seq.block_table
        count = len(old) if why_not else needed.get(seq.seq_id, len(old))
        if len(table) != count or table[: len(old)] != old:
            expected = f"request {seq.seq_id} has {count} blocks, the first {old}"
            raise Violation("ahead", expected, f"block table {table}")


def _longest(seq: Sequence, trace: Trace) -> int:
    """Tokens of the request that ever need a slot."""
    return trace.longest(trace.requests[seq.seq_id])
