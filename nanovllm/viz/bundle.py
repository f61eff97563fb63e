"""How a notebook is told to show a live widget, in the same words for every release of ipywidgets."""

from typing import Any

WIDGET = "application/vnd.jupyter.widget-view+json"


def live_form(widget: Any) -> dict[str, Any]:
    """The MIME bundle that makes a frontend show `widget`.

    Release 8 has a method for it; release 7, which Colab brings, shows itself by other means. What a frontend reads is
    the same.
    """
    return {WIDGET: {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}}
