"""OpenAI's bodies: a request becomes an `Ask`, or an ApiError that says what is wrong; an answer becomes JSON."""

import json
from dataclasses import dataclass
from typing import Any

from nanovllm.checks import check_bool, check_float, check_names, nearest
from nanovllm.engine.requests import Prompt
from nanovllm.errors import RequestError
from nanovllm.sampling_params import SamplingParams
from nanovllm.serve.errors import ApiError

ChatMessages = list[dict[str, str]]
DEFAULT_MAX_TOKENS = {"completions": 16, "chat": 256}
_SAMPLING = ("temperature", "top_p", "top_k", "seed", "ignore_eos", "stop_token_ids")
_OURS = {"model", "stream", "stream_options", "stop", "timeout", "max_tokens", *_SAMPLING}
_OWN = {"completions": {"prompt"}, "chat": {"messages", "max_completion_tokens"}}
_IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
# What the engine does not do, with the value that asks for nothing.
_NEUTRAL: dict[str, Any] = {
    "n": 1,
    "best_of": 1,
    "echo": False,
    "logprobs": False,
    "top_logprobs": 0,
    "suffix": "",
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": {},
    "tools": [],
    "tool_choice": "none",
    "functions": [],
    "response_format": {"type": "text"},
    "modalities": ["text"],
}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client wants. Exactly one of prompt and messages is set. timeout: seconds, None for the server's."""

    prompt: Prompt | None
    messages: ChatMessages | None
    params: SamplingParams
    stream: bool
    include_usage: bool
    stops: tuple[str, ...]
    timeout: float | None


def parse_body(raw: bytes, kind: str, model_name: str) -> Ask:
    """Read the body of a request of `kind` ("completions" or "chat"). Raises ApiError 400 or 404."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", "invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, f"the body must be a JSON object, not a {type(body).__name__}", "invalid_json")
    body = {name: value for name, value in body.items() if value is not None}
    try:
        return _ask(body, kind, model_name)
    except RequestError as refusal:
        raise ApiError(400, str(refusal), "invalid_value") from None


def _ask(body: dict[str, Any], kind: str, model_name: str) -> Ask:
    _check_names(body, kind)
    model = body.get("model", model_name)
    if model != model_name:
        raise ApiError(404, f"there is no model {model!r} here; this server has {model_name!r}", "model_not_found")
    sampling = {name: body[name] for name in _SAMPLING if name in body}
    limit = body.get("max_completion_tokens", body.get("max_tokens", DEFAULT_MAX_TOKENS[kind]))
    timeout = body.get("timeout")
    if timeout is not None:
        timeout = check_float("timeout", timeout, 0.0, 86400.0, RequestError, open_low=True)
    return Ask(
        prompt=_prompt(body) if kind == "completions" else None,
        messages=_messages(body) if kind == "chat" else None,
        params=SamplingParams(max_tokens=limit, **sampling),
        stream=check_bool("stream", body.get("stream", False), RequestError),
        include_usage=_include_usage(body.get("stream_options", {})),
        stops=_stops(body.get("stop", ())),
        timeout=timeout,
    )


def _include_usage(options: Any) -> bool:
    """What stream_options asks for. OpenAI's include_obfuscation is accepted: there is nothing to pad here."""
    if not isinstance(options, dict):
        raise RequestError(f"stream_options must be an object, not {type(options).__name__}")
    check_names("stream option", options, ("include_usage", "include_obfuscation"), RequestError)
    return check_bool("include_usage", options.get("include_usage", False), RequestError)


def _check_names(body: dict[str, Any], kind: str) -> None:
    """Refuse what is not known, and what is known and not done: to ignore it would give another answer than asked."""
    known = _OURS | _IGNORED | _OWN[kind]
    for name, value in body.items():
        if name in _NEUTRAL:
            # 0 == False in Python, and logprobs: 0 asks for log-probabilities.
            if value != _NEUTRAL[name] or isinstance(value, bool) != isinstance(_NEUTRAL[name], bool):
                told = json.dumps(_NEUTRAL[name])
                raise ApiError(400, f"{name} is not supported: leave it out (or send {told})", "unsupported", name)
        elif name not in known:
            hint = _hint(name, sorted(known))
            raise ApiError(400, f"unknown parameter {name[:80]!r}: {hint}", "unknown_parameter", name[:80])


def _hint(name: str, known: list[str]) -> str:
    for kind, route in (("completions", "/v1/completions"), ("chat", "/v1/chat/completions")):
        if name in ("prompt", "messages") and name in _OWN[kind]:
            return f"it belongs to {route}"
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else f"the parameters are {', '.join(known)}"


def _prompt(body: dict[str, Any]) -> Prompt:
    if "prompt" not in body:
        raise ApiError(400, "the body has no prompt: send text or a list of token ids", "missing", "prompt")
    prompt = body["prompt"]
    if isinstance(prompt, list) and any(isinstance(item, str | list) for item in prompt):
        if len(prompt) != 1:
            raise ApiError(400, f"{len(prompt)} prompts in one request: send one request each", "unsupported", "prompt")
        prompt = prompt[0]
    if not isinstance(prompt, str | list):
        raise RequestError(f"a prompt must be text or a list of token ids, not {type(prompt).__name__}")
    return prompt


def _messages(body: dict[str, Any]) -> ChatMessages:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        example = 'messages must be a list such as [{"role": "user", "content": "Hello"}]'
        raise ApiError(400, example, "missing", "messages")
    return [_message(message) for message in messages]


def _message(message: Any) -> dict[str, str]:
    """Role and content as text; content may come as a list of text parts."""
    if isinstance(message, dict) and isinstance(message.get("role"), str):
        content = message.get("content")
        if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
            content = "".join(part["text"] for part in content)
        if isinstance(content, str):
            return {"role": message["role"], "content": content}
    raise RequestError(f'a message needs "role" and "content", both text, which {str(message)[:80]} lacks')


def _stops(value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else value
    if not isinstance(stops, list | tuple) or len(stops) > 4 or not all(isinstance(s, str) and s for s in stops):
        told = json.dumps(value)[:80]
        raise RequestError(f"stop must be a text or a list of up to 4 texts, none of them empty, not {told}")
    return tuple(stops)


@dataclass(frozen=True, slots=True)
class Answer:
    """Writes the JSON of one answer, whole or in chunks."""

    kind: str
    answer_id: str
    created: int
    model: str

    def whole(self, text: str, reason: str, num_prompt: int, num_completion: int) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        message = {"role": "assistant", "content": text}
        content = {"text": text} if self.kind == "completions" else {"message": message}
        name = "text_completion" if self.kind == "completions" else "chat.completion"
        return self._body(name, content, reason) | {"usage": usage(num_prompt, num_completion)}

    def chunk(self, text: str, reason: str | None, first: bool) -> dict[str, Any]:
        """One event of a stream."""
        if self.kind == "completions":
            return self._body("text_completion", {"text": text}, reason)
        delta = ({"role": "assistant"} if first else {}) | ({"content": text} if text or first else {})
        return self._body("chat.completion.chunk", {"delta": delta}, reason)

    def usage_chunk(self, num_prompt: int, num_completion: int) -> dict[str, Any]:
        """The last event of a stream whose client asked for the usage."""
        name = "text_completion" if self.kind == "completions" else "chat.completion.chunk"
        return self._body(name, {}, None) | {"choices": [], "usage": usage(num_prompt, num_completion)}

    def _body(self, name: str, content: dict[str, Any], reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, **content, "finish_reason": reason, "logprobs": None}
        return {
            "id": self.answer_id,
            "object": name,
            "created": self.created,
            "model": self.model,
            "choices": [choice],
        }


def usage(num_prompt: int, num_completion: int) -> dict[str, int]:
    """OpenAI's token counts."""
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
    }
