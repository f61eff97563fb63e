"""The grade card as HTML: in a notebook, and as a page of its own that needs nothing else."""

from html import escape

from nanovllm.course.card import SAID, short
from nanovllm.course.judge import Failure, Grade, GroupGrade
from nanovllm.viz.theme import HUES, MONO, stylesheet

_GOOD, _BAD, _PART = HUES[2], HUES[5], HUES[1]
_HUE = {"done": _GOOD, "partial": _PART, "failed": _BAD, "void": _BAD, "missing": None, "todo": None}

CSS = f"""
.nv-grade{{color:var(--nv-ink);background:var(--nv-card);border:1px solid var(--nv-line);border-radius:10px;
padding:12px 16px;margin:8px 0;max-width:62rem;line-height:1.45}}
.nv-grade h3{{margin:0 0 4px;font-size:1.05em;display:flex;gap:.6em;align-items:baseline;flex-wrap:wrap}}
.nv-grade .nv-pts{{margin-left:auto;font-variant-numeric:tabular-nums;white-space:nowrap}}
.nv-grade .nv-badge{{font-size:.8em;font-weight:600;border-radius:99px;padding:1px 10px;
border:1px solid var(--nv-line)}}
.nv-grade ul{{list-style:none;margin:6px 0;padding:0}}.nv-grade li{{margin:2px 0}}
.nv-grade .nv-dim{{color:var(--nv-muted)}}
.nv-grade .nv-think{{background:var(--nv-soft);border-left:4px solid {_PART.fill};padding:8px 12px;border-radius:4px;
margin:8px 0}}
.nv-grade .nv-two{{display:grid;grid-template-columns:repeat(auto-fit,minmax(14rem,1fr));gap:8px}}
.nv-grade .nv-two>div{{background:var(--nv-soft);border-radius:6px;padding:6px 10px;min-width:0}}
.nv-grade .nv-two b{{display:block;font-size:.8em;color:var(--nv-muted);font-weight:600}}
.nv-grade code,.nv-grade pre{{font-family:{MONO};font-size:.86em;white-space:pre-wrap;overflow-wrap:anywhere;margin:0;
color:var(--nv-ink);background:none}}
.nv-grade details{{margin:8px 0}}.nv-grade summary{{cursor:pointer;color:var(--nv-muted)}}
.nv-grade details pre{{background:var(--nv-soft);border-radius:6px;padding:8px 12px;margin-top:4px}}
.nv-bar100{{display:flex;gap:10px;align-items:center;font-variant-numeric:tabular-nums}}
.nv-bar100 div{{flex:0 1 24rem;height:12px;border-radius:99px;background:var(--nv-soft);overflow:hidden;
border:1px solid var(--nv-line)}}
.nv-bar100 i{{display:block;height:100%;background:{_GOOD.fill}}}
.nv-add{{color:var(--nv-e2)}}.nv-del{{color:var(--nv-e5)}}
"""


def bar_html(points: int, total: int) -> str:
    """A bar of points out of total, with the numbers beside it."""
    share = 100 * points / total if total else 0
    said = f"{points} of {total} points"
    return (
        f'<div class="nv-bar100" role="img" aria-label="{said}"><div><i style="width:{share:.1f}%"></i></div>'
        f"{points}/{total}</div>"
    )


def grade_html(grade: Grade, style: bool = True) -> str:
    """One exercise's grade. style: with the style sheet, for a place that has none."""
    groups = "".join(_group(group) for group in grade.groups)
    reason = f"<p>No points: {escape(grade.reason)}</p>" if grade.reason else ""
    first = next((group.failure for group in grade.groups if group.failure), None)
    failure = _failure(first) if first and grade.status != "todo" else ""
    bug = f"<p>Code that does this behaves the same: it {escape(grade.bug)}.</p>" if grade.bug else ""
    body = (
        f"<h3>{escape(grade.number)} {escape(grade.title)} {_badge(grade.status)}"
        f'<span class="nv-pts">{grade.earned}/{grade.points} points</span></h3>'
        f"{reason}<ul>{groups}</ul>{failure}{bug}"
    )
    return frame(body, style)


def grade_page(grades: list[Grade], title: str = "nanovllm grades", note: str = "") -> str:
    """All grades as one page: no network, no script."""
    earned, points = sum(g.earned for g in grades), sum(g.points for g in grades)
    cards = "".join(grade_html(grade, style=False) for grade in grades)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; style-src 'unsafe-inline'\"><title>{escape(title)}</title>"
        f'<link rel="icon" href="data:,"><style>{stylesheet()}{CSS}body.nv{{font:15px system-ui,sans-serif;'
        "margin:0 auto;padding:16px;max-width:66rem;background:var(--nv-soft);color:var(--nv-ink)}}</style></head>"
        f'<body class="nv"><h1>{escape(title)}</h1>{bar_html(earned, points)}'
        f'<p class="nv-dim">{escape(note)}</p>{cards}</body></html>\n'
    )


def diff_html(lines: list[str]) -> str:
    """A unified diff; + and - say what the colours say."""
    kinds = {"+": "nv-add", "-": "nv-del", "@": "nv-dim"}
    rows = [f'<span class="{kinds.get(line[:1], "")}">{escape(line)}</span>' for line in lines]
    return frame("<pre>" + "\n".join(rows) + "</pre>")


def frame(body: str, style: bool = True) -> str:
    """A card around `body`. style: with the style sheet, for a place that has none."""
    sheet = f"<style>{stylesheet()}{CSS}</style>" if style else ""
    return f'{sheet}<div class="nv"><section class="nv-grade">{body}</section></div>'


def _badge(status: str) -> str:
    hue = _HUE[status]
    style = f' style="background:{hue.fill};color:{hue.on};border-color:{hue.fill}"' if hue else ""
    return f'<span class="nv-badge"{style}>{SAID[status]}</span>'


def _group(group: GroupGrade) -> str:
    mark = "✗" if group.failure else "✓"
    return f"<li>{mark} {escape(group.name)} <span class='nv-dim'>({group.earned}/{group.points})</span></li>"


def _failure(failure: Failure) -> str:
    history = "\n".join(escape(short(line)) for line in failure.history)
    parts = [
        f'<div class="nv-think"><b>Think about:</b> {escape(failure.think)}</div>',
        f'<div class="nv-two"><div><b>expected</b><code>{escape(short(failure.expected))}</code></div>'
        f"<div><b>actual</b><code>{escape(short(failure.actual))}</code></div></div>",
    ]
    if history:
        parts.append(f"<details open><summary>what happened on the way</summary><pre>{history}</pre></details>")
    if failure.cell:
        summary = "Python that shows it again: paste it into a cell"
        parts.append(f"<details><summary>{summary}</summary><pre>{escape(failure.cell)}</pre></details>")
    return "".join(parts)
