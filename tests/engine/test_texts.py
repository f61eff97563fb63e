"""The pieces joined are the whole, whatever the tokens, and no piece ends within a character."""

from pathlib import Path
from typing import Any

import pytest
from helpers import make_llm
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from nanovllm import LLM, SamplingParams
from nanovllm.assets import checkpoint_path
from nanovllm.engine import texts
from nanovllm.engine.checkpoint import load_tokenizer
from nanovllm.engine.texts import (
    CONTEXT,
    MIN_TOKENS,
    REPLACEMENT,
    CompletionTexts,
    Detokenizer,
    decoder,
    decoder_of_parts,
)
from nanovllm.paged_kv.in_flight import PendingTokens
from nanovllm.scheduler import Sequence
from tests.engine.recorded import capture, without_a_gpu


def tokenizer_of_words() -> Any:
    """Words between blanks, without a decoder of their own, as in checkpoints made for measuring; 8 special tokens."""
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(256)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.add_special_tokens([AddedToken(f"<{i}>", special=True) for i in range(8)])
    return PreTrainedTokenizerFast(tokenizer_object=words)


@pytest.fixture(scope="module")
def tokenizers(tiny: Path) -> list[Any]:
    """A byte tokenizer, the shipped byte-level BPE, and one of words."""
    return [load_tokenizer(tiny), load_tokenizer(checkpoint_path("qwen3-tiny")), tokenizer_of_words()]


def detokenizer_of(tokenizer: Any, short_context: bool) -> Detokenizer:
    if not short_context:
        return Detokenizer(decoder(tokenizer))
    decode = decoder_of_parts(tokenizer)
    assert decode is not None
    return Detokenizer(decode, CONTEXT)


def pieces_of(detokenizer: Detokenizer, ids: list[int], step: int = 1) -> list[str]:
    pieces = [detokenizer.add(ids[i : i + step]) for i in range(0, len(ids), step)]
    return [*pieces, detokenizer.finish()]


# The tokens from 256 on are special in the byte tokenizer and in that of words.
TOKENS = st.one_of(st.integers(0, 263), st.integers(256, 263), st.integers(120, 255))


@settings(max_examples=300)
@example(ids=[1, 256, 257, 258, 259, 2, 3, 4, 5, 6], step=5, which=2, short=True)  # a context of special tokens alone
@given(ids=st.lists(TOKENS, max_size=40), step=st.integers(1, 9), which=st.integers(0, 2), short=st.booleans())
def test_any_tokens(tokenizers: list[Any], ids: list[int], step: int, which: int, short: bool) -> None:
    tokenizer = tokenizers[which]
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(pieces_of(detokenizer_of(tokenizer, short), ids, step)) == whole
    at_the_end = detokenizer_of(tokenizer, short)
    assert at_the_end.add(ids[:step]) + at_the_end.finish(ids[step:]) == whole


@settings(max_examples=100)
@given(text=st.text(max_size=30), step=st.integers(1, 3), which=st.integers(0, 1), short=st.booleans())
def test_no_piece_ends_within_a_character(tokenizers: list[Any], text: str, step: int, which: int, short: bool) -> None:
    text = text.replace(REPLACEMENT, "")
    ids = tokenizers[which].encode(text, add_special_tokens=False)
    pieces = pieces_of(detokenizer_of(tokenizers[which], short), ids, step)
    assert "".join(pieces) == text
    assert REPLACEMENT not in "".join(pieces)


def test_an_emoji_comes_whole(tokenizers: list[Any]) -> None:
    ids = tokenizers[0].encode("a🙂b")  # a token a byte
    assert pieces_of(detokenizer_of(tokenizers[0], False), ids)[:6] == ["a", "", "", "", "🙂", "b"]


def test_texts_that_cannot_be_decoded_in_parts_are_left_alone(tokenizers: list[Any]) -> None:
    assert decoder_of_parts(None) is None
    tidy = tokenizer_of_words()
    assert decoder_of_parts(tidy) is not None
    tidy.clean_up_tokenization_spaces = True  # a comma takes away the blank before it
    assert decoder_of_parts(tidy) is None
    fallback = tokenizer_of_words()
    fallback.backend_tokenizer.decoder = decoders.ByteFallback()
    assert decoder_of_parts(fallback) is None

    class Shouting(PreTrainedTokenizerFast):
        def decode(self, *args: Any, **kwargs: Any) -> str:
            return str(super().decode(*args, **kwargs)).upper()

    assert decoder_of_parts(Shouting(tokenizer_object=tokenizers[1].backend_tokenizer)) is None


def completions(*lengths: int) -> list[Sequence]:
    """Sequences with a prompt of three tokens and completions of these lengths."""
    seqs = [Sequence(i, [1, 2, 3], SamplingParams(), 4, i) for i in range(len(lengths))]
    for seq, length in zip(seqs, lengths, strict=True):
        for j in range(length):
            seq.append_token(40 + (7 * seq.seq_id + j) % 26)
    return seqs


def test_only_the_rest_is_decoded_at_the_end(tokenizers: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, seqs = tokenizers[1], completions(MIN_TOKENS, MIN_TOKENS - 1, 50, 40)
    decoded: list[int] = []
    parts = decoder_of_parts

    def counting(tokenizer: Any) -> Any:
        decode = parts(tokenizer)
        return lambda ids: decoded.append(len(ids)) or decode(ids)  # type: ignore[misc,func-returns-value]

    monkeypatch.setattr(texts, "decoder_of_parts", counting)
    ahead, looks = CompletionTexts(tokenizer), iter([False, False, False, True])
    ahead.decode_ahead(seqs, lambda: next(looks))  # before it begins, and before each that is worth it
    assert decoded == [MIN_TOKENS, CONTEXT, 50, CONTEXT], "two completions, each with the context of what comes next"
    decoded.clear()
    ahead.decode_ahead(seqs, lambda: True)
    ahead.decode_ahead(seqs[:3], lambda: False)
    assert decoded == [], "nothing new, or no time"
    for seq in seqs:
        seq.append_token(45)
    rows: list[list[int]] = []
    whole = texts.decode_all
    monkeypatch.setattr(texts, "decode_all", lambda r, t: rows.extend(r) or whole(r, t))
    assert ahead.finish(seqs) == [tokenizer.decode(s.completion_token_ids, skip_special_tokens=True) for s in seqs]
    assert decoded == [CONTEXT + 1, CONTEXT + 1]
    assert rows == [seqs[1].completion_token_ids, seqs[3].completion_token_ids]
    assert ahead.finish(seqs[:1]) == [whole([seqs[0].completion_token_ids], tokenizer)[0]], "nothing is kept"


@pytest.mark.parametrize("busy", [False, True])
def test_generate_decodes_while_it_would_wait(busy: bool, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same texts, with a preemption, requests that stop and one that is cancelled; nothing of them is kept."""
    without_a_gpu(monkeypatch)
    if busy:
        monkeypatch.setattr(PendingTokens, "has_arrived", lambda pending: False)
    worked: list[int] = []
    extend = texts._Begun.extend
    monkeypatch.setattr(texts._Begun, "extend", lambda begun, seq: worked.append(seq.seq_id) or extend(begun, seq))
    prompts = [[(5 * i + j) % 256 for j in range(3 + i)] for i in range(6)]
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=60, ignore_eos=i % 2 == 0) for i in range(6)]
    with make_llm(tiny, overlap=True, num_kvcache_blocks=40, max_model_len=80, kvcache_block_size=4) as llm:
        capture(llm)
        llm.policy = cancel_at(llm, 20)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        assert sum(o.metrics.num_preemptions for o in outputs) > 0
        assert [o.finish_reason for o in outputs].count("abort") == 1
        decode = decoder(llm.tokenizer)
        assert [o.text for o in outputs] == [decode(o.token_ids) for o in outputs]
        assert set(worked) == (set(range(6)) if busy else set())
        assert not llm._texts._begun


def cancel_at(llm: LLM, at: int) -> Any:
    """A policy as the engine's own, which cancels the first request in its `at`-th step."""
    steps = iter(range(10_000))

    def policy(scheduler: Any) -> Any:
        if next(steps) == at:
            llm.abort(0)
        return scheduler.schedule()

    return policy
