"""What the scheduler decided and why: numbers while it runs, a sentence when somebody reads it."""

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class DecisionKind(Enum):
    """What the scheduler decided about a sequence (or, for DECODE, about all running ones)."""

    ADMIT = "admit"
    CONTINUE = "continue"
    DEFER = "defer"
    DECODE = "decode"
    PREEMPT = "preempt"
    FINISH = "finish"
    ABORT = "abort"


_REASONS = {
    DecisionKind.ADMIT: "request {seq_id} admitted: {tokens} of {needed} tokens to compute, {hit} found in the prefix "
    "cache, {blocks} blocks held",
    DecisionKind.CONTINUE: "request {seq_id} continues its prefill: {tokens} of {needed} remaining tokens",
    DecisionKind.DEFER: "request {seq_id} not admitted: {why}",
    DecisionKind.DECODE: "{count} running requests decode one token each: {why}",
    DecisionKind.PREEMPT: "request {seq_id} preempted: request {by} needs a block and 0 are free; it gives up its "
    "{blocks} blocks, and its {tokens} tokens wait at the head of the queue",
    DecisionKind.FINISH: "request {seq_id} finished ({why}) after {tokens} completion tokens",
    DecisionKind.ABORT: "request {seq_id} cancelled while {why}",
}


@dataclass(slots=True)
class Decision:
    """One decision with the numbers that led to it; `reason` puts them into words (only when somebody reads it)."""

    kind: DecisionKind
    seq_id: int | None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """The decision as a sentence."""
        sentence = _REASONS[self.kind].format(seq_id=self.seq_id, **self.facts)
        sentence = re.sub(r"\b1 running requests decode\b", "1 running request decodes", sentence)
        return re.sub(r"\b1 (block|token|completion token|remaining token)s\b", r"1 \1", sentence)
