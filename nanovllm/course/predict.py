"""Predict first: a question before the state that answers it."""

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from nanovllm.viz.bundle import live_form

_CSS = """
.nv-predict{border-left:4px solid #E69F00;border-radius:4px;padding:6px 14px 8px;margin:2px 0}
.nv-predict .nv-question{font-size:15px;line-height:1.45;white-space:normal;max-width:820px}
.nv-predict .nv-said{line-height:1.45;min-height:22px}
.nv-predict code{padding:0 3px}
"""


class Prediction:
    """A question that the reader answers before the engine does. Made by `predict`; show it as a cell's last line."""

    def __init__(self, question: str, answer: Any = None, choices: Sequence[Any] | None = None) -> None:
        self.question = question
        self.choices = [str(choice) for choice in choices or ()]
        self.said = ""
        self._answer = answer

    @property
    def answer(self) -> Any:
        """The answer as the live state gives it now: a callable is asked each time."""
        return self._answer() if callable(self._answer) else self._answer

    def reveal(self) -> None:
        """Print the answer, beside what the reader said where they said something."""
        print(self.verdict())  # noqa: T201 (in a cell, the output is the point)

    def verdict(self) -> str:
        """The answer as a sentence."""
        answer = str(self.answer)
        if not self.said:
            return f"answer: {answer}"
        return f"answer: {answer} (you said {self.said}{', right' if self.said == answer else ''})"

    def text(self) -> str:
        """The question, without its answer."""
        lines = [f"Predict first: {self.question}"]
        lines += [f"  one of: {' | '.join(self.choices)}"] if self.choices else []
        return "\n".join(lines)

    def html(self) -> str:
        """The question for a page without a kernel."""
        said = f"<div class='nv-said'>One of: {escape(' | '.join(self.choices))}</div>" if self.choices else ""
        return f"<style>{_CSS}</style><div class='nv-predict'>{self._question_html()}{said}</div>"

    def box(self) -> Any:
        """The question as a widget: choose or type, then press "reveal"."""
        import ipywidgets as widgets

        entry: Any
        if self.choices:
            entry = widgets.Dropdown(options=["", *self.choices], layout=widgets.Layout(width="260px"))
        else:
            entry = widgets.Text(placeholder="your prediction", layout=widgets.Layout(width="260px"))
        button = widgets.Button(description="reveal", tooltip="show the engine's answer")
        shown = widgets.HTML()

        def pressed(_: Any) -> None:
            self.said = str(entry.value).strip()
            shown.value = f"<div class='nv-said'>{escape(self._revealed())}</div>"

        button.on_click(pressed)
        question = widgets.HTML(f"<style>{_CSS}</style>{self._question_html()}")
        box = widgets.VBox([question, widgets.HBox([entry, button]), shown])
        return box.add_class("nv-predict")

    def _revealed(self) -> str:
        if not self.said:
            return "Write your prediction down first; a wrong one teaches more than none."
        if self._answer is None:
            return f"You said {self.said}. Run the next cell: it has the answer."
        try:
            return self.verdict()
        except Exception:  # the state that it asks for is not there yet
            return f"You said {self.said}. The engine has not got there yet: run the next cell, then press again."

    def _question_html(self) -> str:
        question = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(self.question, quote=False))
        return f"<div class='nv-question'><b>Predict first.</b> {question}</div>"

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> Any:
        bundle = {"text/plain": self.text(), "text/html": self.html()}
        try:
            shown = live_form(self.box())
        except ImportError:  # no widgets here: the question alone
            return bundle
        return shown | bundle


def predict(question: str, answer: Any | Callable[[], Any] = None, choices: Sequence[Any] | None = None) -> Prediction:
    """Ask the reader before the engine answers; the last expression of its cell.

    question: a sentence; `code` in backticks. answer: a value, or a callable that reads it from live state when it is
    asked for, which may be after later cells have run. choices: what can be chosen; None for a free answer.

    In JupyterLab there is a field and a "reveal" button; elsewhere the question alone. A later cell shows the answer
    with `.reveal()`, which prints it computed from the state at that moment:

        guess = predict("How many blocks do 9 tokens take, 4 tokens a block?", lambda: len(seq.block_table))
        guess            # last line of the cell
        guess.reveal()   # in a later cell; prints "answer: 3"
    """
    return Prediction(question, answer, choices)
