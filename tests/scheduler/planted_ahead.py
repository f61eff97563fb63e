"""Faulty variants of the functions that look ahead, each one small change to the source of the real ones."""

import inspect
from dataclasses import dataclass, field
from typing import Any

from planted_faults import Variant, in_blocks, in_scheduler

from nanovllm.course.oracle import Ahead
from nanovllm.scheduler import ahead as module


@dataclass(frozen=True)
class AheadFault:
    """What to play with; `variant` is the real scheduler unless the fault is there."""

    name: str
    ahead: Ahead = field(default_factory=Ahead)
    variant: Variant = field(default_factory=lambda: Variant("real"))


def in_ahead(name: str, *changes: tuple[str, str]) -> AheadFault:
    """The module with each (old, new) text replaced; each must occur exactly once."""
    source = inspect.getsource(module)
    for old, new in changes:
        if source.count(old) != 1:
            raise ValueError(f"scheduler/ahead.py contains {old!r} {source.count(old)} times, not once")
        source = source.replace(old, new)
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return AheadFault(name, Ahead(*(namespace[f] for f in ("schedule_ahead", "slice_ahead", "mark_in_flight"))))


def in_postprocess(name: str, *changes: tuple[str, str]) -> AheadFault:
    return AheadFault(name, variant=in_scheduler(name, "postprocess", *changes))


AHEAD_FAULTS = [
    in_ahead("block not reserved ahead", ("        manager.append(seq, num_ahead=1)", "        pass")),
    in_ahead("block reserved for the wrong token", ("manager.append(seq, num_ahead=1)", "manager.append(seq)")),
    in_ahead("free blocks not counted", (" or len(growing) > manager.num_free_blocks", "")),
    in_ahead(
        "blocks taken although nothing is launched",
        (
            "    if not going_on or len(growing) > manager.num_free_blocks:\n        return None\n"
            "    for seq in growing:",
            "    for seq in growing:\n        if not manager.num_free_blocks:\n            return None",
        ),
    ),
    in_ahead("goes ahead although a request waits", ("if scheduler.waiting:", "if False:")),
    in_ahead("length end not foreseen", ("    return enough or ", "    return ")),
    in_ahead("max_model_len not foreseen", (" or seq.num_tokens + 1 >= scheduler.max_model_len", "")),
    in_ahead(
        "length end foreseen one token early",
        ("num_completion_tokens + 1 >= seq.sampling", "num_completion_tokens + 2 >= seq.sampling"),
    ),
    in_ahead("request that has ended goes on", ("not seq.is_finished and not _ends", "not _ends")),
    in_ahead("never goes ahead", ("if scheduler.waiting:", "if True:")),
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
    in_ahead("step in flight not marked", ("            seq.num_scheduled_tokens = 1", "            pass")),
    in_ahead(
        "ended request marked",
        ("        if not seq.is_finished:\n            seq.num", "        if True:\n            seq.num"),
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
