"""The stepper widget without a browser: its buttons, its slider, its texts."""

import asyncio

import pytest

pytest.importorskip("ipywidgets")

from nanovllm import LLM, SamplingParams
from nanovllm.trace import Trace
from nanovllm.viz.widget import StepperWidget


def test_buttons_step_and_find_events(trace: Trace) -> None:
    widget = StepperWidget(trace)
    assert widget.stepper.position == 0
    widget.forward.click()
    widget.forward.click()
    widget.back.click()
    assert widget.stepper.position == 1
    widget.kind.value = "preemption"
    widget.next.click()
    assert any(e.kind.value == "preemption" for e in widget.stepper.record.events())
    place = widget.stepper.position
    widget.next.click()
    widget.earlier.click()
    assert widget.stepper.position == place
    assert f"step {place}" in widget.badge.value


def test_slider_moves_the_stepper_and_follows_it(trace: Trace) -> None:
    widget = StepperWidget(trace)
    widget.slider.value = 9
    assert widget.stepper.position == 9
    assert "after step 9" in widget.body.value
    widget.back.click()
    assert widget.slider.value == 8


def test_a_picked_request_dims_the_others_and_shows_its_mask(trace: Trace) -> None:
    widget = StepperWidget(trace, panels=["attention mask", "block pool"])
    widget.slider.value = 5
    widget.pick.value = 3
    assert '[data-r]:not([data-r~="3"])' in widget.body.value
    assert "Attention mask of request 3" in widget.body.value
    widget.forward.click()
    assert widget.pick.value == 3


def test_play_runs_to_the_end(trace: Trace) -> None:
    widget = StepperWidget(trace, panels=["deques"])
    widget.slider.value = len(trace) - 4
    widget.speed.value = 8.0

    async def play() -> None:
        widget.toggle()
        assert widget._playing is not None
        await widget._playing

    asyncio.run(play())
    assert widget.stepper.at_end
    assert widget.play.description == "▶ play"


def test_a_live_widget_drives_the_engine(llm: LLM, trace: Trace) -> None:
    widget = StepperWidget.live(llm, panels=["deques"])
    try:
        assert "Nothing has run yet" in widget.words.value
        llm.add_request([3, 4, 5], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
        widget.kind.value = "finish"
        widget.next.click()
        assert llm.is_finished()
        assert widget.slider.max == 2
    finally:
        widget.close()
    assert llm.on_event is None


def test_text_has_every_panel(trace: Trace) -> None:
    text = StepperWidget(trace).text()
    assert "[deques]" in text
    assert "[prefix cache]" in text
