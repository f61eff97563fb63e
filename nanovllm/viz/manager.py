"""A block manager by itself, without an engine, as a record that the block views can draw."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from nanovllm.scheduler import BlockManager, Scheduler, Sequence
from nanovllm.trace.record import Note, Record
from nanovllm.trace.state import State, capture
from nanovllm.viz.blocks import BlockPool
from nanovllm.viz.chain import HashChain


class ManagerPool(BlockPool):
    """The block pool of such a record: as high as its blocks, and no step in its title."""

    lowest = 0

    @property
    def heading(self) -> str:
        """The title, with the free blocks."""
        return f"Block pool: {len(self.state.free)} of {len(self.state.refs)} blocks free"


class ManagerChain(HashChain):
    """The prefix cache of such a record."""

    @property
    def heading(self) -> str:
        """The title, with its size."""
        hits = sum(len(blocks) for blocks in self.record.hits().values())
        return f"Prefix cache: {len(self.nodes)} published blocks" + (f", {hits} just found again" if hits else "")


def manager_record(
    manager: BlockManager,
    sequences: Iterable[Sequence],
    before: Record | None = None,
    labels: Mapping[int, str] | None = None,
) -> Record:
    """`manager` and the sequences that may hold its blocks, copied as they are now.

    before: an earlier record of the same manager; sequences that held no blocks in it count as newly admitted, so that
    the views mark their new blocks and prefix hits. labels: the text of token ids.
    """
    known = {seq.seq_id: seq for seq in sequences}
    parts: dict[str, Any] = {"block_manager": manager, "sequences": known, "waiting": [], "running": known.values()}
    state = capture(cast(Scheduler, SimpleNamespace(**parts)))
    old = State() if before is None else before.after
    admitted = [s for s in known.values() if s.block_table and not old.tables.get(s.seq_id)]
    return Record(
        step=0 if before is None else before.step + 1,
        kind="idle",
        start=0.0,
        phases={},
        before=old,
        scheduled=state,
        after=state,
        arrivals=[],
        decisions=[_admission(seq) for seq in admitted],
        tensors=None,
        limits={"block_size": manager.block_size, "num_blocks": manager.num_blocks},
        labels=dict(labels or {}),
    )


def _admission(seq: Sequence) -> Note:
    hit = seq.num_prefix_tokens
    return Note("admit", seq.seq_id, f"request {seq.seq_id} admitted, {hit} tokens cached", {"hit": hit})
