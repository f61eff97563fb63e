"""What each request must answer: the oracle's rule applied to the request alone, with no blocks at all."""

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from nanovllm.course.oracle.trace import Request, Trace

_MASK = (1 << 64) - 1
ROOT = 0x9E3779B97F4A7C15  # stands before position 0


def kv_value(previous: int, token_id: int, position: int) -> int:
    """The fake K/V of a token: one 64-bit number that depends, as real K/V do, on everything before it.

    previous: the value at position - 1, ROOT for the first token.
    """
    mixed = previous ^ (token_id * 0xD1B54A32D192ED03 + position * 0xBF58476D1CE4E5B9 + 1)
    mixed = (mixed * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def next_token(values: list[int], vocab_size: int) -> int:
    """The fake model: the next token id from the values of all tokens so far, in order."""
    return xxhash.xxh64_intdigest(array("Q", values).tobytes()) % vocab_size


@dataclass(slots=True)
class Expected:
    """What a request must come to when nobody cancels it.

    token_ids: prompt and completion. values: the fake K/V of each of them. finish_reason: "stop" or "length".
    """

    token_ids: list[int]
    values: list[int]
    num_prompt_tokens: int
    finish_reason: str

    @property
    def completion(self) -> list[int]:
        """The tokens after the prompt."""
        return self.token_ids[self.num_prompt_tokens :]


def reference(trace: "Trace", request: "Request") -> Expected:
    """Complete `request` alone, from the rule only. Its prompt must be shorter than max_model_len."""
    tokens: list[int] = []
    values: list[int] = []
    for token_id in request.prompt:
        values.append(kv_value(values[-1] if values else ROOT, token_id, len(tokens)))
        tokens.append(token_id)
    stops = set(request.stop_token_ids) | (set() if request.ignore_eos else set(trace.eos_token_ids))
    while True:
        token_id = next_token(values, trace.vocab_size)
        values.append(kv_value(values[-1], token_id, len(tokens)))
        tokens.append(token_id)
        if token_id in stops:
            return Expected(tokens, values, len(request.prompt), "stop")
        if len(tokens) - len(request.prompt) >= request.max_tokens or len(tokens) >= trace.max_model_len:
            return Expected(tokens, values, len(request.prompt), "length")
