"""The packed batch, and what each query of a sequence may see of its pages."""

from math import ceil

from nanovllm.trace.record import Record
from nanovllm.viz.svg import HALF, box, label, line, of_request, request_box, request_label
from nanovllm.viz.view import View, ids

_MAX_ROWS = 6


class PackedBatch(View):
    """The step's rows: where each begins and ends in the packed tensor, its positions, its query and key lengths."""

    title = "Packed batch"

    @property
    def heading(self) -> str:
        """The title, with the size of the batch."""
        t = self.record.tensors
        size = f": {len(t.input_ids)} tokens of {len(t.rows)} sequence{'s' * (len(t.rows) > 1)}" if t else ""
        return f"Packed batch of {self.record.when}{size}"

    def rows(self) -> list[tuple[int, int, int, int, int]]:
        """(sequence, first packed row, query length, first position, key length), from the device tensors."""
        t = self.record.tensors
        if t is None:
            return []
        bounds = t.query_bounds
        return [
            (seq_id, bounds[i], bounds[i + 1] - bounds[i], t.positions[bounds[i]], t.context_lens[i])
            for i, seq_id in enumerate(t.rows)
        ]

    def text(self) -> str:
        """The tensors in short, and a line a sequence."""
        t = self.record.tensors
        if t is None:
            return "no batch in this step"
        lines = [f"{self.record.kind}: num_tokens {len(t.input_ids)}, num_seqs {len(t.rows)}"]
        for name in ("cu_seqlens_q", "cu_seqlens_k", "context_lens", "positions", "input_ids", "sampled"):
            values = getattr(t, name)
            lines.append(f"{name}: {'none' if values is None else ids(values)}")
        for seq_id, start, length, position, keys in self.rows():
            lines.append(
                f"request {seq_id}: rows {start}..{start + length - 1}, positions {position}..{position + length - 1}, "
                f"{length} queries, {keys} keys"
            )
        return "\n".join(lines)

    def draw(self) -> tuple[float, float, str]:
        """The packed tensor as one bar; under it each sequence's keys, cached ones pale."""
        rows = self.rows()
        total = max(1, sum(length for _, _, length, _, _ in rows))
        scale = (HALF - 32) / total
        body = label(16, 52, "cu_seqlens_q" if self.record.kind == "prefill" else "one row a sequence", "muted", 11)
        bucket = self.record.tensors.graph_bucket if self.record.tensors else None
        if bucket is not None:  # in the picture only: the text is the same with and without graphs
            body += label(HALF - 16, 52, f"CUDA graph of {bucket} rows", "muted", 11, "end")
        last = -99.0
        for seq_id, start, length, _, _ in rows:
            x, w = 16 + start * scale, length * scale
            inside = request_label(seq_id, x + w / 2, 77, seq_id, 11) if w > 14 else ""
            shape = request_box(seq_id, x, 62, w, 20, 2, words=f"request {seq_id}: {length} rows from {start}")
            body += of_request(seq_id, shape, inside)
            if x - last > 16:
                body += label(x, 95, start, "muted", 10, "middle" if start else "start")
                last = x
        if rows:
            body += label(HALF - 16, 95, sum(r[2] for r in rows), "muted", 10, "end")
        body += self._keys(rows[:_MAX_ROWS])
        more = len(rows) - _MAX_ROWS
        if more > 0:
            body += label(16, 268, f"and {more} more", "muted", 11)
        return HALF, 282, body

    def _keys(self, rows: list[tuple[int, int, int, int, int]]) -> str:
        longest = max((keys for *_, keys in rows), default=1)
        left, room = 60, 320
        body = label(left, 118, "keys: cached · new", "muted", 11) + label(
            left + room + 14, 118, "positions", "muted", 11
        )
        body += label(HALF - 66, 118, "q", "muted", 11, "end") + label(HALF - 20, 118, "k", "muted", 11, "end")
        for index, (seq_id, _, length, position, keys) in enumerate(rows):
            y, unit = 126 + index * 23, room / longest
            parts = request_box(seq_id, 16, y, 32, 16, 4) + request_label(seq_id, 32, y + 12, seq_id, 11)
            if position:
                parts += request_box(seq_id, left, y, position * unit, 16, 2, tint=True)
            parts += request_box(seq_id, left + position * unit, y, max(2.5, length * unit), 16, 2)
            span = f"{position}–{position + length - 1}" if length > 1 else f"{position}"
            parts += label(left + room + 14, y + 12, span, size=11.5)
            parts += label(HALF - 66, y + 12, length, size=11.5, anchor="end")
            parts += label(HALF - 20, y + 12, keys, size=11.5, anchor="end")
            body += of_request(seq_id, parts)
        return body


class AttentionMask(View):
    """Which keys each query of one sequence attends to, page by page. seq_id None takes the row with most queries."""

    title = "Attention mask"

    def __init__(self, record: Record, seq_id: int | None = None) -> None:
        super().__init__(record)
        t = record.tensors
        if t is not None and seq_id is not None and seq_id not in t.rows:
            raise ValueError(f"request {seq_id} is not in the batch of step {record.step}; its rows are {t.rows}")
        self.seq_id = seq_id
        if t is not None and seq_id is None:
            bounds = t.query_bounds
            row = max(range(len(t.rows)), key=lambda i: (bounds[i + 1] - bounds[i], t.context_lens[i]))
            self.seq_id = t.rows[row]

    @property
    def heading(self) -> str:
        """The title, with the sequence."""
        who = f" of request {self.seq_id}" if self.seq_id is not None else ""
        return f"Attention mask{who} in {self.record.when}: queries against pages of keys"

    def _shape(self) -> tuple[list[int], int, list[int]]:
        """Positions of the queries, number of keys, physical blocks of the pages."""
        t = self.record.tensors
        if t is None or self.seq_id is None:
            return [], 0, []
        row = t.rows.index(self.seq_id)
        positions = t.positions[t.query_bounds[row] : t.query_bounds[row + 1]]
        keys = t.context_lens[row]
        pages = -(-keys // self.record.block_size)
        table = t.block_tables[row] if t.block_tables is not None else self.record.scheduled.tables.get(self.seq_id, [])
        return positions, keys, table[:pages]

    def text(self) -> str:
        """A line a query: # is seen, . is not, | is the border of a page."""
        positions, keys, pages = self._shape()
        if not positions:
            return "no queries in this step"
        size = self.record.block_size
        lines = [
            f"request {self.seq_id}: queries {positions[0]}..{positions[-1]}, keys 0..{keys - 1}, pages {ids(pages)}"
        ]
        for position in positions:
            marks = "".join("#" if key <= position else "." for key in range(keys))
            lines.append(f"{position:>4} " + "|".join(marks[i : i + size] for i in range(0, keys, size)))
        return "\n".join(lines)

    def draw(self) -> tuple[float, float, str]:
        """Queries down, keys across; pale keys were cached before, full ones are of this step."""
        positions, keys, pages = self._shape()
        if not positions or self.seq_id is None:
            return HALF, 282, label(16, 60, "no queries in this step", "muted")
        left, top = 60.0, 84.0
        w, h = min(22.0, (HALF - left - 20) / keys), min(22.0, 160 / len(positions))
        start, size = positions[0], self.record.block_size
        body = self._pages(pages, keys, left, top, w, h * len(positions))
        if start:
            body += request_box(self.seq_id, left, top, start * w, h * len(positions), 0, tint=True, stroke_width=0)
        for index, position in enumerate(positions):
            y, gap = top + index * h, 0.6 if h > 3 else 0
            body += request_box(
                self.seq_id, left + start * w, y, (position - start + 1) * w, h - gap, 0, stroke_width=0
            )
            if index % max(1, ceil(13 / h)) == 0:
                body += label(left - 6, y + h / 2 + 4, position, "muted", 10, "end")
        for page in range(1, len(pages)):
            x = left + page * size * w
            body += line(x, top, x, top + h * len(positions), "card", stroke_width=1.6)
        body += label(16, 68, "query", "muted", 11)
        many = len(positions) > 1
        foot = f"{len(positions)} queries see" if many else "one query sees"
        foot += f" {start} cached keys and, causally, {len(positions)} new one{'s' * many}"
        return HALF, 282, of_request(self.seq_id, body) + label(16, 270, foot, "muted", 11)

    def _pages(self, pages: list[int], keys: int, left: float, top: float, w: float, tall: float) -> str:
        size, body = self.record.block_size, ""
        body += label(left, 50, "key pages, by physical block", "muted", 11)
        for index, block in enumerate(pages):
            x = left + index * size * w
            width = min(size, keys - index * size) * w
            body += box(x, top - 22, width - 1, 17, "soft", "line", rx=3, words=f"page {index} is block {block}")
            if width > 14:
                body += label(x + width / 2, top - 9, block, size=10, anchor="middle", bold=True)
            body += box(x, top, width, tall, "soft", rx=0)
        return body
