"""The fake model and its paged cache: it knows scheduled slices only, exactly as the real model runner does."""

from itertools import chain

from nanovllm.course.oracle.reference import ROOT, kv_value, next_token
from nanovllm.course.oracle.report import Violation
from nanovllm.scheduler import ScheduledSlice


class FakeRunner:
    """Writes each scheduled token into its slot through the block table, reads all back, answers from what it read.

    blocks: [num_blocks][block_size] fake K/V values (see `kv_value`), one per slot.
    notes: what each slot holds in words, for the failure message.
    """

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self._num_poisons = 0
        self.blocks: list[list[int]] = [[0] * block_size for _ in range(num_blocks)]
        self.notes: list[list[tuple[int, int, int] | None]] = [[None] * block_size for _ in range(num_blocks)]
        for block_id in range(num_blocks):
            self.scramble(block_id)

    def scramble(self, block_id: int) -> None:
        """Overwrite a block with values never seen before, so that reading it before writing it gives nonsense."""
        for offset in range(self.block_size):
            self._poison(block_id, offset)

    def _poison(self, block_id: int, offset: int) -> None:
        self._num_poisons += 1
        self.blocks[block_id][offset] = kv_value(~ROOT, self._num_poisons, 0)
        self.notes[block_id][offset] = None

    def read(self, piece: ScheduledSlice, end: int) -> list[int]:
        """The values of positions 0 .. end-1 through the block table; fewer if the table is too short."""
        return list(chain.from_iterable([self.blocks[b] for b in piece.block_table]))[:end]

    def describe(self, piece: ScheduledSlice, position: int) -> str:
        """What the slot of `position` holds, in words."""
        index, offset = divmod(position, self.block_size)
        if index >= len(piece.block_table):
            return f"no block: block table {piece.block_table} covers {len(piece.block_table) * self.block_size} tokens"
        block_id = piece.block_table[index]
        note = self.notes[block_id][offset]
        where = f"slot {offset} of block {block_id}"
        if note is None:
            return f"{where}, not written since the block was recycled"
        return f"{where}, written by request {note[0]}: its token {note[1]} at position {note[2]}"

    def run(self, slices: list[ScheduledSlice]) -> list[int | None]:
        """One forward pass: the next token of each slice, None where a prompt chunk does not reach the last token.

        What a slice says is cached is read before anything of this step is written.
        """
        previous = [self._value_before(piece) for piece in slices]
        for piece, value in zip(slices, previous, strict=True):
            self._write(piece, value)
        return [
            next_token(self.read(piece, piece.end), self.vocab_size) if piece.needs_token else None for piece in slices
        ]

    def corrupt(self, slices: list[ScheduledSlice]) -> None:
        """A forward pass that fails half-way: nobody knows what the step's slots hold now."""
        for piece in slices:
            for position in range(piece.start, piece.end):
                self._poison(*self._slot(piece, position))

    def _value_before(self, piece: ScheduledSlice) -> int:
        if piece.start == 0:
            return ROOT
        block_id, offset = self._slot(piece, piece.start - 1)
        return self.blocks[block_id][offset]

    def _write(self, piece: ScheduledSlice, value: int) -> None:
        for position, token_id in enumerate(piece.token_ids, piece.start):
            block_id, offset = self._slot(piece, position)
            value = kv_value(value, token_id, position)
            self.blocks[block_id][offset] = value
            self.notes[block_id][offset] = (piece.seq_id, token_id, position)

    def _slot(self, piece: ScheduledSlice, position: int) -> tuple[int, int]:
        index, offset = divmod(position, self.block_size)
        if index >= len(piece.block_table):
            raise Violation(
                "slots",
                f"request {piece.seq_id} has a block for position {position}",
                f"its block table {piece.block_table} covers {len(piece.block_table) * self.block_size} tokens",
            )
        return piece.block_table[index], offset
