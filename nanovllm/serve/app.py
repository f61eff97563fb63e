"""The routes. Everything they do with the engine goes through `Service`."""

import asyncio
import hmac
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from nanovllm import __version__
from nanovllm.serve import openapi
from nanovllm.serve.errors import ApiError
from nanovllm.serve.protocol import Answer, Ask, parse_body
from nanovllm.serve.service import CLIENT_LEFT, Piece, Service
from nanovllm.serve.settings import ServeSettings
from nanovllm.serve.ticket import Ticket

MAX_HEADER_BYTES = 16 * 1024
BODY_SECONDS = 30


def create_app(service: Service) -> FastAPI:
    """The ASGI application; its lifespan starts and stops the engine's thread."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        yield
        await service.close()

    app = FastAPI(title="nanovllm", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_fault)
    app.add_middleware(HeaderLimit)
    _add_answers(app, service)
    _add_views(app, service)
    return app


# --- completions ----------------------------------------------------------------------------------------------------


def _add_answers(app: FastAPI, service: Service) -> None:
    guarded = [Depends(_key_check(service.settings.api_key))]

    @app.post("/v1/completions", dependencies=guarded, response_model=None, **described("completions"))
    async def completions(request: Request) -> Response:
        return await _answer(request, service, "completions")

    @app.post("/v1/chat/completions", dependencies=guarded, response_model=None, **described("chat"))
    async def chat_completions(request: Request) -> Response:
        return await _answer(request, service, "chat")


def described(kind: str) -> dict[str, Any]:
    """What OpenAPI says of a route that reads its body itself."""
    return {"responses": openapi.responses(kind), "openapi_extra": openapi.body_of(kind)}


async def _answer(request: Request, service: Service, kind: str) -> Response:
    """Read, ask, and answer as one body or as a stream. The status is sent when the first text is there."""
    try:
        ask = parse_body(await read_body(request, service.settings), kind, service.model_name)
    except ApiError as refusal:
        service.metrics.refused(refusal.status)
        raise
    ticket, num_prompt = await service.begin(ask, lambda: _until_gone(request))
    prefix = "cmpl" if kind == "completions" else "chatcmpl"
    answer = Answer(kind, f"{prefix}-{uuid.uuid4().hex}", service.created, service.model_name)
    if not ask.stream:
        return JSONResponse(await _whole(service, ticket, ask, answer, num_prompt))
    pieces = service.pieces(ticket, ask.stops)
    first = await anext(pieces)  # a refusal up to here has a status of its own
    events = _events(first, pieces, ask, answer, num_prompt)
    return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _whole(service: Service, ticket: Ticket, ask: Ask, answer: Answer, num_prompt: int) -> dict[str, Any]:
    pieces = [piece async for piece in service.pieces(ticket, ask.stops)]
    reason = pieces[-1].finish_reason or "stop"
    return answer.whole("".join(p.text for p in pieces), reason, num_prompt, sum(p.num_tokens for p in pieces))


async def _events(
    first: Piece, pieces: AsyncIterator[Piece], ask: Ask, answer: Answer, num_prompt: int
) -> AsyncIterator[bytes]:
    """Server-sent events: a chunk for each piece with text, the usage if asked for, and [DONE]."""
    num_tokens = first.num_tokens
    yield _event(answer.chunk(first.text, first.finish_reason, first=True))
    try:
        async for piece in pieces:
            num_tokens += piece.num_tokens
            if piece.text or piece.finish_reason:
                yield _event(answer.chunk(piece.text, piece.finish_reason, first=False))
    except ApiError as error:  # the status is long sent: the clients look for an error in the stream
        yield _event(error.body())
        return
    if ask.include_usage:
        yield _event(answer.usage_chunk(num_prompt, num_tokens))
    yield b"data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n".encode("utf-8", "replace")


async def _until_gone(request: Request) -> None:
    """Return when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


# --- guards ---------------------------------------------------------------------------------------------------------


class HeaderLimit:
    """Refuses a request whose headers are larger than MAX_HEADER_BYTES in all."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI call."""
        size = sum(len(name) + len(value) for name, value in scope.get("headers", ()))
        if size > MAX_HEADER_BYTES:
            refusal = ApiError(431, f"the headers have {size:,} bytes and the limit is {MAX_HEADER_BYTES:,}")
            await JSONResponse(refusal.body(), refusal.status)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


async def read_body(request: Request, settings: ServeSettings) -> bytes:
    """The body, or ApiError: 413 as soon as it is known to be too large, 408 when it does not come."""
    limit = settings.max_body_bytes
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    sentence = f"the body is larger than {limit:,} bytes: send a shorter prompt"
                    raise ApiError(413, sentence, "body_too_large")
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_SECONDS} s", "body_timeout") from None
    except ClientDisconnect:
        raise ApiError(CLIENT_LEFT, "the client left while it sent its body") from None
    return bytes(body)


def _key_check(api_key: str | None) -> Any:
    async def check(request: Request) -> None:
        given = request.headers.get("authorization", "")
        wanted = f"Bearer {api_key}".encode()
        if api_key is not None and not hmac.compare_digest(given.encode("utf-8", "replace"), wanted):
            raise ApiError(401, "this server asks for an API key: send Authorization: Bearer KEY", "invalid_api_key")

    return check


# --- looking inside -------------------------------------------------------------------------------------------------


def _add_views(app: FastAPI, service: Service) -> None:
    guarded = [Depends(_key_check(service.settings.api_key))]

    @app.get("/v1/models", dependencies=guarded, responses=openapi.refusals(401, 431))
    async def models() -> dict[str, Any]:
        model = {"id": service.model_name, "object": "model", "created": service.created, "owned_by": "nanovllm"}
        return {"object": "list", "data": [model]}

    @app.get("/health", response_model=None, responses=openapi.health())
    async def health() -> JSONResponse:
        broken = service.engine.broken
        status = "broken" if broken else "draining" if service.is_draining else "ok"
        load = service.engine.load
        body = {"status": status, "open": len(service.open), "waiting": load.waiting, "running": load.running}
        return JSONResponse(body, 200 if status == "ok" else 503)

    @app.get("/metrics", dependencies=guarded, response_class=PlainTextResponse, responses=openapi.metrics())
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


# --- errors ---------------------------------------------------------------------------------------------------------


def _on_api_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status, error.headers())


def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(ApiError(error.status_code, message).body(), error.status_code, error.headers)


def _on_fault(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse(ApiError(500, f"the server failed: {type(error).__name__}").body(), 500)
