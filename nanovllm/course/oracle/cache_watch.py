"""Watches what the batches of a trace claim of the KV cache: what is cached, what they write, what they read."""

from collections.abc import Container

from nanovllm.course.oracle.fake_runner import FakeRunner
from nanovllm.course.oracle.invariants import Before
from nanovllm.course.oracle.prefix_model import PrefixModel
from nanovllm.course.oracle.reference import Expected
from nanovllm.course.oracle.report import Violation
from nanovllm.course.oracle.trace import Trace
from nanovllm.scheduler import ScheduledSlice


class CacheWatch:
    """The fake cache of one trace, and what must be true of it.

    expected: request id -> what it must come to; the caller fills it as requests are accepted.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.runner = FakeRunner(trace.num_blocks, trace.block_size, trace.vocab_size)
        self.prefixes = PrefixModel(trace.block_size)
        self.expected: dict[int, Expected] = {}
        self.num_tokens: dict[int, int] = {}  # request id -> tokens it has, from the first sampled one on
        self.num_hits = 0  # tokens found in the prefix cache

    def begin_step(self, before: Before, slices: list[ScheduledSlice], unread: Container[int] = ()) -> None:
        """Scramble the blocks that this schedule recycled, then check what the slices take for cached.

        unread: ids of the requests that have one token more than was booked, which a step in flight samples.
        Scrambling comes first: a block that one request fills in this step can be nobody's prefix yet.
        """
        for piece in slices:
            self._check_hits(before, piece)
            for block_id in self._recycled(before, piece):
                self.prefixes.recycled(block_id)
                self.runner.scramble(block_id)
        for piece in slices:
            count = self.num_tokens.get(piece.seq_id, self.expected[piece.seq_id].num_prompt_tokens)
            count += piece.seq_id in unread
            if piece.num_tokens != count:
                raise Violation("slice", f"request {piece.seq_id} has {count} tokens", f"{piece.num_tokens}")
            wanted = self.expected[piece.seq_id].token_ids[piece.start : piece.end]
            if piece.token_ids != wanted or not wanted:
                where = f"request {piece.seq_id} feeds in {wanted} from position {piece.start}"
                raise Violation("slice", where, f"its slice holds {piece.token_ids}")
            self._check_read(piece, piece.start)

    def run(self, slices: list[ScheduledSlice]) -> list[int | None]:
        """The forward pass; afterwards each slice must find its own tokens at all positions up to its end."""
        tokens = self.runner.run(slices)
        for piece in slices:
            self._check_read(piece, piece.end)
        return tokens

    def booked(self, piece: ScheduledSlice) -> None:
        """The step was booked: the blocks that `piece` completed may be found from now on."""
        bs, tokens = self.trace.block_size, self.expected[piece.seq_id].token_ids
        for index in range(piece.start // bs, piece.end // bs):
            self.prefixes.completed(piece.block_table[index], tuple(tokens[: (index + 1) * bs]))

    def _check_hits(self, before: Before, piece: ScheduledSlice) -> None:
        """A request that is admitted finds at least what is certainly there."""
        if before.tables.get(piece.seq_id):
            return
        self.num_hits += piece.start
        if self.trace.hash_range is not None:
            return  # with colliding hashes nothing is certain to be found
        bs = self.trace.block_size
        least = self.prefixes.least_hits(self.expected[piece.seq_id].token_ids[: piece.num_tokens]) * bs
        if piece.start < least:
            expected = f"request {piece.seq_id} finds its first {least} tokens in the prefix cache"
            raise Violation("prefix", expected, f"it found {piece.start}")

    def _recycled(self, before: Before, piece: ScheduledSlice) -> list[int]:
        """Blocks that the slice's table gained in this step, without those it takes for cached."""
        old, table = before.tables.get(piece.seq_id, []), piece.block_table
        kept = 0
        while kept < min(len(old), len(table)) and old[kept] == table[kept]:
            kept += 1
        return [table[i] for i in range(kept, len(table)) if i * self.trace.block_size >= piece.start]

    def _check_read(self, piece: ScheduledSlice, end: int) -> None:
        """Positions 0 .. end-1, read through the block table, hold this request's own values."""
        wanted = self.expected[piece.seq_id].values[:end]
        found = self.runner.read(piece, end)
        if found == wanted:
            return
        position = next(
            (i for i, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), len(found)
        )
        token_id = self.expected[piece.seq_id].token_ids[position]
        expected = f"request {piece.seq_id} reads its own token {token_id} at position {position}"
        actual = self.runner.describe(piece, position)
        if f"its token {token_id} at position {position}" in actual:
            actual += ", after another prefix"
        raise Violation("cache", expected, actual)
