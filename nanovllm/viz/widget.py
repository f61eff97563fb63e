"""The stepper of a notebook: play, pause, back, forward, to an event, pick a request. Mouse or keyboard."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

try:
    import ipywidgets as widgets
except ModuleNotFoundError as missing:
    sentence = 'the stepper is a widget of notebooks and needs ipywidgets: pip install "nanovllm[notebooks]"'
    raise ModuleNotFoundError(sentence, name="ipywidgets") from missing

from nanovllm.trace.record import EventKind
from nanovllm.trace.stepper import Stepper
from nanovllm.trace.trace import Trace
from nanovllm.viz.bundle import live_form
from nanovllm.viz.panels import GRID_CSS, chosen, highlight_css, kinds_html, words_html
from nanovllm.viz.theme import stylesheet

_NUMBERS = itertools.count()  # tells the style rules of several steppers in one notebook apart
_CSS = """
.nv-stepper .nv-bar{flex-flow:row wrap;align-items:center;gap:4px}
.nv-stepper .nv-bar button{border-radius:7px;min-width:38px;margin:1px}
.nv-stepper button:focus-visible{outline:2.5px solid var(--jp-ui-font-color1,currentColor);outline-offset:1px}
.nv-stepper .widget-html-content{line-height:1.45}
.nv-stepper .nv-badge{color:var(--jp-ui-font-color1,inherit);font-size:13px}
.nv-stepper .nv-words{margin-bottom:14px}
"""


class StepperWidget:
    """A `Stepper` with buttons. Display `.box`, or the object itself as the last line of a cell.

        StepperWidget(trace)          # walk through a recording
        StepperWidget.live(llm)       # drive an engine; the slider goes back over what has run

    panels: names of the views to show (see `nanovllm.viz.panels.PANELS`); None shows all.
    With the slider in focus the arrow keys step; every button is reached with Tab and pressed with Space.
    """

    def __init__(self, source: Trace | Stepper, panels: list[str] | None = None) -> None:
        self.stepper = Stepper(source) if isinstance(source, Trace) else source
        self.panels = panels
        self._name = f"nv-stepper-{next(_NUMBERS)}"
        self._playing: asyncio.Task[None] | None = None
        self._busy = False
        self._make()
        if self.stepper.position is None and len(self.stepper.trace):
            self.stepper.forward()
        self.refresh()

    @classmethod
    def live(cls, engine: Any, panels: list[str] | None = None, watch_cache: bool = True) -> "StepperWidget":
        """Watch `engine` and drive it from here."""
        return cls(Stepper.live(engine, watch_cache), panels)

    # --- building ---------------------------------------------------------------------------------------------------

    def _make(self) -> None:
        self.slider = widgets.IntSlider(0, 0, 0, description="step", layout=widgets.Layout(width="min(420px, 40%)"))
        self.speed = widgets.Dropdown(
            options=[("½", 0.5), ("1", 1.0), ("2", 2.0), ("4", 4.0), ("8", 8.0)],
            value=2.0,
            description="speed",
            tooltip="steps a second",
            layout=widgets.Layout(width="130px"),
        )
        self.kind = widgets.Dropdown(
            options=[k.value for k in EventKind], description="event", layout=widgets.Layout(width="220px")
        )
        self.pick = widgets.Dropdown(
            options=[("all", "all")], description="request", layout=widgets.Layout(width="160px")
        )
        self.back = self._button("◀", "one step back", self._step_back)
        self.play = self._button("▶ play", "play or pause", self.toggle, "84px")
        self.forward = self._button("▶|", "one step forward", self._step_forward)
        self.earlier = self._button("‹ previous", "back to the event before", self._event_before, "98px")
        self.next = self._button("next ›", "on to the next event", self._event_after, "70px")
        self.badge = widgets.HTML(layout=widgets.Layout(margin="0 8px"))
        self.badge.add_class("nv-badge")
        self.words = widgets.HTML()
        self.body = widgets.HTML()
        self.slider.observe(self._slid, "value")
        self.pick.observe(lambda _: self.refresh(), "value")
        moving = widgets.Box([self.back, self.play, self.forward, self.slider, self.speed, self.badge])
        choosing = widgets.Box([self.kind, self.earlier, self.next, self.pick])
        for bar in (moving, choosing):
            bar.add_class("nv-bar")
        style = widgets.HTML(f"<style>{stylesheet()}{GRID_CSS}{_CSS}</style>")
        self.box = widgets.VBox([style, moving, choosing, self.words, self.body])
        self.box.add_class("nv-stepper").add_class(self._name)

    def _button(self, words: str, tooltip: str, run: Callable[[], None], width: str = "44px") -> widgets.Button:
        """A button that runs something and then redraws."""
        button = widgets.Button(description=words, tooltip=tooltip, layout=widgets.Layout(width=width))

        def clicked(_: widgets.Button) -> None:
            run()
            self.refresh()

        button.on_click(clicked)
        return button

    # --- moving -----------------------------------------------------------------------------------------------------

    def _step_forward(self) -> None:
        self.pause()
        self.stepper.forward()

    def _step_back(self) -> None:
        self.pause()
        self.stepper.back()

    def _event_after(self) -> None:
        self.pause()
        self.stepper.run_to(self.kind.value)

    def _event_before(self) -> None:
        self.pause()
        self.stepper.back_to(self.kind.value)

    def _slid(self, change: dict[str, Any]) -> None:
        if not self._busy and len(self.stepper.trace):
            self.stepper.seek(change["new"])
            self.refresh()

    def toggle(self) -> None:
        """Play if it is still, pause if it plays."""
        if self._playing is not None:
            self.pause()
            return
        if self.stepper.at_end and len(self.stepper.trace) > 1:
            self.stepper.seek(0)
        self._playing = asyncio.get_event_loop().create_task(self._run())

    def pause(self) -> None:
        """Stop playing. Harmless when it does not."""
        if self._playing is not None:
            self._playing.cancel()
            self._playing = None
        self._label()

    async def _run(self) -> None:
        """Take steps at the chosen speed until the end."""
        self._label()
        while not self.stepper.at_end:
            self.stepper.forward()
            self.refresh()
            await asyncio.sleep(1 / self.speed.value)
        self._playing = None
        self._label()

    def _label(self) -> None:
        self.play.description = "❚❚ pause" if self._playing is not None else "▶ play"

    # --- showing ----------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Draw the step at the stepper's position."""
        trace, position = self.stepper.trace, self.stepper.position
        if position is None:
            self.words.value = '<div class="nv nv-words"><p>Nothing has run yet: press ▶| or play.</p></div>'
            return
        self._busy = True  # the slider moves because we moved, not the reader
        self.slider.max = len(trace) - 1
        self.slider.value = position
        self._busy = False
        requests: list[tuple[str, int | str]] = [("all", "all"), *((f"request {i}", i) for i in trace.request_ids)]
        if list(self.pick.options) != requests:
            picked = self.pick.value
            self.pick.options = requests
            self.pick.value = picked  # new options reset it
        self.badge.value = f'<span class="nv">{kinds_html(trace, position)}</span>'
        self.words.value = f'<div class="nv nv-words">{words_html(trace, position)}</div>'
        self.body.value = self.html()

    @property
    def picked(self) -> int | None:
        """The request to highlight, None for all alike."""
        return None if self.pick.value == "all" else self.pick.value

    def html(self) -> str:
        """The panels of the current step."""
        trace, position, pick = self.stepper.trace, self.stepper.position, self.picked
        if position is None:
            return ""
        cards = "".join(
            f'<div class="{"nv-wide" if p.wide else "nv-half"}">{p.make(trace, position, pick).svg(style=False)}</div>'
            for p in chosen(self.panels, trace)
        )
        rule = highlight_css(f".{self._name}", pick)
        return f'<style>{rule}</style><div class="nv nv-grid">{cards}</div>'

    def text(self) -> str:
        """The text forms of all panels."""
        trace, position, pick = self.stepper.trace, self.stepper.position, self.picked
        if position is None:
            return "nothing has run yet"
        views = [(p.name, p.make(trace, position, pick)) for p in chosen(self.panels, trace)]
        return "\n\n".join(f"[{name}]\n{view.text()}" for name, view in views)

    def static(self) -> str:
        """The words and panels of the current step as HTML, for pages without a kernel."""
        style = f"<style>{stylesheet()}{GRID_CSS}{_CSS}</style>"
        return f'<div class="{self._name} nv-stepper">{style}{self.badge.value}{self.words.value}{self.html()}</div>'

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> Any:
        return live_form(self.box) | {"text/plain": self.text(), "text/html": self.static()}

    def close(self) -> None:
        """Stop playing and let a live engine go."""
        self.pause()
        self.stepper.close()
