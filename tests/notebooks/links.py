"""Every link of the docs and notebooks that stays inside the checkout: does its target exist? No network."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import nbformat

_FENCE = re.compile(r"(?ms)^( *)(```|~~~).*?^\1\2\s*$|`[^`\n]+`")
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_HTML = re.compile(r"""(?:src|href)=["']([^"']+)["']""")
_ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.I)


def text_of(path: Path) -> str:
    """The prose of a Markdown file or of a notebook's Markdown cells."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    return "\n\n".join(c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "markdown")


def links_of(path: Path) -> Iterator[str]:
    """The targets of its links and pictures; what stands in code is none."""
    text = _FENCE.sub(" ", text_of(path))
    yield from _LINK.findall(text)
    yield from _HTML.findall(text)


def anchors_of(path: Path) -> set[str]:
    """What `#...` may name in it: headings, written as GitHub writes them, and ids."""
    text = _FENCE.sub(lambda match: match[0].strip("`") if "\n" not in match[0] else " ", text_of(path))
    found, counts = set(re.findall(r"""(?:id|name)=["']([^"']+)["']""", text)), dict[str, int]()
    for heading in re.findall(r"(?m)^#{1,6}\s+(.+?)\s*#*\s*$", text):
        plain = re.sub(r"<[^>]+>|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        seen = counts.get(slug, 0)
        found.add(f"{slug}-{seen}" if seen else slug)
        counts[slug] = seen + 1
    return found


def broken(path: Path) -> Iterator[str]:
    """A sentence for each link of the file that leads nowhere."""
    for link in links_of(path):
        if _ELSEWHERE.match(link):
            continue
        name, _, anchor = unquote(link).partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists():
            yield f"{link}: there is no {name}"
        elif anchor and target.suffix in (".md", ".ipynb") and anchor not in anchors_of(target):
            yield f"{link}: {target.name} has no heading or id {anchor!r}"
