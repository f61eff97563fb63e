"""Malformed requests over a socket, drawn from the server's own OpenAPI schema and from raw bytes: never a 5xx."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers import assert_idle, make_llm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanovllm.serve.server import BackgroundServer
from nanovllm.serve.settings import ServeSettings

schemathesis = pytest.importorskip("schemathesis")
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

RELAXED: Any = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True, "database": None}
ROUTES = ("/v1/completions", "/v1/chat/completions")


OPERATIONS = ("POST /v1/completions", "POST /v1/chat/completions", "GET /v1/models", "GET /health", "GET /metrics")


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_whatever_is_sent_the_answer_is_one_that_the_schema_knows(tiny: Path, mode: Any) -> None:
    short = {"max_model_len": 48}  # short answers, whatever is asked for
    with make_llm(tiny, **short) as llm, BackgroundServer(llm, ServeSettings(port=0)) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        operations = {found.ok().label: found.ok() for found in schema.get_all_operations()}
        assert set(operations) == set(OPERATIONS)
        sent = 0
        for name in OPERATIONS if mode is GenerationMode.POSITIVE else OPERATIONS[:2]:

            @settings(max_examples=40, **RELAXED)
            @given(case=operations[name].as_strategy(generation_mode=mode))
            def every(case: Any) -> None:
                nonlocal sent
                sent += 1
                check(case, case.call(timeout=30))

            every()
        assert sent > 60
    assert_idle(llm)


def check(case: Any, response: Any) -> None:
    """Status, content type and body are as the schema says, and no 5xx but the deadline of the request's own."""
    asked_for = isinstance(case.body, dict) and case.body.get("timeout") is not None
    checks = [status_code_conformance, content_type_conformance, response_schema_conformance]
    if not (response.status_code == 504 and asked_for):
        checks.append(not_a_server_error)
    case.validate_response(response, checks=checks)


@settings(max_examples=150, **RELAXED)
@given(body=st.binary(max_size=200), route=st.sampled_from(ROUTES))
def test_raw_bytes_are_a_400(client: httpx.Client, body: bytes, route: str) -> None:
    answer = client.post(route, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
_NAMES = ("prompt", "messages", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stream", "ignore_eos",
          "stop_token_ids", "stream_options", "model", "n", "logprobs", "tools", "max_completion_tokens")  # fmt: skip


@settings(max_examples=200, **RELAXED)
@given(fields=st.dictionaries(st.sampled_from(_NAMES), _VALUES, max_size=5), route=st.sampled_from(ROUTES))
def test_wrong_types_in_known_fields_are_answered_or_refused(
    client: httpx.Client, fields: dict[str, Any], route: str
) -> None:
    answer = client.post(route, content=json.dumps({"max_tokens": 3} | fields))  # NaN as Python writes it
    assert answer.status_code in (200, 400, 404), answer.text


def test_the_schema_describes_every_parameter_that_the_server_takes(server: BackgroundServer) -> None:
    from nanovllm.serve import protocol

    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    for route, own in zip(ROUTES, ({"prompt"}, {"messages", "max_completion_tokens"}), strict=True):
        body = paths[route]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert set(body["properties"]) == protocol._OURS | {"user"} | own
