"""Notebooks in JupyterLab in headless Chromium. `python -m tests.notebooks.browser DIR NAME...` takes pictures."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.notebooks import FOLDER, find
from tests.viz.browser import browser, jupyterlab

WIDTH = 1280
# Anything in an output that is wider than the place it has, and cannot be scrolled to.
OVERFLOW = """() => [...document.querySelectorAll('.jp-OutputArea-output')].flatMap(output => {
  const room = output.getBoundingClientRect();
  return [...output.querySelectorAll('svg, table, pre, .nv-predict, .widget-box')]
    .filter(e => e.getBoundingClientRect().right > room.right + 2)
    .map(e => `${e.tagName} ${e.className?.baseVal ?? e.className}: ${e.getBoundingClientRect().right} > ${room.right}`)
})"""
ERRORS = """() => [...document.querySelectorAll(
  '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.error"], ' +
  '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]')].map(e => e.innerText)"""
HEIGHT = """() => Math.max(...[...document.querySelectorAll('.jp-NotebookPanel *')].map(e => e.scrollHeight))"""
RUN = """async theme => {
  const app = window.jupyterapp, panel = app.shell.currentWidget;
  await panel.context.ready; await panel.sessionContext.ready;
  await panel.sessionContext.session?.kernel?.info;
  await app.commands.execute("apputils:change-theme", {theme});
  panel.content.notebookConfig = {...panel.content.notebookConfig, windowingMode: "none"};
  app.shell.collapseLeft();
  await app.commands.execute("notebook:run-all-cells");
}"""


@contextmanager
def lab() -> Iterator[str]:
    """JupyterLab on a copy of the notebooks; yields its address with NAME in place of a notebook's name."""
    with tempfile.TemporaryDirectory() as work:
        shutil.copytree(FOLDER, Path(work), dirs_exist_ok=True)
        with jupyterlab(Path(work)) as address:
            yield address.replace("watch.ipynb", "NAME.ipynb?reset")  # one notebook at a time


def open_and_run(chrome: Any, address: str, theme: str = "JupyterLab Light") -> Any:
    """A page with the notebook, all of whose cells have run."""
    page = chrome.new_page(viewport={"width": WIDTH, "height": 1000})
    page.goto(address)
    page.wait_for_function("window.jupyterapp && window.jupyterapp.shell.currentWidget?.context", timeout=240_000)
    page.evaluate(RUN, theme)  # returns when the last cell has run
    page.wait_for_timeout(1500)
    return page


def pictures(folder: Path, names: list[str]) -> None:
    """The whole of each notebook, light and dark, in pieces of a screen."""
    folder.mkdir(parents=True, exist_ok=True)
    with browser() as chrome, lab() as address:
        for path in find(names):
            for theme in ("Light", "Dark"):
                page = open_and_run(chrome, address.replace("NAME", path.stem), f"JupyterLab {theme}")
                print(path.stem, theme, "errors:", page.evaluate(ERRORS), "overflow:", page.evaluate(OVERFLOW))
                height = page.evaluate(HEIGHT)
                page.set_viewport_size({"width": WIDTH, "height": min(int(height) + 200, 14_000)})
                page.evaluate("document.querySelectorAll('.jp-NotebookPanel *').forEach(e => e.scrollTo(0, 0))")
                page.wait_for_timeout(1500)
                page.screenshot(path=folder / f"{path.stem}-{theme.lower()}.png")
                page.close()


if __name__ == "__main__":
    pictures(Path(sys.argv[1]), sys.argv[2:])
