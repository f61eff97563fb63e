"""The pieces joined are the whole, whatever the tokens, and no piece ends within a character."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanovllm.assets import checkpoint_path
from nanovllm.engine.checkpoint import load_tokenizer
from nanovllm.serve.detokenizer import REPLACEMENT, Detokenizer, StopStrings


@pytest.fixture(scope="module")
def tokenizers(tiny: Path) -> list[Any]:
    """A byte tokenizer, and the shipped byte-level BPE."""
    return [load_tokenizer(tiny), load_tokenizer(checkpoint_path("qwen3-tiny"))]


def pieces_of(tokenizer: Any, ids: list[int], step: int = 1) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.add(ids[i : i + step]) for i in range(0, len(ids), step)]
    return [*pieces, detokenizer.finish()]


@settings(max_examples=150)
@given(ids=st.lists(st.integers(0, 263), max_size=40), step=st.integers(1, 3), which=st.integers(0, 1))
def test_any_tokens(tokenizers: list[Any], ids: list[int], step: int, which: int) -> None:
    tokenizer = tokenizers[which]
    assert "".join(pieces_of(tokenizer, ids, step)) == tokenizer.decode(ids, skip_special_tokens=True)


@settings(max_examples=100)
@given(text=st.text(max_size=30), step=st.integers(1, 3), which=st.integers(0, 1))
def test_no_piece_ends_within_a_character(tokenizers: list[Any], text: str, step: int, which: int) -> None:
    text = text.replace(REPLACEMENT, "")
    ids = tokenizers[which].encode(text, add_special_tokens=False)
    pieces = pieces_of(tokenizers[which], ids, step)
    assert "".join(pieces) == text
    assert REPLACEMENT not in "".join(pieces)


def test_an_emoji_comes_whole(tokenizers: list[Any]) -> None:
    ids = tokenizers[0].encode("a🙂b")  # a token a byte
    assert pieces_of(tokenizers[0], ids)[:6] == ["a", "", "", "", "🙂", "b"]


@given(text=st.text("abc", max_size=20), stops=st.lists(st.text("abc", min_size=1, max_size=3), max_size=3))
def test_stop_strings_cut_where_the_first_one_begins(text: str, stops: list[str]) -> None:
    found = [text.find(stop, 0) for stop in stops if stop in text]
    cutter = StopStrings(stops)
    got = "".join(cutter.add(character) for character in text) + cutter.finish()
    if not found:
        assert (got, cutter.found) == (text, False)
    else:
        assert cutter.found
        ends = min(text.find(stop) + len(stop) for stop in stops if stop in text)
        assert got == text[: min(text[:ends].find(s) for s in stops if s in text[:ends])]
