"""Links of a hand-out whose target is not in it become plain text that names the file."""

import json
import os
import re
from pathlib import Path
from urllib.parse import unquote

# Code goes first: what looks like a link in it is none. A link's text may hold one pair of brackets.
_CODE_OR_LINK = re.compile(
    r"(?P<code>^ *(?P<fence>```|~~~).*?^ *(?P=fence)\s*$)"
    r"|!?\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\(<?(?P<target>[^)\s>]+)>?(?:\s+\"[^\"]*\")?\)"
    r"|`[^`\n]+`",
    re.MULTILINE | re.DOTALL,
)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def unlink_missing(root: Path) -> None:
    """Rewrite the pages and notebooks directly in the folders of the hand-out at `root`."""
    for page in root.glob("*/*.md"):
        text = page.read_text(encoding="utf-8")
        page.write_text(_without_dead_links(text, page.parent, root), encoding="utf-8")
    for notebook in root.glob("*/*.ipynb"):
        _unlink_in_notebook(notebook, root)


def _unlink_in_notebook(notebook: Path, root: Path) -> None:
    """Its Markdown cells only. A notebook without a dead link is left as it is, to the byte."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    changed = False
    for cell in content["cells"]:
        if cell["cell_type"] == "markdown":
            old = "".join(cell["source"])
            new = _without_dead_links(old, notebook.parent, root)
            if new != old:
                cell["source"], changed = new.splitlines(keepends=True), True
    if changed:
        notebook.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _without_dead_links(text: str, folder: Path, root: Path) -> str:
    def plain(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None or target.startswith("#") or _ELSEWHERE.match(target):
            return match[0]
        path = Path(os.path.normpath(folder / unquote(target).partition("#")[0]))
        if path.is_relative_to(root) and path.exists():
            return match[0]
        name = f"`{Path(os.path.relpath(path, root)).as_posix()}`"
        return name if match["text"].strip("`") == path.name else f"{match['text']} ({name})"

    return _CODE_OR_LINK.sub(plain, text)
