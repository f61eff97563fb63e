"""Drawings of one step's record for a terminal: each function draws one thing and knows nothing of the others.

Requests are named #0, #1, ... on their own colour. Every picture says the same without colour.
"""

import re
from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from nanovllm.cli.palette import DIM, chip, field
from nanovllm.trace import Record, State

BLOCKS_A_ROW = 16
FREE, FINDABLE = " · ", " ○ "
TextOf = Callable[[int], str]


def runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive numbers joined: [0, 1, 2, 7] -> [(0, 2), (7, 7)]."""
    found: list[tuple[int, int]] = []
    for n in numbers:
        if found and n == found[-1][1] + 1:
            found[-1] = (found[-1][0], n)
        else:
            found.append((n, n))
    return found


def span(first: int, last: int) -> str:
    """A range of numbers: "4" or "4–7"."""
    return str(first) if first == last else f"{first}–{last}"


def spans(numbers: Sequence[int]) -> str:
    """Several ranges: "0–2 7"."""
    return " ".join(span(*run) for run in runs(numbers))


def with_chips(sentence: str) -> Text:
    """A sentence with each "request 3" or "#3" as that request's chip."""
    text = Text()
    for part in re.split(r"((?:request |#)\d+)", sentence):
        match = re.fullmatch(r"(?:request |#)(\d+)", part)
        text.append_text(chip(int(match[1])) if match else Text(part))
    return text


def deque_view(seq_ids: Sequence[int], names: Sequence[str]) -> Text:
    """A queue of requests, its head on the left."""
    if not seq_ids:
        return Text("empty", DIM)
    return Text(" ").join(chip(i, names[i]) for i in seq_ids)


def decisions_view(record: Record) -> Text:
    """What the scheduler decided, in its own words. A finish belongs to the end of the step: see `finished_view`."""
    said = [with_chips(note.reason) for note in record.decisions if note.kind not in ("finish", "abort")]
    return Text("\n").join(said)


def batch_view(record: Record, text_of: TextOf) -> Table:
    """The rows of the batch as the device holds them: tokens, positions, and the slots that take their K/V."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=DIM)
    for column in ("", "tokens in", "positions", "slots", "= block:place"):
        table.add_column(column, no_wrap=column != "slots")
    tensors = record.tensors
    if tensors is None:
        return table
    bounds = tensors.query_bounds
    for row, seq_id in enumerate(tensors.rows):
        rows = slice(bounds[row], bounds[row + 1])
        ids, positions, slots = tensors.input_ids[rows], tensors.positions[rows], tensors.slot_mapping[rows]
        tokens = Text(repr(text_of(ids[0]))) if len(ids) == 1 else Text(f"{len(ids)} tokens")
        ends = [record.slot_name(slots[0])] + [record.slot_name(slots[-1])] * (len(slots) > 1)
        table.add_row(chip(seq_id), tokens, spans(positions), spans(slots), "–".join(ends))
    return table


def block_tables_view(record: Record) -> Table:
    """Each request's block table, in logical order: + taken in this step, ↻ found in the prefix cache."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=DIM)
    for column in ("", "tokens", "blocks", "block table"):
        table.add_column(column, no_wrap=column != "block table", justify="right" if column == "blocks" else "left")
    state, fresh, found = record.scheduled, record.allocated(), record.hits()
    for seq_id, blocks in state.tables.items():
        if blocks:
            marks = ["+" if b in fresh.get(seq_id, ()) else "↻" if b in found.get(seq_id, ()) else "" for b in blocks]
            tokens = str(state.column("num_tokens")[seq_id])
            table.add_row(chip(seq_id), tokens, str(len(blocks)), _marked_spans(blocks, marks))
    return table


def _marked_spans(blocks: Sequence[int], marks: Sequence[str]) -> Text:
    """Ranges of blocks, each with the mark that all of its blocks share."""
    text, start = Text(), 0
    for i in range(1, len(blocks) + 1):
        if i == len(blocks) or marks[i] != marks[start]:
            style = "bold" if marks[start] else ""
            shown = " ".join(marks[start] + span(*run) for run in runs(blocks[start:i]))
            text.append(" " if start else "").append(shown, style)
            start = i
    return text


def pool_view(state: State) -> Text:
    """The block pool: each cell is a block with its owner, 16 to a row, the first block's number before each row."""
    owners, findable = state.owners(), state.reusable
    text = Text()
    for block in range(len(state.refs)):
        if block % BLOCKS_A_ROW == 0:
            text.append(("\n" if block else "") + f"{block:>3} ", DIM)
        text.append_text(_cell(owners.get(block, []), block in findable)).append(" ")
    return text


def _cell(owners: Sequence[int], findable: bool) -> Text:
    """One block: its owner, two owners, the number of owners, or free."""
    if not owners:
        return Text(FINDABLE if findable else FREE, DIM)
    if len(owners) == 1:
        return Text(f" {owners[0]} ", field(owners[0]))
    if len(owners) == 2:
        first, second = owners
        return Text.assemble((str(first), field(first)), ("+", field(first)), (str(second), field(second)))
    return Text(f"×{len(owners):<2}", field(owners[0]))


def pool_counts(state: State) -> Text:
    """How full the pool is, in words."""
    free, total = len(state.free), len(state.refs)
    shared = sum(len(o) > 1 for o in state.owners().values())
    parts = [f"{total - free} of {total} blocks used"]
    parts += [f"{shared} of them shared"] if shared else []
    parts += [f"{free} free"]
    parts += [f"{len(state.reusable)} of those still hold a prefix (○)"] if state.reusable else []
    return Text(", ".join(parts), DIM)


def sampled_view(record: Record, text_of: TextOf) -> Text:
    """The token that each request got; a chunk that does not end its prompt gets none."""
    tensors = record.tensors
    if tensors is None or not tensors.sampled:
        return Text("none yet: the prompt is not complete", DIM)
    pairs = zip(tensors.sampled_rows, tensors.sampled, strict=True)
    return Text("  ").join(
        chip(seq_id).append(f"\u00a0{text_of(token)!r}", "default on default") for seq_id, token in pairs
    )
