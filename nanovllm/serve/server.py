"""Sockets, signals and the order of shutting down; and the same server in a thread, for notebooks and tests."""

import asyncio
import socket
import threading
from collections.abc import Callable
from types import FrameType

import uvicorn

from nanovllm.engine.collector import collector_spared
from nanovllm.engine.llm import LLM
from nanovllm.errors import NanoVLLMError
from nanovllm.serve.app import MAX_HEADER_BYTES, create_app
from nanovllm.serve.service import Service
from nanovllm.serve.settings import ServeSettings

# Longer than clients keep an idle connection (httpx and OpenAI's client: 5 s): otherwise a request may be sent into a
# connection that the server is just closing.
KEEP_ALIVE_SECONDS = 30
BACKLOG = 2048  # connections that may wait to be accepted


def bind(host: str, port: int) -> socket.socket:
    """A socket that has the address and does not listen yet. Raises NanoVLLMError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off; otherwise a small event waits for 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise _not_ours(host, port, error) from None
    return sock


def listen(sock: socket.socket) -> None:
    """Let clients connect. Raises NanoVLLMError when another server, bound as early, has begun to listen meanwhile."""
    try:
        sock.listen(BACKLOG)
    except OSError as error:
        host, port = sock.getsockname()[:2]
        raise _not_ours(host, port, error) from None


def _not_ours(host: str, port: int, error: OSError) -> NanoVLLMError:
    return NanoVLLMError(f"cannot listen on {host} port {port} ({error}): choose another --host or --port")


class DrainingServer(uvicorn.Server):
    """Uvicorn's server, except that the first signal drains it; a second one ends it at once.

    While it drains it goes on listening, so that new requests are refused with a sentence.
    on_ready: called once it accepts connections.
    """

    def __init__(self, config: uvicorn.Config, service: Service, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.service = service
        self._on_ready = on_ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT."""
        if self.service.is_draining or self._loop is None:
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self.begin_drain)

    def begin_drain(self) -> None:
        """Refuse new requests from now on and exit when the running ones have finished; on the asyncio loop."""
        if self._drain is None:
            self._drain = asyncio.get_running_loop().create_task(self._drain_and_exit())

    async def _drain_and_exit(self) -> None:
        try:
            await self.service.drain()
        finally:
            self.should_exit = True


def make_server(llm: LLM, settings: ServeSettings, on_ready: Callable[[], None]) -> DrainingServer:
    """A server that is not started yet."""
    service = Service(llm, settings)
    config = uvicorn.Config(
        create_app(service),
        http="h11",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=10,
    )
    return DrainingServer(config, service, on_ready)


def serve(llm: LLM, settings: ServeSettings, sock: socket.socket, announce: Callable[[str], None]) -> None:
    """Serve on a socket of `bind` until a signal. announce: told the address once the server accepts connections.

    The garbage collector spares the engine meanwhile: a walk over all its objects would be a pause in every stream.
    """
    listen(sock)
    server = make_server(llm, settings, lambda: announce(_url(sock)))
    with collector_spared():
        server.run(sockets=[sock])


class BackgroundServer:
    """The same server in a thread of this process, on a free port unless the settings name one.

    with BackgroundServer(llm) as server:
        httpx.get(server.url + "/health")

    Leaving drains it. The engine is the thread's until then, and usable again afterwards.
    """

    def __init__(self, llm: LLM, settings: ServeSettings | None = None) -> None:
        self.settings = settings or ServeSettings(port=0)
        self._sock = bind(self.settings.host, self.settings.port)
        self.url = _url(self._sock)
        self._ready = threading.Event()
        self._server = make_server(llm, self.settings, self._ready.set)
        self.service = self._server.service
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._sock])
        finally:
            self._ready.set()

    def begin_drain(self) -> None:
        """What SIGTERM does."""
        loop = self._server._loop
        if loop is not None and self._thread.is_alive():
            loop.call_soon_threadsafe(self._server.begin_drain)

    def __enter__(self) -> "BackgroundServer":
        self._thread.start()
        self._ready.wait(30)
        if not self._thread.is_alive():
            raise NanoVLLMError("the server did not start: see its log")
        return self

    def __exit__(self, *exc: object) -> None:
        self.begin_drain()
        self._thread.join()
        self._sock.close()
        self.service.engine.llm.policy = None


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
