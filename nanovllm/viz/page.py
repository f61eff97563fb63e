"""A trace as one HTML page that needs nothing else: no network, no server, no library."""

import base64
import json
import zlib
from html import escape
from pathlib import Path
from typing import Any

from nanovllm.trace.record import EventKind
from nanovllm.trace.trace import Trace
from nanovllm.viz.page_files import PAGE_CSS, PAGE_HTML, PAGE_JS
from nanovllm.viz.panels import GRID_CSS, Panel, chosen, kinds_html, words_html
from nanovllm.viz.scrubber import events_by_step, strip
from nanovllm.viz.theme import HUES, hatch_of, hue_of, stylesheet


def page_html(trace: Trace, title: str = "nanovllm, step by step", panels: list[str] | None = None) -> str:
    """The page. Every picture is drawn here, in Python; equal ones are stored once and all are compressed.

    Raises ValueError for an empty trace.
    """
    if not len(trace):
        raise ValueError("the trace has no step to show: record at least one")
    shown = chosen(panels, trace)
    kinds = events_by_step(trace)
    data = {
        "steps": len(trace),
        "events": kinds,
        "requests": trace.request_ids,
        "words": [words_html(trace, i) for i in range(len(trace))],
        "badges": [kinds_html(trace, i) for i in range(len(trace))],
        "panels": [_frames(trace, panel) for panel in shown],
    }
    cards = "".join(
        f'<div class="{"nv-wide" if panel.wide else "nv-half"}" data-panel="{number}"></div>'
        for number, panel in enumerate(shown)
    )
    parts = {
        "TITLE": escape(title),
        "CSS": stylesheet() + GRID_CSS + PAGE_CSS,
        "FACTS": escape(_facts(trace)),
        "STRIP": strip(trace, kinds),
        "CHIPS": "".join(_chip(i) for i in trace.request_ids),
        "KINDS": "".join(f'<option value="{k.value}">{k.value}</option>' for k in EventKind if _occurs(k, kinds)),
        "CARDS": cards,
        "LAST": str(len(trace) - 1),
        "DATA": base64.b64encode(zlib.compress(json.dumps(data).encode("utf-8"), 9)).decode("ascii"),
        "JS": PAGE_JS,
    }
    page = PAGE_HTML
    for name, value in parts.items():
        page = page.replace(f"<!--{name}-->", value)
    return page


def save_page(trace: Trace, path: str | Path, **options: Any) -> Path:
    """Write the page; `options` go to `page_html`."""
    path = Path(path)
    path.write_text(page_html(trace, **options), encoding="utf-8")
    return path


def _frames(trace: Trace, panel: Panel) -> dict[str, list[Any]]:
    """The distinct pictures of a panel, which of them each step shows, and which when a request is picked."""
    pictures: dict[str, int] = {}

    def number(step: int, pick: int | None) -> int:
        return pictures.setdefault(panel.make(trace, step, pick).svg(style=False), len(pictures))

    frames: dict[str, list[Any]] = {"order": [number(step, None) for step in range(len(trace))]}
    if panel.follows_pick:
        rows = [record.tensors.rows if record.tensors else [] for record in trace]
        frames["picked"] = [{seq_id: number(step, seq_id) for seq_id in found} for step, found in enumerate(rows)]
    return frames | {"pictures": list(pictures)}


def _occurs(kind: EventKind, kinds: list[list[str]]) -> bool:
    return any(kind.value in found for found in kinds)


def _facts(trace: Trace) -> str:
    limits, header = trace.limits, trace.header
    return (
        f"{len(trace.request_ids)} requests · {len(trace)} steps · {limits['num_blocks']} blocks of "
        f"{limits['block_size']} tokens · at most {limits['max_num_seqs']} requests and "
        f"{limits['max_num_batched_tokens']} tokens a step · {header['backend']} backend on {header['device']}"
    )


def _chip(seq_id: int) -> str:
    hue = HUES[hue_of(seq_id)]
    style = f"background:{hue.fill};color:{hue.on};border-color:{hue.light}"
    hatched = " nv-hatched" if hatch_of(seq_id) else ""
    words = f"highlight request {seq_id}"
    return (
        f'<button class="nv-chip{hatched}" style="{style}" data-pick="{seq_id}" aria-pressed="false" '
        f'title="{words}" aria-label="{words}">{seq_id}</button>'
    )
