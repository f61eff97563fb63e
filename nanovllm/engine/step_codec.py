"""What a step sends to the other ranks: only what changed.

Rank 0 encodes, every worker decodes; both remember the block table of each sequence that has one. A decode step sends
one token a sequence, and block ids only for sequences that got a new block since the last step. A prefill step sends
the tokens of its chunks. Nothing else of a request (its text, sampling parameters, older tokens) ever leaves rank 0.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from itertools import accumulate
from typing import NamedTuple, Protocol

from nanovllm.scheduler.sequence import ScheduledSlice


class HasBlockTable(Protocol):
    """What the encoder needs of a live sequence."""

    block_table: list[int]


class StepMessage(NamedTuple):
    """One step for the workers; B sequences in the order of the batch.

    tokens: the chunks' ids one after the other; one each in a decode step.
    lengths: [B] tokens of each chunk; None in a decode step, where it is 1.
    starts: [B], the position of the first of them.
    totals: [B] tokens that each sequence has in all; None in a decode step, where it is start + 1.
    tables: for sequences whose table changed: (seq_id, number of leading blocks kept, block ids that follow them).
    dropped: ids of sequences that gave their blocks back (finished, cancelled or preempted).
    is_fed: the tokens are being sampled by the step before and come from rank 0's GPU; `tokens` holds placeholders.
    """

    is_prefill: bool
    seq_ids: list[int]
    tokens: list[int]
    lengths: list[int] | None
    starts: list[int]
    totals: list[int] | None
    tables: list[tuple[int, int, list[int]]]
    dropped: list[int]
    is_fed: bool = False

    @property
    def chunks(self) -> list[list[int]]:
        """The tokens of each sequence."""
        if self.lengths is None:
            return [[token] for token in self.tokens]
        ends = list(accumulate(self.lengths))
        return [self.tokens[end - n : end] for end, n in zip(ends, self.lengths, strict=True)]


class _Sent(NamedTuple):
    """What the workers know of a block table: the list it was read from, and how far."""

    table: list[int]
    length: int
    last: int


class StepEncoder:
    """Rank 0's half. It holds on to each live sequence's own list, so that "the same table, longer" is one comparison.

    The block manager appends to a table or replaces it; it never changes an id in place.
    """

    def __init__(self) -> None:
        self._sent: dict[int, _Sent] = {}

    def encode(
        self, slices: Seq[ScheduledSlice], is_prefill: bool, live: Mapping[int, HasBlockTable], is_fed: bool = False
    ) -> StepMessage:
        """The message of one step. `live`: every unfinished sequence, to notice those that gave up their blocks."""
        tables = [change for s in slices if (change := self._change(s)) is not None]
        return StepMessage(
            is_prefill=is_prefill,
            seq_ids=[s.seq_id for s in slices],
            tokens=[token for s in slices for token in s.token_ids],
            lengths=[len(s.token_ids) for s in slices] if is_prefill else None,
            starts=[s.start for s in slices],
            totals=[s.num_tokens for s in slices] if is_prefill else None,
            tables=tables,
            dropped=self._drop_released(live) if len(self._sent) > len(slices) else [],
            is_fed=is_fed,
        )

    def _change(self, s: ScheduledSlice) -> tuple[int, int, list[int]] | None:
        table, known = s.block_table, self._sent.get(s.seq_id)
        is_longer = (
            known is not None
            and known.table is table
            and len(table) >= known.length > 0
            and table[known.length - 1] == known.last
        )
        keep = known.length if known is not None and is_longer else 0
        if keep == len(table):
            return None
        self._sent[s.seq_id] = _Sent(table, len(table), table[-1])
        return s.seq_id, keep, table[keep:]

    def _drop_released(self, live: Mapping[int, HasBlockTable]) -> list[int]:
        """Forget the sequences that are gone or whose table was replaced, and name them."""
        gone = [i for i, sent in self._sent.items() if i not in live or live[i].block_table is not sent.table]
        for seq_id in gone:
            del self._sent[seq_id]
        return gone


class StepDecoder:
    """A worker's half: rebuilds the slices that rank 0 runs itself."""

    def __init__(self) -> None:
        self.tables: dict[int, list[int]] = {}

    def decode(self, message: StepMessage) -> list[ScheduledSlice]:
        """The slices of one step, in the order of the batch."""
        for seq_id in message.dropped:
            del self.tables[seq_id]
        for seq_id, keep, new in message.tables:
            if keep:
                self.tables[seq_id] += new
            else:
                self.tables[seq_id] = new
        totals = message.totals or [start + 1 for start in message.starts]
        rows = zip(message.seq_ids, message.chunks, message.starts, totals, strict=True)
        return [
            ScheduledSlice(seq_id, chunk, start, total, self.tables[seq_id]) for seq_id, chunk, start, total in rows
        ]
