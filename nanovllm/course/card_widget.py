"""The grade card of a notebook: grade, hint, and the solution once it is open, with mouse or keyboard."""

from collections.abc import Callable
from html import escape
from typing import Any

from nanovllm.course.card_html import bar_html, diff_html, frame, grade_html
from nanovllm.course.errors import CourseError
from nanovllm.course.grade import grade_exercise
from nanovllm.course.judge import Grade
from nanovllm.course.progress import Progress
from nanovllm.course.registry import COURSE_POINTS, get_exercise
from nanovllm.course.reveal import solution_diff
from nanovllm.viz.bundle import live_form

IMPL = "exercises"


class NotebookCard:
    """Grades one exercise's file in `exercises/`, keeps the points, gives its hints one by one, shows the solution.

    Made by `nanovllm.course.card.notebook_card`. `grade()`, `hint()` and `solution()` are what the buttons do; each
    returns HTML, and none raises for what the learner's file does.
    """

    def __init__(self, number: str) -> None:
        self.exercise = get_exercise(number)
        self.last: Grade | None = None
        self._hints = 0

    # --- what the buttons do ----------------------------------------------------------------------------------------

    def grade(self) -> str:
        """Run the checks in a process of their own; the grade card."""
        try:
            self.last = grade_exercise(self.exercise, IMPL)
        except CourseError as error:
            return _note(str(error))
        progress = Progress()
        progress.record([self.last])
        return grade_html(self.last) + f"<div class='nv'>{bar_html(progress.points, COURSE_POINTS)}</div>"

    def hint(self) -> str:
        """One hint more than before."""
        self._hints = min(self._hints + 1, len(self.exercise.hints))
        lines = "".join(f"<li>{escape(text)}</li>" for text in self.exercise.hints[: self._hints])
        return frame(f"<ol>{lines}</ol>")

    def solution(self, show_me: bool = False) -> str:
        """The difference to the solution, or the sentence that says how it opens."""
        try:
            return diff_html(solution_diff(self.exercise, IMPL, show_me, Progress()))
        except CourseError as error:
            return _note(str(error).replace("add --show-me", "press the button once more"))

    # --- how it shows itself ----------------------------------------------------------------------------------------

    def text(self) -> str:
        """What there is to do; the same on every machine."""
        exercise = self.exercise
        number = exercise.number
        return (
            f"Exercise {number}: {exercise.title} ({exercise.points} points)\n"
            f"  write it in   exercises/{exercise.file}\n"
            f"  then          nanovllm grade {number}\n"
            f"  if stuck      nanovllm hint {number}"
        )

    def html(self) -> str:
        """The same for a page without a kernel."""
        return f"<pre>{escape(self.text())}</pre>"

    def box(self) -> Any:
        """The card as a widget."""
        import ipywidgets as widgets

        number = self.exercise.number
        shown = widgets.HTML()
        head = widgets.HTML(frame(f"<pre>{escape(self.text())}</pre>"))
        grade = widgets.Button(description=f"grade {number}", button_style="primary", tooltip="run the checks")
        hint = widgets.Button(description="hint", tooltip="one more hint; there are three")
        solution = widgets.Button(description="solution", tooltip="compare with the solution, once you have passed")
        asked = []
        graded = [""]

        def run() -> str:
            graded[0] = self.grade()
            return graded[0]

        def ask() -> str:
            asked.append(True)
            return self.solution(show_me=len(asked) > 1)

        _connect(grade, shown, run, "grading ...")
        _connect(hint, shown, lambda: graded[0] + self.hint())  # what failed stays in view beside the hint
        _connect(solution, shown, ask)
        return widgets.VBox([head, widgets.HBox([grade, hint, solution]), shown])

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> Any:
        bundle = {"text/plain": self.text(), "text/html": self.html()}
        try:
            shown = live_form(self.box())
        except ImportError:  # no widgets here: the text alone
            return bundle
        return shown | bundle


def _connect(button: Any, shown: Any, act: Callable[[], str], meanwhile: str = "") -> None:
    """Show what `act` returns when the button is pressed. The kernel waits for it, so no cell runs at the same time."""

    def pressed(_: Any) -> None:
        button.disabled = True
        shown.value = frame(escape(meanwhile)) if meanwhile else shown.value
        try:
            shown.value = act()
        finally:
            button.disabled = False

    button.on_click(pressed)


def _note(text: str) -> str:
    return frame(f"<p>{escape(text)}</p>")
