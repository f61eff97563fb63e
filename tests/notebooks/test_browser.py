"""Three notebooks in JupyterLab: every cell runs, widgets work, nothing is wider than the page, light and dark."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.notebooks.browser import ERRORS, OVERFLOW, lab, open_and_run
from tests.viz.browser import browser, chromium

pytest.importorskip("playwright")
pytestmark = [
    pytest.mark.skipif(chromium() is None, reason="no chromium: apt-get install chromium"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def chrome() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with lab() as started:
        yield started


@pytest.mark.parametrize(
    ("name", "theme"),
    [
        ("10_sequences_and_deques", "Light"),
        ("12_preemption_and_fairness", "Dark"),
        ("21_slots_and_block_tables", "Light"),
    ],
)
def test_a_notebook_in_jupyterlab(chrome: Any, address: str, name: str, theme: str) -> None:
    page = open_and_run(chrome, address.replace("NAME", name), f"JupyterLab {theme}")
    try:
        assert page.evaluate(ERRORS) == []
        assert page.evaluate(OVERFLOW) == []
        counts = page.locator(".jp-CodeCell .jp-InputPrompt").all_inner_texts()
        assert counts
        assert all(re.match(r"\[\d+\]", count) for count in counts), f"some cells did not run: {counts}"
        predict(page)
        ask_for_a_hint(page)
        if page.locator(".nv-stepper").count():
            step_back(page)
    finally:
        page.close()


def predict(page: Any) -> None:
    """Reveal without a prediction, then with one."""
    box = page.locator(".jp-OutputArea-output .nv-predict:has(button)").first
    box.get_by_role("button", name="reveal").click()
    box.get_by_text("Write your prediction down first").wait_for()
    if box.locator("select").count():
        box.locator("select").select_option(index=1)
    else:
        box.locator("input").fill("7")
        box.locator("input").press("Tab")
    box.get_by_role("button", name="reveal").click()
    box.get_by_text(re.compile("^(answer: .*you said|You said)")).wait_for()


def ask_for_a_hint(page: Any) -> None:
    """The first hint of the last exercise."""
    card = page.locator(".jp-OutputArea-output", has=page.get_by_role("button", name="hint", exact=True)).last
    before = card.inner_text()
    card.get_by_role("button", name="hint", exact=True).click()
    for _ in range(100):
        if card.inner_text() != before:
            return
        page.wait_for_timeout(100)
    raise AssertionError("pressing hint showed nothing")


def step_back(page: Any) -> None:
    """One step back with the mouse, one forward with the keyboard."""
    badge = page.locator(".nv-stepper .nv-badge").first
    shown = badge.inner_text()
    page.locator(".nv-stepper button[title='one step back']").first.click()
    page.wait_for_function("([e, old]) => e.innerText !== old", arg=[badge.element_handle(), shown])
    at = step_of(badge.inner_text())
    page.locator(".nv-stepper button[title='one step forward']").first.press("Space")
    page.wait_for_function("([e, n]) => e.innerText.includes(`step ${n} `)", arg=[badge.element_handle(), at + 1])


def step_of(text: str) -> int:
    found = re.search(r"step (\d+)", text)
    assert found, text
    return int(found[1])
