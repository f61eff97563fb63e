"""Tokens become text: piece by piece for who reads along, and for `generate` mostly while the GPU computes.

Many requests may end in one step, and decoding all that they said takes tens of milliseconds then, in which the GPU has
nothing to do. During the steps before, it was the host that had nothing to do.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from nanovllm.scheduler import Sequence

REPLACEMENT = "\ufffd"  # what a decoder writes for bytes that are no character (yet)
MIN_TOKENS = 16  # new ones that make a completion worth a turn
CONTEXT = 4  # tokens that are decoded again with those after them, where any will do

Decode = Callable[[list[int]], str]


def decoder(tokenizer: Any) -> Decode:
    """How to decode token ids, special tokens left out."""
    return partial(tokenizer.decode, skip_special_tokens=True)


def decode_all(rows: list[list[int]], tokenizer: Any) -> list[str]:
    """The texts of token ids without special tokens, "" without a tokenizer.

    Several at once are decoded side by side, in tokenizers' own threads: a batch of requests may end in one step.
    """
    if tokenizer is None:
        return [""] * len(rows)
    if len(rows) > 1 and _decodes_plainly(tokenizer):
        texts: list[str] = tokenizer.backend_tokenizer.decode_batch(rows, skip_special_tokens=True)
        return texts
    return [decoder(tokenizer)(row) for row in rows]


def is_plain(tokenizer: Any, *methods: str) -> bool:
    """True where these methods do what the tokenizers library does: nobody has given them a meaning of their own."""
    from transformers import PreTrainedTokenizerFast

    return all(getattr(type(tokenizer), m, None) is getattr(PreTrainedTokenizerFast, m) for m in methods)


def _decodes_plainly(tokenizer: Any) -> bool:
    return is_plain(tokenizer, "decode", "_decode") and not tokenizer.clean_up_tokenization_spaces


def decoder_of_parts(tokenizer: Any) -> Decode | None:
    """As `decoder`, the library's own function, where a text can be decoded in parts from any token on.

    That is where tokens stand for bytes, as Qwen3's do, or are words between blanks: then a token changes nothing of
    the text before it, unless that ended within a character. None for other tokenizers, and without one.
    """
    if tokenizer is None or not _decodes_plainly(tokenizer):
        return None
    from tokenizers.decoders import ByteLevel

    backend = tokenizer.backend_tokenizer
    if backend.decoder is not None and not isinstance(backend.decoder, ByteLevel):
        return None
    return partial(backend.decode, skip_special_tokens=True)


class Detokenizer:
    """The text of a growing completion; the pieces joined are what decoding all of it at once gives.

    A byte-level token may end within a character. Decoding then ends in one replacement character, which the next
    token may turn into something else; so that one is held back, and everything before it is final. A new piece is
    decoded together with the tokens of the piece before it, because some decoders treat the start of a text specially.

    max_context: how many of those tokens are enough, for a decoder of parts; None takes all.
    """

    def __init__(self, decode: Decode, max_context: int | None = None) -> None:
        self._decode_ids, self._max_context = decode, max_context
        self._ids: list[int] = []  # the previous clean piece or its end, then what came since
        self._num_context = 0  # how many of them are the previous piece
        self._before = 0  # characters of its text
        self._sent = 0  # characters already given out of the text after it

    def add(self, token_ids: Seq[int]) -> str:
        """The text that these tokens make final."""
        self._ids.extend(token_ids)
        text = self._text()
        is_clean = not text.endswith(REPLACEMENT)
        final = text if is_clean else text[:-1]
        piece = final[self._sent :]
        self._sent = max(self._sent, len(final))
        if is_clean and text:
            self._begin_after(self._ids[self._num_context :])
        return piece

    def finish(self, token_ids: Seq[int] = ()) -> str:
        """The rest, with these last tokens, and with a replacement character where they end within a character."""
        self._ids.extend(token_ids)
        return self._text()[self._sent :]

    def _begin_after(self, piece: list[int]) -> None:
        """Let this piece be the context of the next one, or its end: special tokens alone are none."""
        end = piece if self._max_context is None else piece[-self._max_context :]
        self._before = len(self._decode(end))
        if not self._before:
            end, self._before = piece, len(self._decode(piece))
        self._ids, self._num_context, self._sent = end, len(end), 0

    def _text(self) -> str:
        """The text after the previous piece."""
        return self._decode(self._ids)[self._before :]

    def _decode(self, token_ids: list[int]) -> str:
        return self._decode_ids(token_ids) if token_ids else ""


@dataclass(slots=True)
class _Begun:
    """The text of a completion's first `num_tokens` tokens, in pieces."""

    detokenizer: Detokenizer
    pieces: list[str] = field(default_factory=list)
    num_tokens: int = 0

    def extend(self, seq: Sequence) -> None:
        """Add the tokens that came since."""
        self.pieces.append(self.detokenizer.add(self._unread(seq)))
        self.num_tokens = seq.num_completion_tokens

    def finish(self, seq: Sequence) -> str:
        """The whole text."""
        return "".join([*self.pieces, self.detokenizer.finish(self._unread(seq))])

    def _unread(self, seq: Sequence) -> list[int]:
        return seq.token_ids[seq.num_prompt_tokens + self.num_tokens :]


class CompletionTexts:
    """The texts of one engine's requests. `finish` must be called for each that ends, however it does."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._begun: dict[int, _Begun] = {}  # by sequence id

    def decode_ahead(self, seqs: Iterable[Sequence], is_time_up: Callable[[], bool]) -> None:
        """Decode what these completions have gained, one after the other, as long as there is time."""
        if is_time_up() or (decode := decoder_of_parts(self._tokenizer)) is None:
            return
        for seq in seqs:
            begun = self._begun.get(seq.seq_id)
            if seq.num_completion_tokens - (begun.num_tokens if begun else 0) < MIN_TOKENS:
                continue
            if is_time_up():
                return
            if begun is None:
                begun = self._begun[seq.seq_id] = _Begun(Detokenizer(decode, CONTEXT))
            begun.extend(seq)

    def finish(self, seqs: list[Sequence]) -> list[str]:
        """The whole texts, in order: only what has not been decoded yet is decoded now."""
        begun = [self._begun.pop(seq.seq_id, None) for seq in seqs]
        untouched = [seq.completion_token_ids for seq, b in zip(seqs, begun, strict=True) if b is None]
        texts = iter(decode_all(untouched, self._tokenizer))
        return [next(texts) if b is None else b.finish(seq) for seq, b in zip(seqs, begun, strict=True)]
