"""Who owns which KV block: ids, reference counts and the prefix cache. Knows block numbers only, never K/V values."""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import xxhash

from nanovllm.scheduler.sequence import Sequence

HashFunction = Callable[[int | None, list[int]], int]


def chained_hash(previous: int | None, token_ids: list[int]) -> int:
    """The hash of a full block: xxh64 over the previous block's hash and this block's tokens.

    Chaining makes equal blocks at different places, or after different prefixes, hash differently: K/V depend on
    everything before them. The first block of a sequence has no previous hash.
    """
    h = xxhash.xxh64()
    if previous is not None:
        h.update(previous.to_bytes(8, "little"))
    h.update(array("q", token_ids).tobytes())
    return h.intdigest()


class Block:
    """One physical block. `hash`, `token_ids`, `content_id` and `parent_id` are set while it is in the prefix cache.

    content_id: unique for each publication. parent_id: the content_id of the block before it, None for a first block.
    Together with the tokens they identify the whole prefix exactly, so a hash collision can never serve wrong K/V.
    """

    __slots__ = ("block_id", "content_id", "hash", "parent_id", "ref_count", "token_ids")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.forget()

    def forget(self) -> None:
        """Drop what was published: the block's slots are about to be overwritten."""
        self.hash: int | None = None
        self.token_ids: list[int] | None = None
        self.content_id: int | None = None
        self.parent_id: int | None = None


@dataclass(slots=True)
class AllocationPlan:
    """What admitting a sequence would take."""

    cached_block_ids: list[int]  # prefix hits, in order
    num_new_blocks: int  # blocks to take from the free list besides the hits
    num_free_blocks: int  # free blocks left once the hits that were free are taken

    @property
    def missing(self) -> int:
        """Free blocks that are lacking; 0 when the sequence can be admitted."""
        return max(0, self.num_new_blocks - self.num_free_blocks)


class BlockManager:
    """The pool of `num_blocks` blocks of `block_size` tokens.

    A block is *used* while its reference count is positive and *free* otherwise. A free block keeps its hash and
    tokens until it is recycled, so a later request with the same prefix can take it back; recycling takes the block
    that has been free the longest.
    """

    def __init__(self, num_blocks: int, block_size: int, hash_function: HashFunction = chained_hash) -> None:
        self.block_size = block_size
        self.blocks = [Block(i) for i in range(num_blocks)]
        self.hash_to_block_id: dict[int, int] = {}  # may be cleared by a caller to empty the prefix cache
        self.free_block_ids: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))  # oldest first
        self._hash_function = hash_function
        self._next_content_id = 0

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return len(self.blocks)

    @property
    def num_free_blocks(self) -> int:
        """Blocks without an owner; some may still be found by their prefix."""
        return len(self.free_block_ids)

    @property
    def num_used_blocks(self) -> int:
        """Blocks with at least one owner."""
        return len(self.blocks) - len(self.free_block_ids)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return (num_tokens + self.block_size - 1) // self.block_size

    # --- the prefix cache -------------------------------------------------------------------------------------------

    def block_hash(self, seq: Sequence, index: int) -> int:
        """The chained hash of the sequence's full block `index`; computed once and kept with the sequence."""
        hashes = seq.block_hashes
        while len(hashes) <= index:
            hashes.append(self._hash_function(hashes[-1] if hashes else None, seq.block(len(hashes))))
        return hashes[index]

    def _lookup(self, seq: Sequence, index: int, parent_id: int | None) -> Block | None:
        """The published block with exactly this content after exactly this prefix, or None."""
        block_id = self.hash_to_block_id.get(self.block_hash(seq, index))
        if block_id is None:
            return None
        block = self.blocks[block_id]
        # The hash only finds the candidate. Its own tokens and its parent's identity decide: two prefixes may collide.
        same = block.parent_id == parent_id and block.token_ids == seq.block(index)
        return block if same else None

    def match_prefix(self, seq: Sequence) -> list[int]:
        """Block ids of the longest published prefix, leaving at least one token to compute.

        A fully cached prompt would leave nothing to run, and so no logits to sample from: hence num_tokens - 1.
        """
        hits: list[int] = []
        parent_id: int | None = None
        for index in range((seq.num_tokens - 1) // self.block_size):
            block = self._lookup(seq, index, parent_id)
            if block is None:
                break
            hits.append(block.block_id)
            parent_id = block.content_id
        return hits

    def publish(self, seq: Sequence, num_cached_before: int) -> None:
        """Make the full blocks that the last step completed findable. Call it after their K/V were computed.

        num_cached_before: `seq.num_cached_tokens` before that step; the blocks before it are published already.
        """
        first = num_cached_before // self.block_size
        last = seq.num_cached_tokens // self.block_size
        if first == last:
            return
        parent_id = self._content_id_at(seq, first - 1)
        for index in range(first, last):
            if index > 0 and parent_id is None:
                return  # the block before it is not findable (a collision, or the cache was emptied): neither is this
            twin = self._lookup(seq, index, parent_id)
            if twin is not None:  # the same content was published by another sequence: that one stays the one to find
                parent_id = twin.content_id
                continue
            parent_id = self._publish_block(seq, index, parent_id)

    def _content_id_at(self, seq: Sequence, index: int) -> int | None:
        """The content id of the sequence's block `index` (its own, or its twin's), or None if it is not findable."""
        if index < 0:
            return None
        own = self.blocks[seq.block_table[index]]
        if own.content_id is not None and self.hash_to_block_id.get(self.block_hash(seq, index)) == own.block_id:
            return own.content_id
        parent_id: int | None = None  # rare: walk the prefix from its start through the twins
        for i in range(index + 1):
            block = self._lookup(seq, i, parent_id)
            if block is None:
                return None
            parent_id = block.content_id
        return parent_id

    def _publish_block(self, seq: Sequence, index: int, parent_id: int | None) -> int:
        """Publish one block. An entry with the same hash gives way.

        It is a collision, or the same tokens after a prefix that was recycled since, which nobody can find any more.
        """
        block_hash = self.block_hash(seq, index)
        block = self.blocks[seq.block_table[index]]
        block.hash, block.token_ids, block.parent_id = block_hash, seq.block(index), parent_id
        block.content_id = self._next_content_id
        self._next_content_id += 1
        self.hash_to_block_id[block_hash] = block.block_id
        return block.content_id

    def reset_prefix_cache(self) -> None:
        """Forget every published block; running sequences keep theirs."""
        self.hash_to_block_id.clear()

    # --- taking and returning blocks --------------------------------------------------------------------------------

    def _take(self, block_id: int) -> None:
        """Add an owner to a block, which keeps its published content."""
        block = self.blocks[block_id]
        if block.ref_count == 0:
            del self.free_block_ids[block_id]
        block.ref_count += 1

    def _recycle(self) -> int:
        """Take the block that has been free the longest and drop what it was published under."""
        block_id, _ = self.free_block_ids.popitem(last=False)
        block = self.blocks[block_id]
        if block.hash is not None and self.hash_to_block_id.get(block.hash) == block_id:
            del self.hash_to_block_id[block.hash]
        block.forget()
        block.ref_count = 1
        return block_id

    def plan(self, seq: Sequence) -> AllocationPlan:
        """What admitting `seq` would take now. Changes nothing."""
        hits = self.match_prefix(seq)
        num_free_hits = sum(self.blocks[b].ref_count == 0 for b in hits)
        return AllocationPlan(hits, seq.num_blocks - len(hits), self.num_free_blocks - num_free_hits)

    def can_allocate(self, seq: Sequence) -> bool:
        """True if all known tokens of `seq` fit now, prefix hits counted."""
        return self.plan(seq).missing == 0

    def allocate(self, seq: Sequence, plan: AllocationPlan | None = None) -> None:
        """Give `seq` blocks for all its known tokens: the prefix hits first, then recycled ones.

        Sets `block_table`, `num_cached_tokens` and `num_prefix_tokens`. `plan` must come from `plan(seq)` with nothing
        changed in between.
        """
        if seq.block_table:
            raise RuntimeError(f"sequence {seq.seq_id} already owns {len(seq.block_table)} blocks; deallocate it first")
        plan = plan or self.plan(seq)
        if plan.missing:
            raise RuntimeError(
                f"sequence {seq.seq_id} needs {plan.num_new_blocks} free blocks and {plan.num_free_blocks} are free"
            )
        for block_id in plan.cached_block_ids:
            self._take(block_id)
        new = [self._recycle() for _ in range(plan.num_new_blocks)]
        seq.block_table = plan.cached_block_ids + new
        seq.num_cached_tokens = seq.num_prefix_tokens = len(plan.cached_block_ids) * self.block_size

    def can_append(self, seq: Sequence) -> bool:
        """True if the newest token of `seq` has a slot, or a free block can give it one."""
        return seq.num_tokens <= len(seq.block_table) * self.block_size or bool(self.free_block_ids)

    def append(self, seq: Sequence, num_ahead: int = 0) -> None:
        """Make room for the newest token of `seq`, taking a block when it is the first of a new one.

        num_ahead: tokens still being sampled that need a slot besides (see scheduler/ahead.py).

        Evaluated when the step is scheduled: the token sampled by the step before is already counted in `num_tokens`,
        so a block is needed when num_tokens % block_size == 1, not 0.
        """
        if seq.num_tokens + num_ahead > len(seq.block_table) * self.block_size:
            seq.block_table.append(self._recycle())

    def deallocate(self, seq: Sequence) -> None:
        """Give up all blocks of `seq`. Doing it twice is harmless.

        Last block first, so that the start of a prefix, which most others share, is recycled last.
        """
        for block_id in reversed(seq.block_table):
            block = self.blocks[block_id]
            block.ref_count -= 1
            if block.ref_count == 0:
                self.free_block_ids[block_id] = None
        seq.block_table = []
        seq.num_cached_tokens = 0

    # --- looking inside ---------------------------------------------------------------------------------------------

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise AssertionError unless free + used = total and each reference count equals the owners in `sequences`."""
        owners = [0] * self.num_blocks
        for seq in sequences:
            for block_id in seq.block_table:
                owners[block_id] += 1
        for block in self.blocks:
            b = block.block_id
            assert block.ref_count == owners[b], f"block {b}: ref count {block.ref_count}, owners {owners[b]}"
            assert (b in self.free_block_ids) == (owners[b] == 0), f"block {b}: {owners[b]} owners but wrong free list"
        for block_hash, b in self.hash_to_block_id.items():
            assert self.blocks[b].hash == block_hash, f"hash entry of block {b} is stale"

    def snapshot(self) -> dict[str, Any]:
        """The state as plain values, for traces, tests, views and error messages."""
        return {
            "num_blocks": self.num_blocks,
            "block_size": self.block_size,
            "free": list(self.free_block_ids),
            "ref_counts": [b.ref_count for b in self.blocks],
            "hashes": {b.block_id: b.hash for b in self.blocks if b.hash is not None},
            "cached": {b: self.blocks[b].token_ids for b in self.hash_to_block_id.values()},
        }
