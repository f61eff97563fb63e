"""What the engine returns: one object a finished request, one a step."""

from dataclasses import asdict, dataclass, field
from typing import Any

from nanovllm.engine.metrics import RequestMetrics


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request. Also answers output["text"] and output["token_ids"], as nano-vLLM's dictionaries do.

    text: the completion without special tokens; empty if the engine has no tokenizer.
    token_ids: the completion, an end-of-sequence token included.
    finish_reason: "stop", "length" or "abort".
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    text: str
    token_ids: list[int]
    finish_reason: str
    metrics: RequestMetrics

    def __getitem__(self, key: str) -> Any:
        if key not in self.keys():
            raise KeyError(f"a request output has no {key!r}; it has {', '.join(self.keys())}")
        return getattr(self, key)

    def keys(self) -> list[str]:
        """The field names, so that dict(output) works."""
        return list(self.__slots__)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


@dataclass(slots=True)
class StepOutput:
    """What one step did. new_tokens: (request id, token id) for each request that got one."""

    is_prefill: bool
    num_seqs: int
    num_tokens: int
    new_tokens: list[tuple[int, int]] = field(default_factory=list)
    finished: list[RequestOutput] = field(default_factory=list)
