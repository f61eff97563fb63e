"""What every view has: a title, a text form, a picture."""

from typing import Any, ClassVar

from nanovllm.trace.record import Record
from nanovllm.trace.state import State
from nanovllm.viz.svg import document, visible


class View:
    """A drawing of a record. Subclasses give `text()` and `draw()`.

    `svg()` stands alone; `svg(style=False)` goes into a page that has the style sheet already.
    """

    title: ClassVar[str] = ""

    def __init__(self, record: Record) -> None:
        self.record = record

    def text(self) -> str:
        """The same content as lines of text: equal wherever the state is equal."""
        raise NotImplementedError

    def draw(self) -> tuple[float, float, str]:
        """Width, height and body of the picture."""
        raise NotImplementedError

    @property
    def heading(self) -> str:
        """The title, with the moment that is shown."""
        return self.title

    def svg(self, style: bool = True) -> str:
        """The picture as an SVG document, its text form as the description for readers who do not see it."""
        width, height, body = self.draw()
        return document(width, height, body, self.heading, self.text(), style)

    def html(self) -> str:
        """The picture as HTML."""
        return self.svg()

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}

    # --- words that several views use -------------------------------------------------------------------------------

    def token(self, token_id: int) -> str:
        """A token's text with blanks made visible, or its number."""
        return visible(self.record.labels.get(token_id, str(token_id)))


def ids(values: list[int]) -> str:
    """Ids in a row, or a dash."""
    return " ".join(map(str, values)) or "-"


def filled_slots(state: State, block_size: int) -> dict[int, int]:
    """How many slots of each owned block hold a cached token."""
    cached = state.column("num_cached_tokens")
    filled: dict[int, int] = {}
    for seq_id, table in state.tables.items():
        for index, block in enumerate(table):
            here = min(block_size, max(0, cached[seq_id] - index * block_size))
            filled[block] = max(filled.get(block, 0), here)
    return filled
