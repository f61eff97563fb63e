"""A text that ends where a stop string begins, though it comes in pieces."""

from collections.abc import Iterable


class StopStrings:
    """Cuts a text at the first of some strings, which may arrive in pieces. `found` is True from then on."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._pending = ""
        self.found = False

    def add(self, piece: str) -> str:
        """The text that is certain to come before any stop string."""
        if self.found:
            return ""
        text = self._pending + piece
        starts = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if starts:
            self.found, self._pending = True, ""
            return text[: min(starts)]
        held = max((self._overlap(text, stop) for stop in self._stops), default=0)
        self._pending = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """What was held back because a stop string might have begun there."""
        rest, self._pending = self._pending, ""
        return rest

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of `text` that begins `stop`."""
        return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
