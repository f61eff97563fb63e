"""One step as a record: the state before, during and after it, the decisions, the tensors, the times."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from nanovllm.trace.state import State

PHASES = ("schedule", "prepare", "forward", "sample", "postprocess")


class EventKind(Enum):
    """What can happen in a step; the stepper can run to the next one of a kind."""

    ARRIVAL = "arrival"  # a request was queued since the step before
    ADMISSION = "admission"  # a waiting request was given blocks
    PREFIX_HIT = "prefix hit"  # it found its first blocks in the prefix cache
    CHUNK = "chunk"  # a prompt was computed in part only
    BLOCK_ALLOCATION = "block allocation"  # a sequence took a block that it had not held
    PREEMPTION = "preemption"  # a running request lost its blocks
    FINISH = "finish"  # a request ended, or was cancelled


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to one request in one step."""

    kind: EventKind
    seq_id: int
    what: str


@dataclass(slots=True)
class Note:
    """A scheduler decision: its kind, its numbers, and its reason in words."""

    kind: str
    seq_id: int | None
    reason: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Tensors:
    """The step's tensors, read from the device after it ran; names and shapes as in `ForwardContext`.

    rows: the sequence of each batch row, in order. sampled: one id for each entry of `sampled_rows`.
    graph_bucket: the batch size of the CUDA graph that ran, None when the step ran eagerly.
    """

    rows: list[int]
    input_ids: list[int]
    positions: list[int]
    slot_mapping: list[int]
    context_lens: list[int]
    block_tables: list[list[int]] | None
    cu_seqlens_q: list[int] | None
    cu_seqlens_k: list[int] | None
    sampled: list[int] | None
    sampled_rows: list[int]
    graph_bucket: int | None = None

    @property
    def query_bounds(self) -> list[int]:
        """Where each row's queries begin and end in the packed batch; a decode step has one a row."""
        return self.cu_seqlens_q if self.cu_seqlens_q is not None else list(range(len(self.rows) + 1))

    def row_of_tokens(self) -> list[int]:
        """The batch row that each packed token belongs to."""
        bounds = self.query_bounds
        return [row for row in range(len(self.rows)) for _ in range(bounds[row], bounds[row + 1])]


@dataclass(slots=True)
class Record:
    """One step. kind: "prefill", "decode" or "idle"; start and phases in seconds, start counted from the first step.

    before: when step() was called. scheduled: when the batch was chosen and its blocks reserved. after: at the end.
    changed_slots: cache slots whose keys in the first layer differ from before the step; None when not watched.
    arrivals: requests that were queued since the step before.
    collectives: what the tensor-parallel group's recorder saw in this step, as plain values.
    newest: made by `peek`, which sees the newest step and does not know its number; `step` is 0 then.
    """

    step: int
    kind: str
    start: float
    phases: dict[str, float]
    before: State
    scheduled: State
    after: State
    arrivals: list[int]
    decisions: list[Note]
    tensors: Tensors | None
    changed_slots: list[int] | None = None
    collectives: list[dict[str, Any]] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict, repr=False)  # text of each token id, as far as known
    newest: bool = False

    @property
    def when(self) -> str:
        """How a title names the step: "step 3", or "the newest step" where its number is not known."""
        return "the newest step" if self.newest else f"step {self.step}"

    @property
    def seconds(self) -> float:
        """Time of all phases."""
        return sum(self.phases.values())

    @property
    def num_tokens(self) -> int:
        """Tokens that this step computed."""
        return sum(self.scheduled.columns.get("num_scheduled_tokens", []))

    @property
    def block_size(self) -> int:
        """Tokens of one KV block."""
        return self.limits["block_size"]

    def slot_name(self, slot: int) -> str:
        """A slot as "block:offset"."""
        return f"{slot // self.block_size}:{slot % self.block_size}"

    def allocated(self) -> dict[int, list[int]]:
        """Blocks that each sequence took in this step and did not hold before it (prefix hits are not among them)."""
        taken: dict[int, list[int]] = {}
        found = self.hits()
        for seq_id, table in self.scheduled.tables.items():
            old = self.before.tables.get(seq_id, [])
            hits = found.get(seq_id, [])
            fresh = [b for b in table if b not in old and b not in hits]
            if fresh:
                taken[seq_id] = fresh
        return taken

    def hits(self) -> dict[int, list[int]]:
        """Blocks that each request admitted in this step found in the prefix cache."""
        found: dict[int, list[int]] = {}
        for note in self.decisions:
            if note.kind == "admit" and note.seq_id is not None and note.facts.get("hit", 0):
                table = self.scheduled.tables.get(note.seq_id, [])
                found[note.seq_id] = table[: note.facts["hit"] // self.block_size]
        return found

    def events(self) -> list[Event]:
        """What happened, in the order of `EventKind`."""
        found = [Event(EventKind.ARRIVAL, s, f"request {s} arrived") for s in self.arrivals]
        for note in self.decisions:
            if note.seq_id is None:
                continue
            if note.kind == "admit":
                found.append(Event(EventKind.ADMISSION, note.seq_id, note.reason))
            elif note.kind == "preempt":
                found.append(Event(EventKind.PREEMPTION, note.seq_id, note.reason))
            elif note.kind in ("finish", "abort"):
                found.append(Event(EventKind.FINISH, note.seq_id, note.reason))
            partial = note.facts.get("tokens", 0) < note.facts.get("needed", 0)
            if note.kind == "continue" or (note.kind == "admit" and partial):
                found.append(Event(EventKind.CHUNK, note.seq_id, note.reason))
        for seq_id, blocks in self.hits().items():
            found.append(Event(EventKind.PREFIX_HIT, seq_id, f"request {seq_id} reuses {_blocks(blocks)}"))
        for seq_id, blocks in self.allocated().items():
            found.append(Event(EventKind.BLOCK_ALLOCATION, seq_id, f"request {seq_id} takes {_blocks(blocks)}"))
        order = list(EventKind)
        return sorted(found, key=lambda e: order.index(e.kind))


def _blocks(blocks: list[int]) -> str:
    return f"block{'s' if len(blocks) > 1 else ''} {', '.join(map(str, blocks))}"


_STATES = ("before", "scheduled", "after")


def difference(old: Record, new: Record) -> dict[str, tuple[Any, Any]]:
    """What differs between two records, by dotted path: {"after.free": (old value, new value), ...}."""
    found: dict[str, tuple[Any, Any]] = {}
    for name in Record.__slots__:
        a, b = getattr(old, name), getattr(new, name)
        if name in _STATES:
            pairs = {f"{name}.{part}": (getattr(a, part), getattr(b, part)) for part in State.__slots__}
        elif isinstance(a, Tensors) and isinstance(b, Tensors):
            pairs = {f"{name}.{part}": (getattr(a, part), getattr(b, part)) for part in Tensors.__slots__}
        else:
            pairs = {name: (a, b)}
        found.update({path: (x, y) for path, (x, y) in pairs.items() if x != y})
    return found
