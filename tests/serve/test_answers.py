"""What the routes answer, over real sockets: the engine's own tokens, OpenAI's shapes, and clear refusals."""

import json
from typing import Any

import httpx
import pytest
from helpers import make_llm

from nanovllm import LLM, SamplingParams
from nanovllm.serve.server import BackgroundServer

GREEDY = {"temperature": 0, "ignore_eos": True}


def expected(tiny: Any, prompt: str, max_tokens: int) -> str:
    with make_llm(tiny) as other:
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        return other.generate([prompt], params, use_tqdm=False)[0].text


def events(client: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """The data of a stream's events; the last one is [DONE], left as text."""
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


def test_one_post_gives_one_json_body(client: httpx.Client, tiny: Any) -> None:
    answer = client.post("/v1/completions", json={"prompt": "count: 1 2", "max_tokens": 30, **GREEDY})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body["object"] == "text_completion"
    assert body["choices"][0]["text"] == expected(tiny, "count: 1 2", 30)
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 10, "completion_tokens": 30, "total_tokens": 40}


def test_a_stream_joined_is_the_same_text(client: httpx.Client, tiny: Any) -> None:
    body = {"prompt": "count: 1 2", "max_tokens": 30, **GREEDY, "stream_options": {"include_usage": True}}
    *chunks, last, done = events(client, "/v1/completions", body)
    assert done == "[DONE]"
    assert last["usage"]["completion_tokens"] == 30
    assert last["choices"] == []
    assert "".join(c["choices"][0]["text"] for c in chunks) == expected(tiny, "count: 1 2", 30)
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({c["id"] for c in chunks}) == 1
    assert len(chunks) > 5


def test_chat_goes_through_the_template(client: httpx.Client, tiny: Any) -> None:
    messages = [{"role": "user", "content": "hello"}]
    whole = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 12, **GREEDY}).json()
    text = expected(tiny, "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n", 12)
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": text}
    parts = [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]
    *chunks, _ = events(client, "/v1/chat/completions", {"messages": parts, "max_completion_tokens": 12, **GREEDY})
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == text


def test_token_ids_and_seeds(client: httpx.Client) -> None:
    body = {"prompt": [104, 101, 108], "max_tokens": 8, "temperature": 1.0, "seed": 5, "ignore_eos": True}
    first = client.post("/v1/completions", json=body).json()
    assert first["usage"]["prompt_tokens"] == 3
    assert first["choices"][0]["text"] == client.post("/v1/completions", json=body).json()["choices"][0]["text"]


def test_a_stop_string_ends_the_answer_and_is_left_out(client: httpx.Client, tiny: Any, until: Any) -> None:
    text = expected(tiny, "stop", 40)
    stop = text[6:8]
    body = {"prompt": "stop", "max_tokens": 40, "stop": [stop], **GREEDY}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["text"] == text[: text.index(stop)]
    *chunks, _ = events(client, "/v1/completions", body)
    assert "".join(c["choices"][0]["text"] for c in chunks) == choice["text"]
    until(lambda: 'nanovllm_requests_total{outcome="stop"} 2.0' in client.get("/metrics").text)
    assert "abort" not in client.get("/metrics").text


def test_text_that_is_no_unicode_gets_the_sentence_of_the_engine(client: httpx.Client) -> None:
    error = client.post("/v1/completions", content=b'{"prompt": "ab\\udcff"}').json()["error"]
    assert error["message"] == r"the prompt is not valid Unicode text: '\udcff' at position 2 is no character"


def test_models_health_and_metrics(client: httpx.Client, server: BackgroundServer) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert model["id"] == server.service.model_name
    client.post("/v1/completions", json={"prompt": "a", "model": model["id"], "max_tokens": 3, **GREEDY})
    assert client.get("/health").json()["status"] == "ok"
    text = client.get("/metrics").text
    assert 'nanovllm_requests_total{outcome="length"} 1.0' in text
    assert "nanovllm_generation_tokens_total 3.0" in text
    assert "nanovllm_kv_blocks 512.0" in text


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"prompt": "a", "max_tokens": 0}, "max_tokens must be at least 1, not 0"),
        ({"prompt": "a", "temperature": -1}, "temperature must be a number at least 0"),
        ({"prompt": "a", "temperature": "hot"}, "temperature must be a number"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": [1, 99999]}, "token id 99999 is outside the vocabulary"),
        ({"prompt": [1.5]}, "token ids must be integers"),
        ({"prompt": {"a": 1}}, "a prompt must be text or a list of token ids"),
        ({"prompt": ["a", "b"]}, "2 prompts in one request"),
        ({"prompt": "x" * 600}, "prompt of 600 tokens leaves no room"),
        ({}, "the body has no prompt"),
        ({"prompt": "a", "n": 2}, "n is not supported"),
        ({"prompt": "a", "logprobs": 5}, "logprobs is not supported"),
        ({"prompt": "a", "logprobs": 0}, "logprobs is not supported"),  # the chosen token's, and not False
        ({"prompt": "a", "messages": []}, "unknown parameter 'messages': it belongs to /v1/chat/completions"),
        ({"prompt": "a", "max_token": 5}, "did you mean 'max_tokens'?"),
        ({"prompt": "a", "stream": "yes"}, "stream must be True or False"),
        ({"prompt": "a", "stop": ["", "b"]}, 'of up to 4 texts, none of them empty, not ["", "b"]'),
        ({"prompt": "a", "stop": 3}, "stop must be a text or a list of up to 4 texts, none of them empty, not 3"),
        ({"prompt": "a", "timeout": 0}, "timeout must be a number above 0"),
        ({"prompt": "a", "stream_options": 1}, "stream_options must be an object"),
        ({"prompt": "a", "stream_options": {"include_usag": True}}, "did you mean 'include_usage'?"),
    ],
)
def test_a_wrong_request_gets_a_sentence(client: httpx.Client, body: dict[str, Any], named: str) -> None:
    for extra in ({}, {"stream": True}) if "stream" not in body else ({},):
        answer = client.post("/v1/completions", json=body | extra)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert named in error["message"]
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"text"', b"\xff\xfe", b'{"prompt": "\\ud800"}', b"[" * 100_000])
def test_a_body_that_is_no_request_is_a_400(client: httpx.Client, raw: bytes) -> None:
    answer = client.post("/v1/completions", content=raw)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "messages", [None, [], "hi", [1], [{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": [1]}]]
)
def test_wrong_messages_are_a_400(client: httpx.Client, messages: Any) -> None:
    answer = client.post("/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 400
    assert "message" in answer.json()["error"]["message"]


def test_unknown_models_and_paths_are_404_in_the_same_shape(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json={"prompt": "a", "model": "other"})
    assert answer.status_code == 404
    assert "there is no model 'other' here" in answer.json()["error"]["message"]
    assert client.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert client.get("/v1/completions").status_code == 405


def test_a_large_body_is_refused(start: Any) -> None:
    url = start(max_body_bytes=1000).url
    answer = httpx.post(f"{url}/v1/completions", json={"prompt": "x" * 2000})
    assert answer.status_code == 413
    assert "larger than 1,000 bytes" in answer.json()["error"]["message"]


def test_large_headers_are_refused(client: httpx.Client) -> None:
    answer = client.get("/health", headers={"x-long": "x" * 40_000})
    assert answer.status_code == 431
    assert "the limit is 16,384" in answer.json()["error"]["message"]


def test_the_api_key(start: Any) -> None:
    url = start(api_key="s3cret").url
    body = {"prompt": "a", "max_tokens": 2}
    for key in (None, "Bearer wrong", "s3cret", "Bearer s3cret2"):
        headers = {} if key is None else {"Authorization": key}
        for answer in (
            httpx.post(f"{url}/v1/completions", json=body, headers=headers),
            httpx.get(f"{url}/v1/models", headers=headers),
            httpx.get(f"{url}/metrics", headers=headers),
        ):
            assert answer.status_code == 401
            assert answer.json()["error"]["type"] == "authentication_error"
    good = {"Authorization": "Bearer s3cret"}
    assert httpx.post(f"{url}/v1/completions", json=body, headers=good).status_code == 200
    assert httpx.get(f"{url}/health").status_code == 200


def test_the_openai_client(server: BackgroundServer, tiny: Any) -> None:
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)
    name = client.models.list().data[0].id
    text = expected(tiny, "count: 1 2", 12)
    options = {"model": name, "max_tokens": 12, "temperature": 0, "extra_body": {"ignore_eos": True}}
    assert client.completions.create(prompt="count: 1 2", **options).choices[0].text == text
    stream = client.completions.create(prompt="count: 1 2", stream=True, **options)
    assert "".join(chunk.choices[0].text for chunk in stream) == text
    messages = [{"role": "user", "content": "hello"}]
    whole = client.chat.completions.create(messages=messages, **options).choices[0].message.content
    stream = client.chat.completions.create(messages=messages, stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole
    with pytest.raises(openai.BadRequestError, match="max_tokens must be at least 1"):
        client.completions.create(model=name, prompt="a", max_tokens=0)


def test_the_overlapped_loop_gives_the_same_text(start: Any, tiny: Any) -> None:
    with make_llm(tiny, overlap=True) as llm:
        assert isinstance(llm, LLM)
        with BackgroundServer(llm) as server:
            body = {"prompt": "count: 1 2", "max_tokens": 30, **GREEDY}
            answer = httpx.post(f"{server.url}/v1/completions", json=body).json()
            assert answer["choices"][0]["text"] == expected(tiny, "count: 1 2", 30)
        assert llm.scheduler.block_manager.num_used_blocks == 0
