"""Faulty variants of the functions that look ahead, each one small change to the source of the real ones."""

import inspect
from dataclasses import dataclass, field
from typing import Any

from planted_faults import Variant, in_blocks, in_scheduler

from nanovllm.course.oracle import Ahead
from nanovllm.scheduler import ahead as module


@dataclass(frozen=True)
class AheadFault:
    """What to play with; `variant` is the real scheduler unless the fault is there. small: requests that show it."""

    name: str
    ahead: Ahead = field(default_factory=Ahead)
    variant: Variant = field(default_factory=lambda: Variant("real"))
    small: int = 3


def in_ahead(name: str, *changes: tuple[str, str], small: int = 3) -> AheadFault:
    """The module with each (old, new) text replaced; each must occur exactly once."""
    source = inspect.getsource(module)
    for old, new in changes:
        if source.count(old) != 1:
            raise ValueError(f"scheduler/ahead.py contains {old!r} {source.count(old)} times, not once")
        source = source.replace(old, new)
    namespace: dict[str, Any] = {"__name__": module.__name__}
    exec(source, namespace)
    names = ("schedule_ahead", "slices_ahead", "mark_in_flight", "undo", "StepInFlight")
    return AheadFault(name, Ahead(*(namespace[n] for n in names)), small=small)


def in_postprocess(name: str, *changes: tuple[str, str]) -> AheadFault:
    return AheadFault(name, variant=in_scheduler(name, "postprocess", *changes))


AHEAD_FAULTS = [
    # a decode launched ahead
    in_ahead("block not reserved ahead", ("manager.append(seq, num_ahead=int(seq.seq_id in unread))", "pass")),
    in_ahead(
        "block reserved for the wrong token",
        ("manager.append(seq, num_ahead=int(seq.seq_id in unread))", "manager.append(seq)"),
    ),
    in_ahead("free blocks not counted", ("if len(growing) > manager.num_free_blocks:", "if False:")),
    in_ahead(
        "blocks taken although nothing is launched",
        (
            "    if len(growing) > manager.num_free_blocks:\n        return []\n    for seq in growing:",
            "    for seq in growing:\n        if not manager.num_free_blocks:\n            return []",
        ),
    ),
    in_ahead("goes ahead although a waiting request gets a place", ("if any(_ends", "if False and any(_ends"), small=5),
    in_ahead("never ahead while a request waits", ("if any(_ends", "if True or any(_ends")),
    in_ahead("length end not foreseen", ("    return enough or ", "    return ")),
    in_ahead("max_model_len not foreseen", (" or seq.num_tokens + 1 >= scheduler.max_model_len", "")),
    in_ahead(
        "length end foreseen one token early",
        ("num_completion_tokens + 1 >= seq.sampling", "num_completion_tokens + 2 >= seq.sampling"),
    ),
    in_ahead("end foreseen of a request whose tokens are known", ("s.seq_id not in unread or not _ends", "not _ends")),
    in_ahead("request that has ended goes on", ("for s in scheduler.running if", "for s in step.sampled if")),
    in_ahead(
        "only the requests in flight go on",
        ("for s in scheduler.running if", "for s in step.sampled if not s.is_finished if"),
    ),
    in_ahead("never goes ahead", ("seqs = _decode_ahead(scheduler, step)", "seqs = []")),
    in_ahead("batch order changes", ("    return going_on\n", "    return going_on[::-1]\n")),
    in_ahead(
        "position of the token before",
        ("[0], seq.num_tokens, seq.num_tokens + 1", "[0], seq.num_tokens - 1, seq.num_tokens"),
    ),
    in_ahead(
        "position one too far",
        ("[0], seq.num_tokens, seq.num_tokens + 1", "[0], seq.num_tokens + 1, seq.num_tokens + 2"),
    ),
    in_ahead("attends one key too few", ("seq.num_tokens + 1, seq.block_table", "seq.num_tokens, seq.block_table")),
    in_ahead("known token fed one position too far", ("[seq.last_token], seq.num_tokens - 1", "[0], seq.num_tokens")),
    in_ahead("known token taken for one in flight", ("if seq.seq_id in unread else _known", "if True else _known")),
    in_ahead("step in flight not marked", ("                seq.num_scheduled_tokens = 1", "                pass")),
    in_ahead(
        "ended request marked",
        (
            "            if not seq.is_finished:\n                seq.num",
            "            if True:\n                seq.num",
        ),
    ),
    # a prefill launched ahead
    in_ahead("prefill never goes ahead", ("if seqs := scheduler._schedule_prefill():", "if seqs := []:")),
    in_ahead("chunk in flight scheduled again", ("            _count_computed(scheduler, step)", "            pass")),
    in_ahead("prefill marked as a decode", ("if not schedule.is_prefill:\n        for", "if True:\n        for")),
    in_ahead("unfinished chunk booked with the next", ("if self.recomputed_before is None:", "if True:")),
    in_ahead("blocks never written can be found", ("scheduler.block_manager.reset_prefix_cache()", "pass")),
    in_ahead("step after the failed one stays", ("    if following is not None:", "    if False:")),
    in_ahead(
        "rolled back in the wrong order",
        ("    if following is not None:\n        scheduler.rollback(following)\n", ""),
        (
            "    scheduler.rollback(step.schedule)\n",
            "    scheduler.rollback(step.schedule)\n    if following:\n        scheduler.rollback(following)\n",
        ),
    ),
    in_postprocess(
        "late token of a stopped request appended",
        ("if seq.is_finished:", "if seq.is_finished and seq.append_token(token_id or 0):"),
    ),
    AheadFault(
        "room only for the token that is known",
        variant=in_blocks(
            "room only for the token that is known", "append", ("seq.num_tokens + num_ahead", "seq.num_tokens")
        ),
    ),
    AheadFault(
        "a decode's rollback forgets the step",
        variant=in_scheduler("x", "rollback", ("        seq.num_scheduled_tokens = 0\n", "")),
    ),
]
