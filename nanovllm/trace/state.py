"""The engine's bookkeeping at one moment, copied from the live scheduler and block manager."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from nanovllm.scheduler import Scheduler, Sequence
from nanovllm.trace.codec import (
    Patch,
    decode_column,
    decode_map,
    decode_queue,
    encode_column,
    encode_map,
    encode_queue,
)

COUNTERS = (
    "num_tokens",
    "num_prompt_tokens",
    "num_cached_tokens",
    "num_scheduled_tokens",
    "num_prefix_tokens",
    "num_preemptions",
    "num_recomputed_tokens",
)


@dataclass(slots=True)
class Published:
    """What a block was published under, see `nanovllm.scheduler.Block`; `findable`: the hash table leads to it."""

    hash: int
    content_id: int | None
    parent_id: int | None
    findable: bool
    token_ids: list[int]


@dataclass(slots=True)
class State:
    """Deques, sequences and blocks at one moment, as plain values.

    columns: one list a counter (`COUNTERS`, and "status", "finish_reason"), rows as in `ids`. A sequence that this
    step finished is still in the state after it, and gone from the next.
    free: block ids, the next to be recycled first. refs: reference counts by block id.
    published: [hash, content_id, parent_id, findable, token_ids] by block id.
    """

    waiting: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    refs: list[int] = field(default_factory=list)
    published: dict[int, list[Any]] = field(default_factory=dict)

    def sequence(self, seq_id: int) -> dict[str, Any]:
        """All counters, the status and the block table of one sequence. Raises KeyError for an unknown one."""
        if seq_id not in self.tables:
            raise KeyError(f"request {seq_id} is not in this state; it has {sorted(self.tables)}")
        row = self.ids.index(seq_id)
        values = {name: column[row] for name, column in self.columns.items()}
        return {"seq_id": seq_id, **values, "block_table": self.tables[seq_id]}

    def column(self, name: str) -> dict[int, Any]:
        """One counter by sequence id."""
        return dict(zip(self.ids, self.columns.get(name, []), strict=True))

    def owners(self) -> dict[int, list[int]]:
        """Sequence ids by block id, for blocks that have any."""
        found: dict[int, list[int]] = {}
        for seq_id, table in self.tables.items():
            for block in table:
                found.setdefault(block, []).append(seq_id)
        return found

    def publication(self, block_id: int) -> Published | None:
        """What `block_id` is published under, or None."""
        entry = self.published.get(block_id)
        return Published(*entry) if entry is not None else None

    @property
    def reusable(self) -> set[int]:
        """Free blocks whose content can still be found by a prefix."""
        return {b for b in self.free if b in self.published and self.published[b][3]}


def _published(scheduler: Scheduler, previous: State) -> dict[int, list[Any]]:
    """The published blocks. An entry of the same publication (its content id is unique) keeps its copied tokens."""
    manager = scheduler.block_manager
    findable = manager.hash_to_block_id
    old = previous.published
    found: dict[int, list[Any]] = {}
    for block in manager.blocks:
        key = block.hash
        if key is None:
            continue
        number, content = block.block_id, block.content_id
        entry = old.get(number)
        leads_here = findable.get(key) == number
        same = entry is not None and entry[1] == content and entry[0] == key and entry[3] == leads_here
        if entry is None or not same or entry[2] != block.parent_id:
            entry = [key, content, block.parent_id, leads_here, list(block.token_ids or ())]
        found[number] = entry
    return found


def capture(scheduler: Scheduler, leavers: Iterable[Sequence] = (), previous: State | None = None) -> State:
    """Copy the live state. leavers: sequences that the scheduler has dropped in this step.

    previous: an older state whose unchanged parts may be shared; states are never changed in place.
    """
    manager = scheduler.block_manager
    sequences = [*scheduler.sequences.values(), *leavers]
    columns: dict[str, list[Any]] = {name: [getattr(s, name) for s in sequences] for name in COUNTERS}
    columns["status"] = [s.status.value for s in sequences]
    columns["finish_reason"] = [s.finish_reason.value if s.finish_reason else None for s in sequences]
    return State(
        waiting=[s.seq_id for s in scheduler.waiting],
        running=[s.seq_id for s in scheduler.running],
        ids=[s.seq_id for s in sequences],
        columns=columns,
        tables={s.seq_id: list(s.block_table) for s in sequences},
        free=list(manager.free_block_ids),
        refs=[block.ref_count for block in manager.blocks],
        published=_published(scheduler, previous or State()),
    )


def _aligned(state: State, name: str, ids: list[int]) -> list[Any]:
    """A column of `state` in the rows of `ids`; 0 or None for sequences that it does not have."""
    column = state.columns.get(name, [])
    if state.ids == ids:
        return column
    known = dict(zip(state.ids, column, strict=False))
    missing = 0 if name in COUNTERS else None
    return [known.get(i, missing) for i in ids]


def encode_state(old: State, new: State) -> Patch:
    """Only what changed between two states; {} when nothing did."""
    parts = {
        "w": encode_queue(old.waiting, new.waiting),
        "r": encode_queue(old.running, new.running),
        "ids": encode_queue(old.ids, new.ids),
        "t": encode_map(old.tables, new.tables, lists=True),
        "f": encode_queue(old.free, new.free),
        "n": encode_column(old.refs, new.refs),
        "p": encode_map(old.published, new.published),
    }
    columns = {name: encode_column(_aligned(old, name, new.ids), column) for name, column in new.columns.items()}
    parts["c"] = {name: patch for name, patch in columns.items() if patch is not None} or None
    return {key: part for key, part in parts.items() if part is not None}


def decode_state(old: State, patch: Patch) -> State:
    """The state that `encode_state` was given as the new one."""
    ids = decode_queue(old.ids, patch.get("ids"))
    changed = patch.get("c", {})
    names = [*COUNTERS, "status", "finish_reason"]
    tables = decode_map(old.tables, patch.get("t"), lists=True)
    published = decode_map(old.published, patch.get("p"))
    return State(
        waiting=decode_queue(old.waiting, patch.get("w")),
        running=decode_queue(old.running, patch.get("r")),
        ids=ids,
        columns={name: decode_column(_aligned(old, name, ids), changed.get(name)) for name in names},
        tables={i: tables[i] for i in ids},
        free=decode_queue(old.free, patch.get("f")),
        refs=decode_column(old.refs, patch.get("n")),
        published={b: published[b] for b in sorted(published)},
    )
