"""The bodies as OpenAPI describes them: what `protocol.py` reads and what `Answer` and `ApiError` write.

The server reads bodies itself (one sentence for each mistake), so the schema is written here and not derived.
"""

from typing import Any

_NUMBER, _BOOLEAN, _TEXT = {"type": "number"}, {"type": "boolean"}, {"type": "string"}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _integer(low: int, high: int | None = None) -> dict[str, Any]:
    return {"type": "integer", "minimum": low} | ({} if high is None else {"maximum": high})


_COMMON: dict[str, Any] = {
    "model": _TEXT,
    "max_tokens": _integer(1),
    "temperature": _NUMBER | {"minimum": 0},
    "top_p": _NUMBER | {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": _integer(1),
    "seed": _integer(0),
    "stop": {"anyOf": [_TEXT | {"minLength": 1}, {"type": "array", "items": _TEXT | {"minLength": 1}, "maxItems": 4}]},
    "stream": _BOOLEAN,
    "stream_options": {"type": "object", "properties": {"include_usage": _BOOLEAN}},
    "ignore_eos": _BOOLEAN,
    "stop_token_ids": {"type": "array", "items": _integer(0)},
    "timeout": _NUMBER | {"exclusiveMinimum": 0, "maximum": 86400},
    "user": _TEXT,
}
_TOKENS = {"type": "array", "items": _integer(0), "minItems": 1}
_PROMPT = {"anyOf": [_TEXT, _TOKENS, {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": 1}]}
_PART = {"type": "object", "properties": {"type": {"const": "text"}, "text": _TEXT}, "required": ["type", "text"]}
_MESSAGE = {
    "type": "object",
    "properties": {"role": _TEXT, "content": {"anyOf": [_TEXT, {"type": "array", "items": _PART}]}},
    "required": ["role", "content"],
}
_OWN: dict[str, dict[str, Any]] = {
    "completions": {"prompt": _PROMPT},
    "chat": {"messages": {"type": "array", "items": _MESSAGE, "minItems": 1}, "max_completion_tokens": _integer(1)},
}
_USAGE = {
    "type": "object",
    "properties": {name: _integer(0) for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
}
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"message": _TEXT, "type": _TEXT, "param": _nullable(_TEXT), "code": _nullable(_TEXT)},
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_EVENT = {"type": "object", "properties": {"data": _TEXT}, "required": ["data"]}  # of server-sent events
REFUSALS = {
    400: "a wrong, unknown or unsupported parameter; a prompt that is empty or can never fit",
    401: "no or a wrong API key",
    404: "another model",
    408: "the body did not arrive in time",
    413: "the body is too large",
    429: "too many requests run or wait",
    431: "the headers are too large",
    503: "shutting down, or the engine cannot go on",
    504: "the deadline passed",
}


def body_of(kind: str) -> dict[str, Any]:
    """The requestBody of a route; kind: "completions" or "chat"."""
    own = _OWN[kind]
    properties = {name: _nullable(schema) for name, schema in _COMMON.items()} | own
    needed = [next(iter(own))]
    schema = {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def responses(kind: str) -> dict[int | str, dict[str, Any]]:
    """What a route answers: the whole answer or a stream of events, and every refusal."""
    content = {"text": _TEXT} if kind == "completions" else {"message": {"type": "object"}}
    choice = {"type": "object", "properties": content | {"finish_reason": _TEXT}, "required": ["finish_reason"]}
    names = ("id", "object", "model")
    whole = {
        "type": "object",
        "properties": dict.fromkeys(names, _TEXT)
        | {"created": _integer(0), "choices": {"type": "array", "items": choice}, "usage": _USAGE},
        "required": [*names, "created", "choices", "usage"],
    }
    answer = {"application/json": {"schema": whole}, "text/event-stream": {"schema": _EVENT}}
    return {200: {"description": "the answer", "content": answer}} | refusals(*REFUSALS)


def health() -> dict[int | str, dict[str, Any]]:
    """What /health answers."""
    content = {"application/json": {"schema": {"type": "object", "required": ["status"]}}}
    told = {200: "takes requests", 503: "draining, or broken"}
    return {code: {"description": text, "content": content} for code, text in told.items()} | refusals(431)


def metrics() -> dict[int | str, dict[str, Any]]:
    """What /metrics answers."""
    text = {"text/plain": {"schema": _TEXT}}
    return {200: {"description": "Prometheus' text format", "content": text}} | refusals(401, 431)


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Refusals of a route, all of one shape."""
    content = {"application/json": {"schema": _ERROR}}
    return {status: {"description": REFUSALS[status], "content": content} for status in statuses}
