"""What the diagrams share: a graph whose nodes know the code they name, drawn in the colours of `nanovllm.viz`.

A source builds a `Diagram` through the `graphviz` package. Graphviz lays it out (pygraphviz's wheels bring it along,
else the `dot` program is used), and `svg()` gives the drawing the views' card, fonts, light and dark colours. The file
holds the hash of its own source and of its own body, so a test can tell a stale or edited one on any machine.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from typing import Any

import graphviz

from diagrams.adapt import (
    CARD,
    HEAD,
    INK,
    LINE,
    MONO_FACE,
    MUTED,
    SANS_FACE,
    SOFT,
    STAMP_FORMAT,
    adapt,
    digest,
    layout,
    with_classes,
)
from nanovllm.viz.svg import FULL, document, label
from nanovllm.viz.theme import HUES

BODY, SMALL = 10.5, 9.0  # points; a point is 4/3 px
PX = 4 / 3

# What a colour says in every diagram.
ROLES = {"request": 0, "rank": 1, "gpu": 2, "outside": 3, "other": 4, "comm": 5}
# kind of arrow: (colour, width, style, direction, words of the legend)
_ARROWS = {
    "control": (INK, 1.2, "solid", "forward", "control: calls and Python values"),
    "data": (HUES[2].light, 2.0, "solid", "forward", "tensors"),
    "comm": (HUES[5].light, 2.0, "dashed", "both", "collective between ranks"),
    "message": (HUES[1].light, 1.6, "solid", "forward", "message between processes"),
    "link": (MUTED, 1.0, "dashed", "none", "belongs together"),
    "then": (MUTED, 1.3, "solid", "forward", "then"),
}


@dataclass
class Diagram:
    """A picture: its file name, title, text form, and the graph.

    code: the dotted names of each node that names code, by node. Every one of them must exist.
    sources: where a node's claim about other software is written, by node.
    """

    name: str
    title: str
    words: str
    options: dict[str, str] = field(default_factory=dict)
    code: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    legend: bool = True
    kinds: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        look = {"rankdir": "TB", "nodesep": "0.28", "ranksep": "0.38", "bgcolor": "transparent", "compound": "true"}
        node = {"shape": "box", "style": "rounded,filled", "margin": "0.1,0.04", "penwidth": "1.2"}
        font = {"fontname": SANS_FACE, "fontsize": str(BODY), "fontcolor": INK}
        edge = {"arrowsize": "0.75", "fontcolor": MUTED, "fontsize": str(SMALL), "fontname": SANS_FACE}
        self.graph = graphviz.Digraph(self.name, graph_attr=look | font | self.options, node_attr=node | font)
        self.graph.edge_attr.update(edge)
        self._at = [self.graph]

    # --- building ---------------------------------------------------------------------------------------------------

    def node(
        self,
        key: str,
        title: str,
        *lines: str,
        code: str | tuple[str, ...] = (),
        role: str = "plain",
        source: str = "",
        **more: str,
    ) -> str:
        """A box: a bold title, the names of its code, and lines of words. Returns its key."""
        names = (code,) if isinstance(code, str) else code
        if names:
            self.code[key] = names
        if source:
            self.sources[key] = source
        rows = [f"<B>{escape(title)}</B>", *(mono(short(name)) for name in names), *(muted(line) for line in lines)]
        stack = "".join(f"<TR><TD>{row}</TD></TR>" for row in rows)
        words = f'<<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="1">{stack}</TABLE>>'
        self._at[-1].node(key, words, tooltip=" ".join(names), **paint(role), **more)
        return key

    def table(self, key: str, rows: str, code: str | tuple[str, ...] = (), **more: str) -> str:
        """A node drawn by a Graphviz HTML table (see `row` and `cell`)."""
        names = (code,) if isinstance(code, str) else code
        if names:
            self.code[key] = names
        look = f'<TABLE BORDER="0" CELLBORDER="1" CELLSPACING="2" CELLPADDING="4" COLOR="{LINE}">{rows}</TABLE>'
        self._at[-1].node(key, f"<{look}>", shape="plain", style="solid", tooltip=" ".join(names), **more)
        return key

    def edge(self, tail: str, head: str, words: str = "", kind: str = "control", **more: str) -> None:
        """An arrow of one of the kinds above."""
        colour, width, style, direction, _ = _ARROWS[kind]
        if kind not in self.kinds:
            self.kinds.append(kind)
        look = {"color": colour, "penwidth": str(width), "style": style, "dir": direction} | more
        shown = "<BR/>".join(f"&nbsp;{escape(part)}&nbsp;" for part in words.split("|"))
        self._at[-1].edge(tail, head, f"<{shown}>" if words else "", **look)

    @contextmanager
    def group(self, key: str, title: str, role: str = "plain", **more: str) -> Iterator[None]:
        """A frame around the nodes made inside it."""
        with self._at[-1].subgraph(name=f"cluster_{key}") as inner:
            look = {"style": "rounded,filled", "margin": "12", "penwidth": "1.2", "labeljust": "l"}
            inner.attr(label=f"<<B>{escape(title)}</B>>", **look | frame(role) | more)
            self._at.append(inner)
            yield
            self._at.pop()

    @contextmanager
    def row(self) -> Iterator[None]:
        """Nodes made inside it stand on one rank."""
        with self._at[-1].subgraph() as inner:
            inner.attr(rank="same")
            self._at.append(inner)
            yield
            self._at.pop()

    # --- drawing ----------------------------------------------------------------------------------------------------

    @property
    def source(self) -> str:
        """The DOT text, with what stands around the drawing."""
        head = "".join(f"// {line}\n" for line in (self.title, *self.words.split("\n")))
        return head + self.graph.source

    @property
    def scale(self) -> float:
        """How much the drawing is shrunk to fit the page; 1 if it fits."""
        return min(1.0, (FULL - 32) / self._drawing()[0])

    def _drawing(self) -> tuple[float, float, str]:
        """Width and height in px, and the body."""
        found = HEAD.search(layout(self.graph.source))
        assert found is not None, "Graphviz wrote an SVG without a size"
        return float(found[1]) * PX, float(found[2]) * PX, adapt(found[3], self.code)

    def svg(self) -> str:
        """The whole file."""
        width, height, body = self._drawing()
        scale = min(1.0, (FULL - 32) / width)
        full = max(width * scale + 32, 17 + 9 * len(self.title), 720.0)
        left = (full - width * scale) / 2
        drawn = f'<g transform="translate({left:.1f} 44) scale({scale:.4f})">{body}</g>'
        bottom = 44 + height * scale + 12
        if self.legend and self.kinds:
            drawn += self._legend(bottom + 14)
            bottom += 30
        page = document(full, bottom, drawn, self.title, self.words)
        return page.replace("<desc>", f"{STAMP_FORMAT.format(digest(self.source), digest(page))}<desc>", 1) + "\n"

    def _legend(self, y: float) -> str:
        drawn, x = "", 16.0
        for kind in self.kinds:
            colour, width, style, _, words = _ARROWS[kind]
            dash = ' stroke-dasharray="5 3"' if style == "dashed" else ""
            shape = f'<path d="M{x:.0f} {y - 4:.0f}h26" fill="none" stroke="{colour}" stroke-width="{width}"{dash}/>'
            drawn += with_classes(shape) + label(x + 33, y, words, "muted", 11.5)
            x += 33 + len(words) * 6.4 + 26
        return drawn


# --- words and cells ----------------------------------------------------------------------------------------------


def short(dotted: str) -> str:
    """What a box shows of a dotted name: a class and its member, or a module and its function."""
    parts = dotted.split(".")
    starts = next((i for i, part in enumerate(parts) if part[:1].isupper()), max(0, len(parts) - 2))
    return ".".join(parts[starts:])


def mono(words: str) -> str:
    """Code in a label."""
    return f'<FONT FACE="{MONO_FACE}" POINT-SIZE="{SMALL}">{escape(words)}</FONT>'


def muted(words: str) -> str:
    """A line of explanation in a label."""
    return f'<FONT POINT-SIZE="{SMALL}" COLOR="{MUTED}">{escape(words)}</FONT>'


def cell(
    words: Any,
    hue: int | None = None,
    *,
    port: str = "",
    bold: bool = False,
    span: int = 1,
    plain: bool = False,
    note: str = "",
    tall: int = 4,
    wide: int = 0,
) -> str:
    """A cell of a table: in a request's colour, grey, or `plain` without a box; `note` is a second line."""
    text = f"<B>{escape(str(words))}</B>" if bold else escape(str(words)) or " "
    text += f'<BR/><FONT POINT-SIZE="{SMALL}">{escape(note)}</FONT>' if note else ""
    if hue is not None:
        text = f'<FONT COLOR="{HUES[hue].on}">{text}</FONT>'
    look = f'BGCOLOR="{HUES[hue].fill if hue is not None else SOFT}"' if not plain else 'BORDER="0"'
    look += f' PORT="{port}"' if port else ""
    look += f' WIDTH="{wide}"' if wide else ""
    return f'<TD {look} COLSPAN="{span}" CELLPADDING="{tall}">{text}</TD>'


def line(*cells: str) -> str:
    """A row of a table."""
    return f"<TR>{''.join(cells)}</TR>"


def paint(role: str) -> dict[str, str]:
    """Colours of a box."""
    if role == "plain":
        return {"color": MUTED, "fillcolor": SOFT}
    hue = HUES[ROLES[role]]
    return {"color": hue.light, "fillcolor": f"{hue.fill}2b"}


def frame(role: str) -> dict[str, str]:
    """Colours of a frame."""
    if role == "plain":
        return {"color": LINE, "fillcolor": CARD}
    hue = HUES[ROLES[role]]
    return {"color": hue.light, "fillcolor": f"{hue.fill}12"}
