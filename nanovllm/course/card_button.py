"""The grade button of a notebook."""

from html import escape
from typing import Any


class GradeButton:
    """Grades one exercise, and gives its hints one by one. Made by `card`; show it as a cell's last line."""

    def __init__(self, number: str) -> None:
        from nanovllm.course.registry import get_exercise

        self.exercise = get_exercise(number)
        self._hints = 0

    def text(self) -> str:
        """What there is to do."""
        exercise = self.exercise
        number, points = exercise.number, exercise.points
        return (
            f"Exercise {number}: {exercise.title} ({points} points)\n"
            f"  write it in   exercises/{exercise.file}\n"
            f"  then          nanovllm grade {number}\n"
            f"  if stuck      nanovllm hint {number}"
        )

    def html(self) -> str:
        """The same for a page without a kernel."""
        return f"<pre>{escape(self.text())}</pre>"

    def grade(self) -> str:
        """Grade the learner's file, keep the points, and return the grade card as HTML."""
        import io

        from rich.console import Console

        from nanovllm.course.card import show_card
        from nanovllm.course.errors import CourseError
        from nanovllm.course.grade import grade_exercise
        from nanovllm.course.progress import Progress

        try:
            grade = grade_exercise(self.exercise)
        except CourseError as error:
            return f"<pre>{escape(str(error))}</pre>"
        Progress().record([grade])
        console = Console(file=io.StringIO(), record=True, width=100)
        show_card(console, [grade])
        return console.export_html(code_format="<pre style='line-height:1.35'>{code}</pre>", inline_styles=True)

    def box(self) -> Any:
        """The text with its two buttons as a widget."""
        import ipywidgets as widgets

        grade = widgets.Button(description=f"grade {self.exercise.number}", tooltip="run the checks of this exercise")
        hint = widgets.Button(description="hint", tooltip="one more hint; there are three")
        shown = widgets.HTML()

        def graded(_: Any) -> None:
            grade.disabled = True
            shown.value = "grading ..."
            try:
                shown.value = self.grade()
            finally:
                grade.disabled = False

        def hinted(_: Any) -> None:
            self._hints = min(self._hints + 1, len(self.exercise.hints))
            lines = "".join(f"<li>{escape(text)}</li>" for text in self.exercise.hints[: self._hints])
            shown.value = f"<ol>{lines}</ol>"

        grade.on_click(graded)
        hint.on_click(hinted)
        return widgets.VBox([widgets.HTML(self.html()), widgets.HBox([grade, hint]), shown])

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = {"text/plain": self.text(), "text/html": self.html()}
        try:
            shown = self.box()._repr_mimebundle_(**options)
        except ImportError:  # no widgets here: the text alone
            return bundle
        return shown | bundle


def card(exercise: str) -> GradeButton:
    """A button that grades `exercise` ("2.2") in the notebook; the last expression of its cell."""
    return GradeButton(exercise)
