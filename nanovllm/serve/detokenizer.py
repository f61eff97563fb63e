"""Tokens become text piece by piece: never half a character, and nothing after a stop string."""

from collections.abc import Iterable, Sequence
from typing import Any

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character (yet)


class Detokenizer:
    """The text of a growing completion; the pieces joined are what decoding all of it at once gives.

    A byte-level token may end within a character. Decoding then ends in one replacement character, which the next
    token may turn into something else; so that one is held back, and everything before it is final. A new piece is
    decoded together with the tokens of the piece before it, because some decoders treat the start of a text specially.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # the previous clean piece, then what came since
        self._context = 0  # how many of them are the previous piece
        self._sent = 0  # characters already given out of the text after that piece

    def add(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens make final."""
        self._ids.extend(token_ids)
        text = self._text()
        is_clean = not text.endswith(REPLACEMENT)
        final = text if is_clean else text[:-1]
        piece = final[self._sent :]
        self._sent = max(self._sent, len(final))
        if is_clean and text:
            self._ids = self._ids[self._context :]
            self._context = len(self._ids)
            self._sent = 0
        return piece

    def finish(self) -> str:
        """What was held back: a replacement character where the completion ends within a character, else nothing."""
        return self._text()[self._sent :]

    def _text(self) -> str:
        """The text after the previous piece."""
        before = self._decode(self._ids[: self._context])
        return self._decode(self._ids)[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True)) if token_ids else ""


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
