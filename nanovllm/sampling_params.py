"""How one request's next tokens are chosen and when it ends."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from nanovllm.checks import check_bool, check_float, check_int, check_names
from nanovllm.errors import RequestError

GREEDY_BELOW = 1e-5  # a smaller temperature is taken as 0


class _KnownNames:
    """Refuses an unknown name with a sentence, where the generated `__init__` would raise a bare TypeError."""

    __slots__ = ()

    def __new__(cls, *_: Any, **given: Any) -> Self:
        check_names("sampling parameter", given, list(SamplingParams.__dataclass_fields__), RequestError)
        return super().__new__(cls)


@dataclass(frozen=True, slots=True)
class SamplingParams(_KnownNames):
    """Sampling and stopping of one request. Names and meanings are those of the wider field.

    temperature: the logits are divided by it; 0 picks the most likely token (greedy), and so does anything below 1e-5,
        which would only make the quotient overflow.
    max_tokens: completion tokens at most, at least 1.
    ignore_eos: go on after an end-of-sequence token (benchmarks do, for a fixed amount of work).
    top_k: keep only the k most likely tokens; 0 or -1 keeps all.
    top_p: keep the smallest set of tokens whose probability reaches top_p, the token that crosses included.
    seed: the same seed and prompt give the same completion, whatever else is in the batch; None draws one.
    stop_token_ids: further token ids that end the request (kept in the output, like EOS).

    Raises RequestError for a value of the wrong type or out of range, and for a name that is none of these.
    """

    temperature: float = 1.0
    max_tokens: int = 64
    ignore_eos: bool = False
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        put = object.__setattr__  # the class is frozen; only the normalised value is stored
        put(self, "temperature", check_float("temperature", self.temperature, 0.0, 1e6, RequestError))
        put(self, "max_tokens", check_int("max_tokens", self.max_tokens, 1, error=RequestError))
        check_bool("ignore_eos", self.ignore_eos, RequestError)
        put(self, "top_k", max(0, check_int("top_k", self.top_k, -1, 2**31 - 1, RequestError)))
        put(self, "top_p", check_float("top_p", self.top_p, 0.0, 1.0, RequestError, open_low=True))
        if self.seed is not None:
            put(self, "seed", check_int("seed", self.seed, 0, 2**63 - 1, RequestError))
        if isinstance(self.stop_token_ids, str) or not isinstance(self.stop_token_ids, Iterable):
            raise RequestError(f"stop_token_ids must be a list of token ids, not {self.stop_token_ids!r}")
        ids = tuple(check_int("a stop token id", t, 0, error=RequestError) for t in self.stop_token_ids)
        put(self, "stop_token_ids", ids)

    @property
    def is_greedy(self) -> bool:
        """True when the most likely token is taken and nothing is drawn."""
        return self.temperature < GREEDY_BELOW
