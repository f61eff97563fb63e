"""DOT text to SVG with whatever is there: the `dot` program, pygraphviz's own Graphviz, or else the text itself."""

import re
from functools import lru_cache
from html import escape

from nanovllm.viz.svg import label
from nanovllm.viz.theme import FONT

_HEAD = re.compile(r"<svg[^>]*?width=\"([\d.]+)pt\"[^>]*?height=\"([\d.]+)pt\"[^>]*?>(.*)</svg>", re.DOTALL)
_CLASS = re.compile(r'class="(node|edge|cluster)((?: [a-z]+[-\w]*)*)"')


@lru_cache(maxsize=256)
def render(dot: str) -> tuple[float, float, str] | None:
    """Width, height and body of the drawing, or None where nothing can draw it. Never raises for want of Graphviz."""
    for draw in (_with_dot, _with_pygraphviz):
        try:
            source = draw(dot)
        except Exception:  # no program, no package, or one that does not start: the next way is as good
            continue
        found = _HEAD.search(source)
        if found:
            return float(found[1]) * 4 / 3, float(found[2]) * 4 / 3, _adapt(found[3])
    return None


def _with_dot(dot: str) -> str:
    import graphviz

    return graphviz.Source(dot).pipe(format="svg", encoding="utf-8", quiet=True)


def _with_pygraphviz(dot: str) -> str:
    import pygraphviz

    drawn = pygraphviz.AGraph(string=dot).draw(format="svg", prog="dot")
    return drawn.decode("utf-8") if isinstance(drawn, bytes) else str(drawn)


def _adapt(body: str) -> str:
    """Make Graphviz's output one of ours: no ids (a page holds many pictures), our font, classes that name requests."""
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = body.replace("&#45;", "-")
    body = re.sub(r"<title>.*?</title>", "", body, flags=re.DOTALL)
    body = re.sub(r' id="[^"]*"', "", body)
    body = re.sub(r' font-family="[^"]*"', "", body)
    body = re.sub(r'<polygon fill="white" stroke="(?:none|transparent|white)" points="[^"]*"/>', "", body, count=1)
    body = _CLASS.sub(_classes, body)
    return f'<g transform="scale(1.3333)" font-family="{FONT}">{body.strip()}</g>'


def _classes(found: re.Match[str]) -> str:
    names = found[2].split()
    requests = [n[1:] for n in names if re.fullmatch(r"q\d+", n)]
    kept = " ".join(n for n in names if not re.fullmatch(r"q\d+", n))
    data = f' data-r="{" ".join(requests)}"' if requests else ""
    return f'class="nv-graph {found[1]} {kept}"{data}'


def picture(dot: str, fallback: str, width: float, top: float = 44) -> tuple[float, str]:
    """Height and body of `dot` fitted to `width`, centred; the lines of `fallback` where it cannot be drawn."""
    drawn = render(dot)
    if drawn is None:
        lines = fallback.split("\n")[:24]
        body = "".join(label(16, top + 16 + i * 16, line, size=11.5, mono=True) for i, line in enumerate(lines))
        return top + 16 * len(lines) + 20, body
    w, h, body = drawn
    scale = min(1.0, (width - 32) / w)
    left = (width - w * scale) / 2
    return top + h * scale + 14, f'<g transform="translate({left:.1f} {top}) scale({scale:.4f})">{body}</g>'


def quoted(words: str) -> str:
    """A DOT string."""
    return '"' + words.replace("\\", "\\\\").replace('"', '\\"') + '"'


def html_safe(words: str) -> str:
    """Text inside a DOT HTML label."""
    return escape(words, quote=True)
