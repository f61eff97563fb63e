"""The page and the notebook's stepper in headless Chromium, driven with mouse and keyboard; skipped without it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanovllm.trace import Trace
from nanovllm.viz import save_page
from tests.viz.browser import badge, browser, chromium, jupyterlab, run_all, wait_for_step

pytest.importorskip("playwright")
pytestmark = pytest.mark.skipif(chromium() is None, reason="no chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def page_file(trace: Trace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_page(trace, tmp_path_factory.mktemp("page") / "run.html")


@pytest.fixture
def page(chrome: Any, page_file: Path) -> Iterator[Any]:
    opened = chrome.new_page(viewport={"width": 1280, "height": 900})
    opened.requests, opened.errors = [], []
    opened.on("request", lambda r: opened.requests.append(r.url))
    opened.on("pageerror", lambda e: opened.errors.append(str(e)))
    opened.on("console", lambda m: opened.errors.append(m.text) if m.type == "error" else None)
    opened.goto(page_file.as_uri())
    opened.wait_for_selector("body[data-ready]")
    yield opened
    opened.close()


def shown(page: Any) -> int:
    return int(re.search(r"step (\d+)", page.inner_text("#badge"))[1])


def test_the_page_asks_no_host_for_anything(page: Any) -> None:
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    assert shown(page) == 4
    assert page.errors == []
    assert all(url.startswith(("file://", "data:")) for url in page.requests)


def test_the_page_by_keyboard(page: Any, trace: Trace) -> None:
    page.keyboard.press("End")
    assert shown(page) == len(trace) - 1
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert shown(page) == 1
    page.select_option("#kind", "preemption")
    page.locator("body").click(position={"x": 5, "y": 5})
    page.keyboard.press("n")
    first = next(i for i, r in enumerate(trace) if any(e.kind.value == "preemption" for e in r.events()))
    assert shown(page) == first
    page.keyboard.press("3")
    assert page.get_attribute('[data-pick="3"]', "aria-pressed") == "true"
    dimmed = page.locator('.nv-grid [data-r="0"]').first.evaluate(
        "e => { e.style.transition = 'none'; return getComputedStyle(e).opacity }"
    )
    assert float(dimmed) < 0.5
    assert "request 3" in page.get_attribute('.nv-grid svg[aria-label^="Attention mask"]', "aria-label")
    page.keyboard.press("Escape")
    assert page.get_attribute('[data-pick="3"]', "aria-pressed") == "false"
    page.keyboard.press("Home")
    page.keyboard.press("+")
    page.keyboard.press("+")
    page.keyboard.press(" ")
    for _ in range(200):
        if shown(page) >= 3:
            break
        page.wait_for_timeout(50)
    page.keyboard.press(" ")
    assert shown(page) >= 3
    assert "play" in page.inner_text("#play")


def test_the_page_by_mouse(page: Any, trace: Trace) -> None:
    page.click("#forward")
    page.click("#forward")
    page.click("#back")
    assert shown(page) == 1
    page.click('[data-step="7"]')
    assert shown(page) == 7
    page.click("#last")
    assert shown(page) == len(trace) - 1
    page.select_option("#kind", "prefix hit")
    page.click("#earlier")
    assert any(e.kind.value == "prefix hit" for e in trace[shown(page)].events())
    page.click('[data-pick="1"]')
    assert page.get_attribute('[data-pick="1"]', "aria-pressed") == "true"
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.nvTheme") == "dark"
    assert page.locator(".nv-grid svg[role=img]").count() == 13


def test_every_control_of_the_page_is_reached_with_tab(page: Any) -> None:
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.dataset.pick"))
    wanted = {"first", "back", "play", "forward", "last", "speed", "kind", "earlier", "next", "nobody", "slider", "0"}
    assert wanted <= seen


def test_the_page_fits_a_narrow_window(page: Any) -> None:
    page.set_viewport_size({"width": 420, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 424


def test_the_notebook_stepper_by_mouse_and_keyboard(chrome: Any, tmp_path: Path) -> None:
    with jupyterlab(tmp_path) as address:
        page = chrome.new_page(viewport={"width": 1280, "height": 1000})
        run_all(page, address)
        assert badge(page) == 0
        page.click(".nv-stepper button[title='one step forward']")
        wait_for_step(page, 1)
        page.focus(".nv-stepper button[title='one step forward']")
        page.keyboard.press("Space")
        wait_for_step(page, 2)
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Enter")
        wait_for_step(page, 1)
        page.focus(".nv-stepper .noUi-handle")
        page.keyboard.press("ArrowRight")
        wait_for_step(page, 2)
        page.keyboard.press("ArrowRight")
        wait_for_step(page, 3)
        page.select_option(".nv-stepper select >> nth=1", "preemption")
        page.click(".nv-stepper button[title='on to the next event']")
        page.wait_for_function("document.querySelector('.nv-stepper .nv-words').innerText.includes('preempted')")
        stopped = badge(page)
        page.select_option(".nv-stepper select >> nth=2", "request 0")
        page.wait_for_function("""[...document.querySelectorAll('.nv-stepper style')]
            .some(s => s.textContent.includes('data-r~="0"'))""")
        page.click(".nv-stepper button[title='play or pause']")
        wait_for_step(page, stopped + 2)
        page.click(".nv-stepper button[title='play or pause']")
        page.wait_for_function("document.querySelector('.nv-stepper').innerText.includes('▶ play')")
        assert page.locator(".jp-OutputArea-output svg[aria-label^='Block pool']").count() >= 2
