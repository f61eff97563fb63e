"""Colours: one for each request, the same wherever it appears, and few others.

Paul Tol's "light" scheme: made for dark text on coloured fields and told apart with any common colour blindness. The
number that stands in each field says the same, so nothing is lost without colour.
"""

from rich.text import Text

REQUESTS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#CCBBEE")
HEAD = "bold"
DIM = "dim"
GOOD = "bold #44BB99"
BAD = "bold #EE8866"
NEW = "underline"


def colour(request: int) -> str:
    """The colour of a request."""
    return REQUESTS[request % len(REQUESTS)]


def field(request: int) -> str:
    """The style of a coloured field that belongs to a request."""
    return f"black on {colour(request)}"


def chip(request: int, name: str = "") -> Text:
    """A request's number on its colour, with a name if there is one: "#3", "#3·copy" (no space: no break inside)."""
    label = f"#{request}·{name}" if name else f"#{request}"
    return Text.assemble((label, field(request)))
