"""SVG by small functions that return strings. Every shape carries plain attributes too, so that it also shows where a
style sheet is stripped (a notebook on a hosting site).
"""

from html import escape
from typing import Any

from nanovllm.viz.theme import FONT, HUES, MONO, hatch_of, hue_of, neutral, stylesheet

HALF, FULL = 600, 1216  # widths of a view, px


def number(value: float) -> str:
    """At most one decimal, none where it is 0."""
    return f"{value:.1f}".removesuffix(".0")


def element(name: str, *children: str, **attributes: Any) -> str:
    """An element; `class_` and `data_r` become class and data-r, None is left out, numbers are shortened."""
    parts = [name]
    for key, value in attributes.items():
        if value is not None and value != "":
            shown = number(value) if isinstance(value, int | float) else escape(str(value), quote=True)
            parts.append(f'{key.rstrip("_").replace("_", "-")}="{shown}"')
    head = " ".join(parts)
    return f"<{head}>{''.join(children)}</{name}>" if children else f"<{head}/>"


def tip(words: str | None) -> tuple[str, ...]:
    """A tooltip to put inside a shape."""
    return (f"<title>{escape(words)}</title>",) if words else ()


def box(
    x: float,
    y: float,
    w: float,
    h: float,
    fill: str | None = "card",
    stroke: str | None = None,
    rx: float = 3,
    words: str | None = None,
    **more: Any,
) -> str:
    """A rectangle in neutral colours, named as in the theme; fill None is see-through."""
    classes = " ".join(c for c in (fill and f"nv-{fill}", stroke and f"nv-s-{stroke}") if c)
    paint = {"fill": neutral(fill) if fill else "none", "stroke": neutral(stroke) if stroke else None}
    return element("rect", *tip(words), x=x, y=y, width=w, height=h, rx=rx, class_=classes, **paint, **more)


def request_box(
    seq_id: int,
    x: float,
    y: float,
    w: float,
    h: float,
    rx: float = 3,
    tint: bool = False,
    words: str | None = None,
    **more: Any,
) -> str:
    """A rectangle in a request's colour, hatched where the hue repeats; `tint`: a pale one, for what is not new."""
    hue = HUES[hue_of(seq_id)]
    paint = {"fill": hue.fill, "stroke": hue.light, "class_": f"nv-s{hue_of(seq_id)}"}
    if tint:
        paint |= {"fill_opacity": "0.2"}
    shape = element("rect", *tip(words), x=x, y=y, width=w, height=h, rx=rx, **paint, **more)
    return shape + hatch(seq_id, x, y, w, h, tint)


def hatch(seq_id: int, x: float, y: float, w: float, h: float, tint: bool = False) -> str:
    """The lines over the box of a request whose hue repeats, cut to the box."""
    kind = hatch_of(seq_id)
    if kind == 0 or w <= 0:
        return ""
    gap, strokes = 5.0, []
    if kind == 3:
        strokes = [f"M{number(x + i * gap)} {number(y)}v{number(h)}" for i in range(1, int(w / gap) + 1)]
    else:
        start = gap / 2
        while start < w + h:  # the line x + y = start (or its mirror), cut to the box
            x0, y0 = min(start, w), max(0.0, start - w)
            x1, y1 = max(0.0, start - h), min(start, h)
            a, b = (x0, x1) if kind == 2 else (w - x0, w - x1)
            strokes.append(f"M{number(x + a)} {number(y + y0)}L{number(x + b)} {number(y + y1)}")
            start += gap
    colour = HUES[hue_of(seq_id)]
    stroke = {"stroke": colour.light, "class_": f"nv-s{hue_of(seq_id)}"} if tint else {"stroke": colour.on}
    return element("path", d="".join(strokes), fill="none", stroke_opacity="0.35", stroke_width=1.2, **stroke)


def label(
    x: float,
    y: float,
    words: Any,
    colour: str = "ink",
    size: float = 12,
    anchor: str = "start",
    bold: bool = False,
    mono: bool = False,
    **more: Any,
) -> str:
    """Text with its baseline at y, in a neutral colour."""
    look = {"font_weight": "600" if bold else None, "font_family": MONO if mono else None}
    place = {"text_anchor": anchor if anchor != "start" else None, "font_size": size}
    return element(
        "text", escape(str(words)), x=x, y=y, class_=f"nv-{colour}", fill=neutral(colour), **place, **look, **more
    )


def request_label(seq_id: int, x: float, y: float, words: Any, size: float = 12, **more: Any) -> str:
    """Text that lies on a request's filled box, centred at x."""
    fill = HUES[hue_of(seq_id)].on
    halo = {} if hatch_of(seq_id) == 0 else {"stroke": HUES[hue_of(seq_id)].fill, "stroke_width": 3}
    place = {"text_anchor": "middle", "font_size": size, "font_weight": "600"}
    paint = {"fill": fill, "paint_order": "stroke" if halo else None}
    return element("text", escape(str(words)), x=x, y=y, **place, **paint, **halo, **more)


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = "line", **more: Any) -> str:
    """A straight line in a neutral colour."""
    return element(
        "path", d=_move(x1, y1, x2, y2), stroke=neutral(stroke), class_=f"nv-s-{stroke}", fill="none", **more
    )


def _move(x1: float, y1: float, x2: float, y2: float) -> str:
    return f"M{number(x1)} {number(y1)}L{number(x2)} {number(y2)}"


def curve(seq_id: int, x1: float, y1: float, x2: float, y2: float, upright: bool = True, **more: Any) -> str:
    """A smooth line in a request's colour; upright: it leaves and arrives vertically."""
    if upright:
        mid = number((y1 + y2) / 2)
        bend = f"{number(x1)} {mid} {number(x2)} {mid}"
    else:
        mid = number((x1 + x2) / 2)
        bend = f"{mid} {number(y1)} {mid} {number(y2)}"
    d = f"M{number(x1)} {number(y1)}C{bend} {number(x2)} {number(y2)}"
    hue = hue_of(seq_id)
    return element("path", d=d, fill="none", stroke=HUES[hue].light, class_=f"nv-s{hue}", **more)


def of_request(seq_ids: int | list[int], *children: str) -> str:
    """A group that belongs to one or several requests: picking a request dims all groups of others."""
    ids = [seq_ids] if isinstance(seq_ids, int) else seq_ids
    return element("g", *children, data_r=" ".join(map(str, ids))) if children else ""


def document(width: float, height: float, body: str, title: str, words: str, style: bool = True) -> str:
    """A whole picture with its alternative text; `style`: with the style sheet inside, to stand alone."""
    sheet = f"<style>{stylesheet()}</style>" if style else ""
    card = box(0.5, 0.5, width - 1, height - 1, "card", "line", rx=8)
    head = label(16, 26, title, size=14, bold=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="nv" role="img" aria-label="{escape(title, quote=True)}" '
        f'viewBox="0 0 {number(width)} {number(height)}" width="{number(width)}" height="{number(height)}" '
        f'font-family="{FONT}" style="max-width:100%;height:auto;overflow:visible">'
        f"<desc>{escape(words)}</desc>{sheet}{card}{head}"
        f"{body}</svg>"
    )


def clip(words: str, room: float, size: float = 12, mono: bool = False) -> str:
    """Shorten `words` to `room` px, judging by the average width of a letter."""
    fits = int(room / (size * (0.61 if mono else 0.54)))
    return words if len(words) <= fits else words[: max(0, fits - 1)] + "…"


def wrap(words: str, room: float, size: float = 12) -> list[str]:
    """Break into lines of at most about `room` px."""
    fits, lines = max(8, int(room / (size * 0.54))), [""]
    for word in words.split():
        if len(lines[-1]) + len(word) + 1 > fits and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def visible(token: str) -> str:
    """A token's text with its blanks shown: a space as a middle dot, a line break as an arrow."""
    return token.replace(" ", "·").replace("\n", "↵").replace("\t", "⇥") or "∅"
