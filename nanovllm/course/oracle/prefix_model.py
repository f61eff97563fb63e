"""Which prefixes the prefix cache must find for certain: a lower bound that says nothing on how it finds them."""

Prefix = tuple[int, ...]


class PrefixModel:
    """Follows which block holds which whole prefix.

    A prefix is *certain* while exactly one block holds it, that block was completed when the prefix one block shorter
    was certain, and it has not been recycled. Where two blocks hold the same prefix, an implementation may keep
    either, so nothing is demanded.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._content: dict[int, Prefix] = {}
        self._holders: dict[Prefix, set[int]] = {}
        self._certain: dict[Prefix, int] = {}

    def completed(self, block_id: int, prefix: Prefix) -> None:
        """The last slot of `block_id` was computed and booked; `prefix` ends with the tokens of that block."""
        self._content[block_id] = prefix
        holders = self._holders.setdefault(prefix, set())
        holders.add(block_id)
        parent = prefix[: -self.block_size]
        if len(holders) == 1 and (not parent or parent in self._certain):
            self._certain[prefix] = block_id
        elif prefix in self._certain:
            self._drop(prefix)

    def recycled(self, block_id: int) -> None:
        """`block_id` was taken to hold something else."""
        prefix = self._content.pop(block_id, None)
        if prefix is None:
            return
        self._holders.get(prefix, set()).discard(block_id)
        if self._certain.get(prefix) == block_id:
            self._drop(prefix)

    def reset(self) -> None:
        """The prefix cache was emptied."""
        self._holders.clear()
        self._certain.clear()

    def least_hits(self, token_ids: list[int]) -> int:
        """Blocks that a request with these tokens must find, always leaving one token to compute."""
        bs, hits = self.block_size, 0
        while (hits + 1) * bs < len(token_ids) and tuple(token_ids[: (hits + 1) * bs]) in self._certain:
            hits += 1
        return hits

    def _drop(self, prefix: Prefix) -> None:
        """`prefix`, and whatever is only found through it, is no longer certain."""
        for longer in [p for p in self._certain if p[: len(prefix)] == prefix]:
            del self._certain[longer]
