"""From the packed batch into the cache: the slot of each token, and the slots that really changed."""

from typing import Any

from nanovllm.viz.svg import (
    FULL,
    HALF,
    MONO,
    box,
    clip,
    curve,
    element,
    label,
    neutral,
    of_request,
    request_box,
    request_label,
)
from nanovllm.viz.view import View, filled_slots, ids

_MAX_TOKENS, _MAX_SLOTS = 64, 110
_TOKENS_Y, _SLOTS_Y = 102, 188


class SlotMapping(View):
    """Token by token from the packed batch into cache slots, as the device tensor `slot_mapping` says."""

    title = "Slot mapping"

    @property
    def heading(self) -> str:
        """The title, with the moment that is shown."""
        return f"Slot mapping of {self.record.when}: each packed token's key and value go to one cache slot"

    def rows(self) -> list[tuple[int, int, int, int]]:
        """(sequence, position, token id, slot) of each packed token, all from the device tensors."""
        t = self.record.tensors
        if t is None:
            return []
        owners = [t.rows[row] for row in t.row_of_tokens()]
        return list(zip(owners, t.positions, t.input_ids, t.slot_mapping, strict=True))

    def text(self) -> str:
        """A line a token."""
        lines = [
            f"{i:>3}  request {seq_id} position {position:>3} {self.token(token)!r:>10} -> "
            + (f"slot {slot} = block {slot // self._size} offset {slot % self._size}" if slot >= 0 else "no slot")
            for i, (seq_id, position, token, slot) in enumerate(self.rows())
        ]
        return "\n".join(lines) or "no tokens in this step"

    @property
    def _size(self) -> int:
        return self.record.block_size

    def draw(self) -> tuple[float, float, str]:
        """Tokens above, the slots of the touched blocks below, a line from each token to its slot."""
        rows = self.rows()
        shown = rows[:_MAX_TOKENS]
        tokens, token_at = self._tokens(shown)
        slots, slot_at = self._slots([slot for *_, slot in shown if slot >= 0])
        lines = "".join(
            of_request(s, curve(s, x, _TOKENS_Y + 23, slot_at[slot], _SLOTS_Y - 1, stroke_width=1.5))
            for (s, _, _, slot), x in zip(shown, token_at, strict=True)
            if slot in slot_at
        )
        note = f"{len(rows) - len(shown)} more tokens not shown" if len(rows) > len(shown) else ""
        return FULL, 246, lines + tokens + slots + label(FULL - 16, 26, note, "muted", 11, "end")

    def _tokens(self, rows: list[tuple[int, int, int, int]]) -> tuple[str, list[float]]:
        groups = len({seq_id for seq_id, *_ in rows})
        pitch = min(34.0, (FULL - 40 - 10 * groups) / max(1, len(rows)))
        x = (FULL - pitch * len(rows) - 10 * max(0, groups - 1)) / 2
        body, centres, last = "", [], None
        for seq_id, position, token, _ in rows:
            if last is not None and seq_id != last:
                x += 10
            last = seq_id
            words = self.token(token)
            shape = request_box(seq_id, x + 1, _TOKENS_Y, pitch - 2, 22, words=f"request {seq_id}: {words!r}")
            number = request_label(seq_id, x + pitch / 2, _TOKENS_Y + 15, position, 11 if pitch > 20 else 8)
            tilt = f"rotate(-50 {x + pitch / 2:.1f} {_TOKENS_Y - 6})"
            name = label(x + pitch / 2, _TOKENS_Y - 6, clip(words, 58, 11, True), size=11, mono=True, transform=tilt)
            body += of_request(seq_id, shape, number, name)
            centres.append(x + pitch / 2)
            x += pitch
        return body, centres

    def _slots(self, used: list[int]) -> tuple[str, dict[int, float]]:
        """The touched blocks; of a large block only the stretch around what is written."""
        spans: dict[int, tuple[int, int]] = {}
        for slot in used:
            low, high = spans.get(slot // self._size, (slot, slot))
            spans[slot // self._size] = (min(low, slot), max(high, slot))
        stretches = {b: self._stretch(b, *spans[b]) for b in sorted(spans)}
        count = sum(len(s) for s in stretches.values())
        while count > _MAX_SLOTS and stretches:
            count -= len(stretches.popitem()[1])
        pitch = min(22.0, (FULL - 40 - 12 * len(stretches)) / max(1, count))
        x = (FULL - pitch * count - 12 * max(0, len(stretches) - 1)) / 2
        body, at, written = "", {}, set(used)
        owners = {slot: s for s, _, _, slot in self.rows()}
        holders, filled = self.record.before.owners(), filled_slots(self.record.before, self._size)
        for block, slots in stretches.items():
            width = pitch * len(slots)
            body += box(x - 2, _SLOTS_Y - 2, width + 4, 26, "soft", "line", rx=4)
            body += label(
                x + width / 2, _SLOTS_Y + 42, f"block {block}" if width > 46 else block, size=11, anchor="middle"
            )
            for slot in slots:
                holder = holders.get(block, []) if slot % self._size < filled.get(block, 0) else []
                body += _slot(slot, self._size, owners.get(slot) if slot in written else None, holder, x, pitch)
                at[slot] = x + pitch / 2
                x += pitch
            x += 12
        return body, at

    def _stretch(self, block: int, low: int, high: int) -> range:
        first, last = block * self._size, (block + 1) * self._size
        return range(first, last) if self._size <= 16 else range(max(first, low - 2), min(last, high + 3))


def _slot(slot: int, size: int, writer: int | None, holders: list[int], x: float, pitch: float) -> str:
    if writer is not None:
        shape = request_box(writer, x + 1, _SLOTS_Y, pitch - 2, 22, 2, words=f"slot {slot}, written in this step")
        offset = request_label(writer, x + pitch / 2, _SLOTS_Y + 15, slot % size, 10) if pitch > 13 else ""
        return of_request(writer, shape, offset)
    if holders:
        tinted = request_box(holders[0], x + 1, _SLOTS_Y, pitch - 2, 22, 2, tint=True, words=f"slot {slot}, cached")
        return of_request(holders, tinted)
    return box(x + 1, _SLOTS_Y, pitch - 2, 22, "card", "line", rx=2, words=f"slot {slot}")


class ChangedSlots(View):
    """The cache pool slot by slot: which ones changed in this step, found by comparing the keys in the cache itself."""

    title = "Slots that changed"

    @property
    def heading(self) -> str:
        """The title, with the verdict."""
        return f"Slots whose keys changed in {self.record.when}, read from the cache"

    def verdict(self) -> str:
        """How the changed slots and the slot mapping agree, in words."""
        record = self.record
        if record.changed_slots is None:
            return "not watched: record with watch_cache=True"
        changed = set(record.changed_slots)
        mapped = {s for s in record.tensors.slot_mapping if s >= 0} if record.tensors else set()
        stray, same = sorted(changed - mapped), sorted(mapped - changed)
        if stray:
            return f"{len(stray)} changed slots are NOT in slot_mapping: {ids(stray)}"
        if same:
            return (
                f"{len(changed)} of the {len(mapped)} mapped slots changed; the others were rewritten with equal keys"
            )
        return f"{len(changed)} slots changed, exactly those in slot_mapping"

    def text(self) -> str:
        """The changed slots as block:offset, and the verdict."""
        slots = self.record.changed_slots or []
        names = " ".join(self.record.slot_name(s) for s in slots)
        return f"changed: {names or '-'}\n{self.verdict()}"

    def draw(self) -> tuple[float, float, str]:
        """Each block a small grid; big pools show the touched blocks."""
        record = self.record
        size, total = record.block_size, len(record.scheduled.refs)
        changed = set(record.changed_slots or ())
        mapped = dict.fromkeys(record.tensors.slot_mapping) if record.tensors else {}
        across = size if size <= 8 else 16
        down = -(-size // across)
        blocks, cell = list(range(total)), _cell_size(total, across, down)
        if cell is None:
            blocks = sorted({s // size for s in [*changed, *mapped] if s >= 0})
            cell = _cell_size(len(blocks), across, down) or 3
        wide, tall = across * cell + 8, down * cell + (16 if cell >= 6 else 8)
        columns = max(1, int((HALF - 24) // wide))
        left = (HALF - min(columns, len(blocks)) * wide + 8) / 2
        body = ""
        for index, block in enumerate(blocks):
            x, y = left + index % columns * wide, 50 + index // columns * tall
            if y > 214:
                break
            body += self._block(block, x, y, cell, across, changed, mapped)
        body += label(16, 252, clip(self.verdict(), HALF - 32, 11.5), "ink", 11.5, bold="NOT" in self.verdict())
        return HALF, 266, body

    def _block(
        self, block: int, x: float, y: float, cell: float, across: int, changed: set[int], mapped: dict[int, None]
    ) -> str:
        size = self.record.block_size
        holders = self.record.scheduled.owners().get(block, [])
        filled = filled_slots(self.record.scheduled, size).get(block, 0)
        body = box(x - 1, y - 1, across * cell + 1, -(-size // across) * cell + 1, "soft", "line", rx=2)
        for offset in range(size):
            slot = block * size + offset
            at: dict[str, Any] = {
                "x": x + offset % across * cell,
                "y": y + offset // across * cell,
                "w": cell - 1,
                "h": cell - 1,
            }
            if slot in changed and slot not in mapped:
                body += box(**at, fill="ink", rx=1, words=f"slot {slot} changed and is not in slot_mapping")
            elif slot in changed and holders:
                body += request_box(self._writer(slot, holders), **at, rx=1, words=f"slot {slot} changed")
            elif slot in mapped and holders:
                body += request_box(holders[-1], **at, rx=1, tint=True, stroke_width=1.5)
            elif holders and offset < filled:
                body += request_box(holders[0], **at, rx=1, tint=True, stroke_opacity=0.4)
        if cell >= 6:
            look = {"text_anchor": "middle", "font_size": 8.5, "font_family": MONO, "class_": "nv-muted"}
            middle = x + across * cell / 2
            body += element("text", str(block), x=middle, y=y + cell + 9, fill=neutral("muted"), **look)
        return of_request(holders, body) if holders else body

    def _writer(self, slot: int, holders: list[int]) -> int:
        t = self.record.tensors
        if t is None:
            return holders[0]
        return t.rows[t.row_of_tokens()[t.slot_mapping.index(slot)]]


def _cell_size(num_blocks: int, across: int, down: int) -> float | None:
    """The largest cell with which so many blocks fit into the picture, or None."""
    for cell in (19, 16, 13, 11, 9, 7, 6, 5, 4, 3):
        wide, tall = across * cell + 8, down * cell + (16 if cell >= 6 else 8)
        if -(-num_blocks // int((HALF - 24) // wide or 1)) * tall <= 180:
            return cell
    return None
