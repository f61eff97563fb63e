"""The block pool, and block tables as lines from logical to physical blocks."""

from nanovllm.trace.record import Record
from nanovllm.trace.state import State
from nanovllm.viz.svg import (
    FULL,
    HALF,
    box,
    curve,
    element,
    label,
    of_request,
    request_box,
    request_label,
)
from nanovllm.viz.theme import neutral
from nanovllm.viz.view import View, filled_slots, ids

_MAX_CELLS = 240
_MAX_LOGICAL = 72


class BlockPool(View):
    """A cell a block: owners, reference count, how full it is, and whether a free one can still be found.

    As in the prefix cache a dashed outline is a free block, and a bold one a hit of this step.
    when: "after" the step, or "scheduled" (when its blocks were reserved).
    """

    title = "Block pool"
    lowest = 232  # where a panel of the stepper ends at least, px

    def __init__(self, record: Record, when: str = "after") -> None:
        super().__init__(record)
        if when not in ("before", "scheduled", "after"):
            raise ValueError(f"when must be 'before', 'scheduled' or 'after', not {when!r}")
        self.when = when
        self.state: State = getattr(record, when)
        self.owners = self.state.owners()
        self.filled = filled_slots(self.state, record.block_size)

    @property
    def heading(self) -> str:
        """The title, with the moment that is shown."""
        moment = "during" if self.when == "scheduled" else self.when
        return f"Block pool {moment} {self.record.when}: {len(self.state.free)} of {len(self.state.refs)} free"

    def text(self) -> str:
        """A line a block that is used or reusable, and the free list in the order of recycling."""
        state, size = self.state, self.record.block_size
        lines = []
        for block, refs in enumerate(state.refs):
            owners = self.owners.get(block, [])
            if refs or owners:
                full = self.filled.get(block, 0)
                how = "full" if full == size else f"{full} of {size} slots"
                lines.append(f"block {block}: ref count {refs}, owners {ids(owners)}, {how}" + self._findable(block))
            elif block in state.reusable:
                lines.append(f"block {block}: free, reusable")
        return "\n".join([*lines, f"free list: {ids(state.free)}"])

    def _findable(self, block: int) -> str:
        entry = self.state.publication(block)
        return ", published" if entry is not None and entry.findable else ""

    def draw(self) -> tuple[float, float, str]:
        """A grid; big pools show their used and reusable blocks first."""
        total = len(self.state.refs)
        shown = list(range(total))
        if total > _MAX_CELLS:
            interesting = [b for b in shown if self.state.refs[b] or b in self.state.reusable]
            shown = sorted((interesting + [b for b in shown if b not in set(interesting)])[:_MAX_CELLS])
        columns = next(c for c in (10, 15, 20, 24) if len(shown) <= c * 10 or c == 24)
        pitch = (HALF - 32) / columns
        tall = min(40.0, pitch * 0.78)
        body = ""
        for index, block in enumerate(shown):
            x, y = 16 + index % columns * pitch, 48 + index // columns * tall
            body += self._cell(block, x, y, pitch - 4, tall - 5)
        bottom = 48 + -(-len(shown) // columns) * tall
        if total > len(shown):
            body += label(HALF - 16, 40, f"{len(shown)} of {total:,} blocks shown", "muted", 11, "end")
        bottom = max(bottom, self.lowest)
        return HALF, bottom + 34, body + self._legend(bottom + 18)

    def _cell(self, block: int, x: float, y: float, w: float, h: float) -> str:
        owners, refs = self.owners.get(block, []), self.state.refs[block]
        words = f"block {block}: ref count {refs}, owners {ids(owners)}, {self.filled.get(block, 0)} slots filled"
        small = w < 30
        if not owners:
            shape = _free(x, y, w, h, block in self.state.reusable, words)
            return shape + label(x + w / 2, y + h / 2 + 4, block, "muted", 9 if small else 11.5, "middle")
        part = w / len(owners)
        share = self.filled.get(block, 0) / self.record.block_size
        body = "".join(request_box(o, x + i * part, y, part, h, 2, tint=True) for i, o in enumerate(owners))
        for i, owner in enumerate(owners):
            body += request_box(owner, x + i * part, y + h * (1 - share), part, h * share, 2)
        size = 9 if small else 11.5
        body += self._badge(block, x, y, w, h, size)
        fresh = block not in self._owned_before()
        hit = any(block in found for found in self.record.hits().values())
        body += box(x, y, w, h, None, "mark" if hit else None, words=words, stroke_width=2.2 if hit else 0)
        if fresh and not hit:
            body += _corner(x, y, 6 if small else 10)
        return of_request(owners, body)

    def _badge(self, block: int, x: float, y: float, w: float, h: float, size: float) -> str:
        """The block's number, and its reference count where it is shared, on a plate that is legible on any fill."""
        refs = self.state.refs[block]
        words = f"{block} ×{refs}" if refs > 1 else str(block)
        plate = len(words) * size * 0.62 + 6
        return box(x + w / 2 - plate / 2, y + h / 2 - size * 0.75, plate, size * 1.5, "card", rx=4) + label(
            x + w / 2, y + h / 2 + size * 0.36, words, "ink", size, "middle", bold=True
        )

    def _owned_before(self) -> set[int]:
        return {b for table in self.record.before.tables.values() for b in table}

    def _legend(self, y: float) -> str:
        body = request_box(0, 16, y - 9, 14, 11, 2, tint=True) + request_box(0, 16, y - 4, 14, 6, 2)
        body += label(35, y, "fill", "muted", 11)
        body += box(66, y - 9, 14, 11, "card", "line") + _corner(66, y - 9, 8)
        body += label(85, y, "newly taken", "muted", 11)
        body += box(170, y - 9, 14, 11, None, "mark", stroke_width=2.2)
        body += label(189, y, "prefix hit", "muted", 11) + label(258, y, "×2 shared", "muted", 11)
        body += _free(328, y - 9, 14, 11, True) + label(347, y, "free, still findable", "muted", 11)
        return body + _free(464, y - 9, 14, 11, False) + label(483, y, "free", "muted", 11)


def _free(x: float, y: float, w: float, h: float, findable: bool, words: str | None = None) -> str:
    """A block that nobody holds: dashed, as in the prefix cache, and grey while it can still be found."""
    fill, edge, width = ("soft", "muted", 1.6) if findable else ("card", "line", 1)
    return box(x, y, w, h, fill, edge, words=words, stroke_width=width, stroke_dasharray="4 2.5")


def _corner(x: float, y: float, side: float) -> str:
    """A filled corner at the upper left of what begins at x, y."""
    return element("path", d=f"M{x:.1f} {y:.1f}h{side}l-{side} {side}z", class_="nv-ink", fill=neutral("ink"))


class BlockTables(View):
    """The block table of each sequence that holds blocks while the step runs: logical blocks to physical ones."""

    title = "Block tables"

    @property
    def heading(self) -> str:
        """The title, with the moment that is shown."""
        return f"Block tables as {self.record.when} ran: logical blocks above, physical blocks below"

    @property
    def tables(self) -> dict[int, list[int]]:
        """Those that are not empty, in the order of the batch, then the others."""
        state = self.record.scheduled
        rows = self.record.tensors.rows if self.record.tensors else []
        order = [*rows, *(i for i in state.tables if i not in rows)]
        return {i: state.tables[i] for i in order if state.tables.get(i)}

    def text(self) -> str:
        """The scheduler's tables, and the device tensor's rows as they are, padding included."""
        lines = [f"request {seq_id}: {ids(table)}" for seq_id, table in self.tables.items()]
        tensors = self.record.tensors
        if tensors is not None and tensors.block_tables is not None:
            lines.append("block_tables on the device:")
            lines += [f"  row {i}: {ids(row)}" for i, row in enumerate(tensors.block_tables)]
        elif tensors is not None:
            lines.append("block_tables on the device: none (no cached prefix, so attention reads no pages)")
        return "\n".join(lines)

    def draw(self) -> tuple[float, float, str]:
        """Two strips with lines between them: where lines meet, a block is shared."""
        logical: list[tuple[int, int, int]] = []  # sequence, index, block
        for seq_id, table in self.tables.items():
            logical += [(seq_id, i, b) for i, b in enumerate(table)]
        hidden = max(0, len(logical) - _MAX_LOGICAL)
        logical = logical[:_MAX_LOGICAL]
        groups = len({s for s, _, _ in logical})
        pitch = min(34.0, (FULL - 32 - 14 * max(0, groups - 1)) / max(1, len(logical)))
        top, places = self._logical(logical, pitch)
        physical = sorted({b for _, _, b in logical})
        step = min(38.0, (FULL - 32) / max(1, len(physical)))
        left = (FULL - step * len(physical)) / 2
        at = {b: left + i * step + step / 2 for i, b in enumerate(physical)}
        lines = "".join(of_request(s, curve(s, places[s, i], 92, at[b], 172, stroke_width=1.8)) for s, i, b in logical)
        bottom = "".join(self._physical(b, at[b], step) for b in physical)
        note = label(FULL - 16, 26, f"{hidden} more logical blocks not shown", "muted", 11, "end") if hidden else ""
        return FULL, 216, lines + top + bottom + note

    def _logical(self, logical: list[tuple[int, int, int]], pitch: float) -> tuple[str, dict[tuple[int, int], float]]:
        groups = len({s for s, _, _ in logical})
        x = (FULL - pitch * len(logical) - 14 * max(0, groups - 1)) / 2
        body, places, last = "", {}, None
        for seq_id, index, _ in logical:
            if seq_id != last:
                x += 14 if last is not None else 0
                body += of_request(seq_id, label(x + 1, 58, f"request {seq_id}" if pitch > 16 else seq_id, size=11.5))
                last = seq_id
            shape = request_box(seq_id, x + 1, 64, pitch - 2, 26)
            words = request_label(seq_id, x + pitch / 2, 82, index, 11) if pitch > 13 else ""
            body += of_request(seq_id, shape, words)
            places[seq_id, index] = x + pitch / 2
            x += pitch
        return body, places

    def _physical(self, block: int, x: float, step: float) -> str:
        owners = self.record.scheduled.owners().get(block, [])
        part = (step - 3) / len(owners)
        body = "".join(
            request_box(o, x - step / 2 + 1.5 + i * part, 174, part, 26, 2, tint=True) for i, o in enumerate(owners)
        )
        return of_request(owners, body, label(x, 191, block, size=11.5 if step > 22 else 9, anchor="middle", bold=True))
