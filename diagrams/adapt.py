"""From Graphviz's SVG to ours: its fonts, colours and tooltips become those of the views."""

import hashlib
import re
from html import escape

import graphviz

from nanovllm.viz.theme import FONT, HUES, MONO, neutral

INK, MUTED, LINE, SOFT, CARD = (neutral(name) for name in ("ink", "muted", "line", "soft", "card"))
SANS_FACE, MONO_FACE = "DejaVu Sans", "DejaVu Sans Mono"  # what Graphviz measures with; wide, so nothing overflows

HEAD = re.compile(r"<svg[^>]*?width=\"([\d.]+)pt\"[^>]*?height=\"([\d.]+)pt\"[^>]*?>(.*)</svg>", re.DOTALL)
STAMP_FORMAT = '<metadata data-source="{}" data-body="{}"/>'
STAMP = re.compile(r'<metadata data-source="(\w+)" data-body="(\w+)"/>')
_SHAPE = re.compile(r"<(path|polygon|polyline|ellipse|text)\b[^>]*>")
_NEUTRALS = {INK: "ink", MUTED: "muted", LINE: "line", SOFT: "soft", CARD: "card"}
_LIGHTS = {hue.light: index for index, hue in enumerate(HUES)}


def digest(text: str) -> str:
    """A short hash."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def layout(dot: str) -> str:
    """The drawing as Graphviz writes it."""
    try:
        import pygraphviz
    except ImportError:
        return graphviz.Source(dot).pipe(format="svg", encoding="utf-8")
    drawn = pygraphviz.AGraph(string=dot).draw(format="svg", prog="dot")
    return drawn.decode("utf-8") if isinstance(drawn, bytes) else str(drawn)


def adapt(body: str, code: dict[str, tuple[str, ...]]) -> str:
    """No ids and links, our fonts, our colours as classes, and dotted names as tooltips."""
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"</?a\b[^>]*>", "", body)  # a tooltip makes a link; the title below does the same
    body = re.sub(r"<g id=\"a_[^>]*>((?:(?!<g).)*?)</g>", r"\1", body, flags=re.DOTALL)
    body = re.sub(r"<title>(.*?)</title>", lambda found: _title(found[1], code), body, flags=re.DOTALL)
    body = re.sub(r' (?:id|xlink:title)="[^"]*"', "", body)
    body = re.sub(r' font-family="[^"]*Mono[^"]*"', f' font-family="{MONO}"', body)
    body = re.sub(rf' font-family="{SANS_FACE}[^"]*"', "", body)
    body = re.sub(
        r'<polygon fill="(?:white|none|transparent)" stroke="(?:none|transparent|white)"[^>]*/>', "", body, count=1
    )
    body = _SHAPE.sub(lambda found: with_classes(found[0]), body)
    return f'<g transform="scale(1.3333)" font-family="{FONT}">{body.strip()}</g>'


def _title(key: str, code: dict[str, tuple[str, ...]]) -> str:
    names = code.get(key)
    return f"<title>{escape(', '.join(names))}</title>" if names else ""


def with_classes(shape: str) -> str:
    """Colours of the theme become classes, which follow light and dark; the plain colours stay for stripped pages."""
    classes = []
    for attribute, prefix, hued in (("fill", "nv-", "nv-t"), ("stroke", "nv-s-", "nv-s")):
        found = re.search(rf'\b{attribute}="(#[0-9a-f]{{6}})"', shape)
        if not found:
            continue
        if found[1] == CARD and shape.startswith("<text"):
            continue  # white words on a request's colour stay white
        if found[1] in _NEUTRALS:
            classes.append(prefix + _NEUTRALS[found[1]])
        elif found[1] in _LIGHTS:
            classes.append(f"{hued}{_LIGHTS[found[1]]}")
    if not classes:
        return shape
    name = re.match(r"<\w+", shape)
    assert name is not None
    return f'{name[0]} class="{" ".join(classes)}"{shape[name.end() :]}'
