"""What the browser tests and the screenshots share: Chromium, and a JupyterLab with one notebook.

`python tests/viz/browser.py DIR` writes the screenshots of the documentation.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()

NOTEBOOK_CELLS = (
    "from nanovllm.trace.workload import arrivals, record_run, small_llm, task_prompts\n"
    "from nanovllm.viz.widget import StepperWidget\n"
    "llm = small_llm()\n"
    "trace = record_run(llm, arrivals(task_prompts()))\n"
    "stepper = StepperWidget(trace)\n"
    "stepper",
    "from nanovllm.viz import BlockPool\nBlockPool(trace[10])",
)


def chromium() -> str | None:
    """The browser's path, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium under playwright."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        started = p.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield started
        started.close()


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """A JupyterLab in `folder` with watch.ipynb in it; yields the address of that notebook."""
    cells = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "source": s, "outputs": [], "execution_count": None}
        for i, s in enumerate(NOTEBOOK_CELLS)
    ]
    spec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {"cells": cells, "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5}
    (folder / "watch.ipynb").write_text(json.dumps(book))
    quiet = folder / "settings" / "@jupyterlab" / "apputils-extension"
    quiet.mkdir(parents=True, exist_ok=True)
    (quiet / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = (
        f"--no-browser --allow-root --ip=127.0.0.1 --port={port} --expose-app-in-browser --IdentityProvider.token="
    )
    home = {"JUPYTER_CONFIG_DIR": str(folder / "config"), "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings")}
    home |= {"JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"), "IPYTHONDIR": str(folder / "ipython")}
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options.split(), "--ServerApp.password=", str(folder)],
        env=os.environ | home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(240):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.25)
        yield f"http://127.0.0.1:{port}/lab/tree/watch.ipynb"
    finally:
        server.terminate()
        server.wait(20)


def run_all(page: Any, address: str, theme: str = "JupyterLab Light") -> None:
    """Open the notebook, choose a theme, run every cell and wait for the stepper."""
    page.goto(address)
    page.wait_for_function("window.jupyterapp && window.jupyterapp.shell.currentWidget?.context", timeout=120_000)
    page.evaluate(
        """async theme => {
      const app = window.jupyterapp, panel = app.shell.currentWidget;
      await panel.context.ready; await panel.sessionContext.ready;
      await panel.sessionContext.session?.kernel?.info;
      await app.commands.execute("apputils:change-theme", {theme});
      panel.content.notebookConfig = {...panel.content.notebookConfig, windowingMode: "none"};
      app.shell.collapseLeft();
      await app.commands.execute("notebook:run-all-cells");
    }""",
        theme,
    )
    page.wait_for_selector(".nv-stepper .nv-grid svg", timeout=240_000)


def badge(page: Any) -> int:
    """The step that the notebook's stepper shows."""
    return int(re.search(r"step (\d+)", page.inner_text(".nv-stepper .nv-badge"))[1])  # type: ignore[index]


def wait_for_step(page: Any, step: int) -> None:
    """Wait until the stepper shows `step`."""
    page.wait_for_function(
        "step => document.querySelector('.nv-stepper .nv-badge')?.innerText.includes(`step ${step} `)", arg=step
    )


def screenshots(folder: Path) -> None:
    """The pictures of the documentation."""
    from nanovllm.trace.workload import arrivals, record_run, small_llm, task_prompts
    from nanovllm.viz import save_page

    with tempfile.TemporaryDirectory() as work, browser() as chrome:
        with small_llm() as llm:
            path = save_page(record_run(llm, arrivals(task_prompts())), Path(work) / "run.html")
        for scheme in ("light", "dark"):
            page = chrome.new_page(viewport={"width": 1280, "height": 1180}, color_scheme=scheme)
            page.goto(f"{path.as_uri()}#10")
            page.wait_for_selector("body[data-ready]")
            if scheme == "dark":  # the lower half, with one request picked
                page.click('[data-pick="5"]')
                page.locator('[data-panel="4"]').evaluate("e => scrollTo(0, e.offsetTop - 150)")
                page.wait_for_timeout(400)
            page.screenshot(path=folder / f"page-{scheme}.png")
        with jupyterlab(Path(work)) as address:
            page = chrome.new_page(viewport={"width": 1280, "height": 1330})
            run_all(page, address, "JupyterLab Dark")
            page.click(".nv-stepper .noUi-handle")
            for step in range(1, 11):
                page.keyboard.press("ArrowRight")
                wait_for_step(page, step)
            page.locator(".nv-stepper").evaluate("e => e.scrollIntoView()")
            page.wait_for_timeout(900)
            page.screenshot(path=folder / "stepper-dark.png")


if __name__ == "__main__":
    screenshots(Path(sys.argv[1]))
