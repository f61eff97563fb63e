"""The two deques with what moved, and the budgets of the step."""

from typing import Any

from nanovllm.trace.record import Note, Record
from nanovllm.trace.state import State
from nanovllm.viz.svg import (
    HALF,
    box,
    clip,
    curve,
    label,
    line,
    of_request,
    request_box,
    request_label,
)
from nanovllm.viz.view import View, ids

_LANES = (("waiting", 16, 236), ("running", 264, 220), ("finished", 496, 88))  # name, x, width
_CHIP_W, _CHIP_H, _TOP, _BOTTOM = 34, 28, 66, 144
_MAX_REASONS = 5


class Deques(View):
    """Waiting and running before and after the step, what moved between them, and the scheduler's reasons."""

    title = "Deques"

    @property
    def heading(self) -> str:
        """The title, with the moment that is shown."""
        return f"Deques, before and after {self.record.when}"

    @property
    def finished(self) -> list[int]:
        """Requests that left in this step."""
        status = self.record.after.column("status")
        return [i for i in self.record.after.ids if status[i] == "finished"]

    def text(self) -> str:
        """Both deques, head first, at both moments; who finished; every decision with its reason."""
        old, new = self.record.before, self.record.after
        lines = [
            f"waiting: {ids(old.waiting)} -> {ids(new.waiting)}",
            f"running: {ids(old.running)} -> {ids(new.running)}",
        ]
        if self.finished:
            lines.append(f"finished: {ids(self.finished)}")
        return "\n".join(lines + [f"  {note.reason}" for note in self.record.decisions])

    def draw(self) -> tuple[float, float, str]:
        """Lanes for both moments; a line leads each request from its old place to its new one."""
        old = self._places(self.record.before, [], _TOP)
        new = self._places(self.record.after, self.finished, _BOTTOM)
        body = self._lanes("before", _TOP, 2) + self._lanes("after", _BOTTOM, 3)
        for seq_id, (lane, x, y) in new.items():
            if seq_id in old:
                moved = old[seq_id][0] != lane
                look: dict[str, Any] = {"stroke_width": 3 if moved else 1.2, "stroke_opacity": 1 if moved else 0.55}
                body += of_request(seq_id, curve(seq_id, old[seq_id][1], _TOP + _CHIP_H + 4, x, y - 5, **look))
        body += "".join(self._chip(i, x, y, self.record.before) for i, (_, x, y) in old.items())
        body += "".join(self._chip(i, x, y, self.record.after) for i, (_, x, y) in new.items())
        return HALF, 304, body + self._reasons(220)

    def _places(self, state: State, finished: list[int], y: float) -> dict[int, tuple[str, float, float]]:
        """Lane, centre and top of each request's chip; the head of a deque is on the left."""
        found: dict[int, tuple[str, float, float]] = {}
        for (name, x, width), members in zip(_LANES, (state.waiting, state.running, finished), strict=True):
            pitch = min(_CHIP_W + 6, (width - 12) / max(1, len(members)))
            for index, seq_id in enumerate(members):
                found[seq_id] = (name, x + 8 + pitch * index + min(_CHIP_W, pitch) / 2, y)
        return found

    def _lanes(self, when: str, y: float, count: int) -> str:
        body = ""
        for name, x, width in _LANES[:count]:
            words = f"{name} {when}" if name != "finished" else name
            at = y - 12 if when == "before" else y + _CHIP_H + 20
            body += label(x + 2, at, words, "muted", 11) + box(x, y - 6, width, _CHIP_H + 12, "soft", rx=6)
        return body

    def _chip(self, seq_id: int, x: float, y: float, state: State) -> str:
        counters = state.sequence(seq_id) if seq_id in state.tables else {}
        words = f"request {seq_id}"
        if counters:
            words += (
                f": {counters['num_tokens']} tokens, {counters['num_cached_tokens']} cached, "
                f"{len(counters['block_table'])} blocks"
            )
        shape = request_box(seq_id, x - _CHIP_W / 2, y, _CHIP_W, _CHIP_H, 6, words=words)
        return of_request(seq_id, shape, request_label(seq_id, x, y + 19, seq_id, 13))

    def _reasons(self, y: float) -> str:
        notes = self.record.decisions
        shown = notes if len(notes) <= _MAX_REASONS else notes[: _MAX_REASONS - 1]
        body = line(16, y - 16, HALF - 16, y - 16)
        for index, note in enumerate(shown):
            body += _reason(note, y + 4 + index * 18)
        if len(shown) < len(notes):
            body += label(34, y + 4 + len(shown) * 18, f"and {len(notes) - len(shown)} more", "muted", 11.5)
        return body


def _reason(note: Note, y: float) -> str:
    words = label(34, y, clip(note.reason, HALF - 48, 11), size=11)
    if note.seq_id is None:
        return box(18, y - 8, 8, 8, "muted") + words
    return of_request(note.seq_id, request_box(note.seq_id, 18, y - 9, 9, 9, 2), words)


class Budgets(View):
    """How much of each limit the step used: tokens, requests that hold blocks, blocks."""

    title = "Budgets"

    @property
    def heading(self) -> str:
        """The title, with the moment that is shown."""
        return f"Budgets used by {self.record.when}"

    def _bars(self) -> list[tuple[str, str, list[tuple[int, int]], int]]:
        """Name, unit, (request, share) pairs, limit."""
        state, limits = self.record.scheduled, self.record.limits
        tokens = [(i, n) for i, n in state.column("num_scheduled_tokens").items() if n]
        holders = [(i, 1) for i, table in state.tables.items() if table]
        owners = state.owners()
        shared = {b: members[0] for b, members in owners.items()}
        blocks = [(i, sum(first == i for first in shared.values())) for i in state.tables]
        return [
            ("tokens", "max_num_batched_tokens", tokens, limits["max_num_batched_tokens"]),
            ("requests", "max_num_seqs", holders, limits["max_num_seqs"]),
            ("blocks", "blocks of the pool", [(i, n) for i, n in blocks if n], limits["num_blocks"]),
        ]

    def text(self) -> str:
        """Used and limit of each, and each request's share."""
        lines = []
        for name, unit, shares, limit in self._bars():
            by = ", ".join(f"{seq_id}: {share}" for seq_id, share in shares)
            lines.append(f"{name}: {sum(n for _, n in shares)} of {limit} {unit}" + (f" ({by})" if by else ""))
        return "\n".join(lines)

    def draw(self) -> tuple[float, float, str]:
        """Three bars of equal length; each request's share in its colour."""
        body, width = "", HALF - 32
        for index, (name, unit, shares, limit) in enumerate(self._bars()):
            y = 56 + index * 46
            used = sum(n for _, n in shares)
            body += label(16, y, f"{name}: {used:,} of {limit:,}", size=12, bold=True)
            body += label(HALF - 16, y, unit, "muted", 11, "end") + box(16, y + 7, width, 18, "soft", rx=4)
            x = 16.0
            for seq_id, share in shares:
                w = width * share / max(limit, used)
                shape = request_box(seq_id, x, y + 7, w, 18, 2, words=f"request {seq_id}: {share} {name}")
                body += of_request(
                    seq_id, shape, request_label(seq_id, x + w / 2, y + 20, seq_id, 11) if w > 14 else ""
                )
                x += w
        return HALF, 194, body


def progress(record: Record, seq_id: int) -> str:
    """A request's tokens in words: "prompt 12, completion 3, cached 14"."""
    s = record.after.sequence(seq_id)
    completion = s["num_tokens"] - s["num_prompt_tokens"]
    return f"prompt {s['num_prompt_tokens']}, completion {completion}, cached {s['num_cached_tokens']}"
