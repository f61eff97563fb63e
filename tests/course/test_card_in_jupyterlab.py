"""The grade card's buttons, pressed in a real JupyterLab."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
pytest.importorskip("jupyterlab")

from tests.viz import browser as tools

pytestmark = pytest.mark.skipif(tools.chromium() is None, reason="no chromium: apt-get install chromium")
CELL = "from nanovllm.course.notebook import card\ncard('1.2')"
RUN_ALL = """async () => {
  const app = window.jupyterapp, panel = app.shell.currentWidget;
  await panel.context.ready; await panel.sessionContext.ready;
  await panel.sessionContext.session?.kernel?.info;
  app.shell.collapseLeft();
  await app.commands.execute("notebook:run-all-cells");
}"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exercises: Path) -> Iterator[Any]:
    file = Path("part1") / "ex02_block_hash.py"
    (tmp_path / "exercises" / "part1").mkdir(parents=True)
    shutil.copy(exercises / file, tmp_path / "exercises" / file)
    monkeypatch.setattr(tools, "NOTEBOOK_CELLS", (CELL,))
    with tools.jupyterlab(tmp_path) as address, tools.browser() as chrome:
        opened = chrome.new_page(viewport={"width": 1100, "height": 900})
        opened.goto(address)
        opened.wait_for_function("window.jupyterapp && window.jupyterapp.shell.currentWidget?.context", timeout=120_000)
        opened.evaluate(RUN_ALL)
        opened.wait_for_selector("button:has-text('grade 1.2')", timeout=120_000)
        yield opened


def test_grade_hint_and_pass(page: Any, tmp_path: Path, solutions: Path) -> None:
    page.click("button:has-text('grade 1.2')")
    page.wait_for_selector(".nv-grade:has-text('not begun')", timeout=60_000)
    page.click("button:has-text('hint')")
    page.wait_for_selector(".nv-grade ol li")
    file = tmp_path / "exercises" / "part1" / "ex02_block_hash.py"
    file.write_text("def chained_hash(previous, token_ids):\n    return sum(token_ids)\n")
    page.click("button:has-text('grade 1.2')")
    page.wait_for_selector(".nv-grade:has-text('Think about:')", timeout=60_000)
    shutil.copy(solutions / "part1" / "ex02_block_hash.py", file)
    page.focus("button:has-text('grade 1.2')")
    page.keyboard.press("Enter")
    page.wait_for_selector(".nv-grade:has-text('2/2 points')", timeout=60_000)
    assert "2/100" in page.inner_text(".nv-bar100")
