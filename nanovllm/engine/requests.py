"""What counts as a prompt, and the sentences for what does not."""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from nanovllm.engine.texts import is_plain
from nanovllm.errors import RequestError
from nanovllm.sampling_params import SamplingParams

Prompt = str | Sequence[int]


def check_prompt(prompt: Prompt, tokenizer: Any, vocab_size: int) -> list[int]:
    """The prompt's token ids, or RequestError: empty, not integers, outside the vocabulary, text without tokenizer."""
    if isinstance(prompt, str):
        if tokenizer is None:
            raise RequestError("this engine has no tokenizer: pass the prompt as a list of token ids")
        token_ids = encode(prompt, tokenizer)
    else:
        token_ids = _integers(prompt)
    if not token_ids:
        raise RequestError("the prompt is empty: it needs at least one token to predict from")
    low, high = min(token_ids), max(token_ids)
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise RequestError(
            f"token id {wrong} is outside the vocabulary of {vocab_size:,}: ids are 0 to {vocab_size - 1:,}"
        )
    return token_ids


def check_checkpoint_limit(num_prompt_tokens: int, max_model_len: int, limit: int) -> None:
    """Raise RequestError for a prompt that no max_model_len makes room for: it fills the checkpoint's `limit`."""
    if num_prompt_tokens >= limit:
        raise RequestError(
            f"prompt of {num_prompt_tokens:,} tokens leaves no room for a completion in max_model_len "
            f"{max_model_len:,}, and the checkpoint's limit is {limit:,}: shorten it"
        )


def encode(prompt: str, tokenizer: Any) -> list[int]:
    """The token ids of a text. Raises RequestError for one that is not valid Unicode."""
    _check_unicode(prompt)
    return list(tokenizer.encode(prompt, verbose=False))  # no warning of its own on length: max_model_len decides


def encode_all(prompts: list[Prompt], tokenizer: Any) -> list[Prompt]:
    """The prompts with their texts encoded side by side, in tokenizers' own threads; those of one text as they are.

    Raises RequestError for a text that is not valid Unicode.
    """
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < 2 or not is_plain(tokenizer, "encode", "__call__"):
        return prompts
    for text in texts:
        _check_unicode(text)
    encoded = iter(tokenizer(texts, verbose=False)["input_ids"])
    return [next(encoded) if isinstance(prompt, str) else prompt for prompt in prompts]


def _check_unicode(prompt: str) -> None:
    try:
        prompt.encode()
    except UnicodeEncodeError as e:  # half a surrogate pair, as bytes that are no UTF-8 turn into
        raise RequestError(
            f"the prompt is not valid Unicode text: {prompt[e.start]!r} at position {e.start} is no character"
        ) from None


def _integers(prompt: Any) -> list[int]:
    if isinstance(prompt, bytes | dict | set) or not isinstance(prompt, Iterable):
        raise RequestError(f"a prompt must be text or a list of token ids, not {type(prompt).__name__}")
    if isinstance(prompt, list) and set(map(type, prompt)) <= {int}:  # the usual case, in a tenth of the time
        return prompt.copy()
    token_ids = []
    for position, item in enumerate(prompt):
        try:
            if isinstance(item, bool):
                raise TypeError
            token_ids.append(operator.index(item))
        except TypeError:
            raise RequestError(
                f"a prompt's token ids must be integers; number {position} is {item!r} ({type(item).__name__})"
            ) from None
    return token_ids


def check_lists(prompts: Any, sampling_params: Any) -> tuple[list[Prompt], list[SamplingParams | None]]:
    """Pair prompts with sampling parameters (one for all, or a list of the same length)."""
    if isinstance(prompts, str | bytes | dict | set) or not isinstance(prompts, Iterable):
        raise RequestError(f"prompts must be a list, not {type(prompts).__name__}: for one prompt pass [prompt]")
    prompts = list(prompts)
    if prompts and all(isinstance(p, int) for p in prompts):
        raise RequestError("prompts is a list of integers: for one prompt of token ids pass [token_ids]")
    if sampling_params is None or isinstance(sampling_params, SamplingParams):
        return prompts, [sampling_params] * len(prompts)
    if isinstance(sampling_params, str | bytes | dict | set) or not isinstance(sampling_params, Iterable):
        kind = type(sampling_params).__name__
        raise RequestError(f"sampling_params must be a SamplingParams or a list of them, not {kind}")
    params = list(sampling_params)
    if len(params) != len(prompts):
        raise RequestError(
            f"{len(prompts)} prompts came with {len(params)} sampling parameters: pass one each, or one for all"
        )
    return prompts, params
