# ruff: noqa: F401 (imports that you may need)
"""4.2 The message codec: what a step sends to the other ranks.

With tensor parallelism every rank runs every step, but only rank 0 knows the requests. It could send each request's
whole block table in each step; a table of a long context has hundreds of entries, and almost always they are the same
as in the step before. So both sides remember the tables, and only changes travel. A change is (seq_id, keep, new): keep
the first `keep` entries that you know, put `new` behind them. Example, sequence 5 over four steps:

    step   its table         sent             why
    1      [7]               (5, 0, [7])      not known yet
    2      [7]               nothing          the same
    3      [7, 2]            (5, 1, [2])      one block more
    4      [3, 4] (new list) (5, 0, [3, 4])   it was preempted in between, and got other blocks

How does rank 0 notice the last case? The block manager only ever appends to a sequence's list, or replaces it by a new
list. So it is enough to remember the list object itself and how long it was.
"""

from collections.abc import Mapping

from nanovllm.course import ExerciseNotDone
from nanovllm.engine.step_codec import HasBlockTable, StepDecoder, StepEncoder, StepMessage, _Sent
from nanovllm.scheduler.sequence import ScheduledSlice


def change(encoder: StepEncoder, s: ScheduledSlice) -> tuple[int, int, list[int]] | None:
    """The change of one sequence's table since it was last sent, (seq_id, keep, new); None when there is none.

    s.block_table: the sequence's own list now, never empty. encoder._sent: dict from seq_id to _Sent(table, length,
    last): the list object that was sent, its length then, and its last entry then. Remember what you send there.
    A list that is shorter than it was, or whose entry at length - 1 is not `last`, is sent whole as well.
    """
    raise ExerciseNotDone("4.2 message_codec", "when may the worker keep what it has? Ask for that first")


def drop_released(encoder: StepEncoder, live: Mapping[int, HasBlockTable]) -> list[int]:
    """Ids of the sequences that gave up the blocks that were sent, in any order; each is forgotten in encoder._sent.

    live: every unfinished sequence by its id. One that is not there has finished or was cancelled. One whose
    live[seq_id].block_table is another list than the one sent was preempted.
    """
    raise ExerciseNotDone("4.2 message_codec", "a dict must not change while a loop goes through it")


def decode(decoder: StepDecoder, message: StepMessage) -> list[ScheduledSlice]:
    """A worker's side: the slices of a step, as rank 0 runs them, in the order of the batch.

    decoder.tables: dict from seq_id to block table; it holds what this worker knows and is yours to keep up to date.
    message.dropped: ids to forget. message.tables: changes, as above.
    message.seq_ids, message.chunks, message.starts: for each of B sequences its id, its tokens in this step, and the
    position of the first of them. message.totals: the tokens that each has in all; None in a decode step, where each
    has start + 1.
    Returns ScheduledSlice(seq_id, token_ids, start, num_tokens, block_table) for each.
    """
    raise ExerciseNotDone("4.2 message_codec", "bring decoder.tables up to date first, then build the slices")
