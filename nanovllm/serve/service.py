"""The asyncio side of the engine's thread: admission, deadlines, disconnects, draining, and text from tokens."""

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from nanovllm.engine.llm import LLM
from nanovllm.engine.texts import Detokenizer, decoder
from nanovllm.errors import ConfigError
from nanovllm.serve.encoder import Encoder
from nanovllm.serve.engine_loop import EngineLoop
from nanovllm.serve.errors import ApiError
from nanovllm.serve.metrics import ServerMetrics
from nanovllm.serve.policy import BoundedPrefill
from nanovllm.serve.protocol import Ask
from nanovllm.serve.settings import ServeSettings
from nanovllm.serve.stop_strings import StopStrings
from nanovllm.serve.ticket import Accepted, Failed, Finished, Interrupted, LastEvent, Ticket, Token

CLIENT_LEFT = 499  # no client sees it; the usual status for this in logs and metrics


@dataclass(frozen=True, slots=True)
class Piece:
    """Some more text of an answer. finish_reason is set in the last one. num_tokens: tokens behind this piece."""

    text: str
    num_tokens: int
    finish_reason: str | None


class Service:
    """Takes requests until it drains. Raises ConfigError for a checkpoint without a tokenizer."""

    def __init__(self, llm: LLM, settings: ServeSettings) -> None:
        if llm.tokenizer is None:
            raise ConfigError(f"{llm.config.model} has no tokenizer, and a server of text needs one")
        self.settings = settings
        self.model_name = settings.model_name or llm.config.model
        self.created = int(time.time())
        steps, tokens = settings.max_prefill_steps, settings.max_prefill_tokens
        self.engine = EngineLoop(llm, BoundedPrefill(steps, tokens) if steps else None)
        self.metrics = ServerMetrics(self.engine)
        self.open: set[Ticket] = set()  # accepted here and not ended
        self.is_draining = False
        self._tokenizer = copy.deepcopy(llm.tokenizer)  # for text from tokens; the engine's own belongs to its thread
        self._encoder = Encoder(llm.tokenizer)
        self._max_open = llm.config.max_num_seqs + settings.max_queue
        self._all_ended = asyncio.Event()

    # --- requests ---------------------------------------------------------------------------------------------------

    async def begin(self, ask: Ask, until_gone: Callable[[], Awaitable[None]]) -> tuple[Ticket, int]:
        """Hand a request to the engine; returns it and its prompt's length once the engine has accepted it.

        until_gone: returns when the client has left. Raises ApiError: 400 with the engine's sentence, 429 when the
        queue is full, 503 while draining.
        """
        self._check_room()
        ticket = Ticket([], ask.params, self._ended)
        seconds = min(ask.timeout or self.settings.request_timeout, self.settings.request_timeout)
        late = ApiError(504, f"the request did not finish within its deadline of {seconds:g} s", "deadline")
        loop = asyncio.get_running_loop()
        ticket.guards = [
            loop.call_later(seconds, self._interrupt, ticket, late),
            loop.create_task(self._watch(ticket, until_gone)),
        ]
        self.open.add(ticket)
        await self._submit(ticket, ask)
        match await ticket.events.get():
            case Accepted(num_prompt_tokens):
                self.metrics.prompt_tokens.inc(num_prompt_tokens)
                return ticket, num_prompt_tokens
            case Failed(error) | Interrupted(error):
                raise error
            case other:
                raise RuntimeError(f"the first event of a request was {other!r}")

    async def _submit(self, ticket: Ticket, ask: Ask) -> None:
        """Encode and hand over, unless the request was interrupted or draining began meanwhile."""
        try:
            ticket.prompt = await self._encoder.encode(ask)
        except ApiError as refusal:
            ticket.deliver(Failed(refusal))
            return
        if ticket.interrupted:
            ticket.deliver(Finished("abort"))
        elif self.is_draining:
            ticket.deliver(Failed(self._draining()))
        else:
            self.engine.submit(ticket)

    def _check_room(self) -> None:
        wait = self.settings.retry_after
        if self.engine.broken is not None:
            self.metrics.refused(503)
            raise ApiError(503, f"the engine cannot go on: {self.engine.broken}", "engine_error")
        if self.is_draining:
            self.metrics.refused(503)
            raise self._draining()
        if len(self.open) >= self._max_open:
            self.metrics.refused(429)
            raise ApiError(
                429,
                f"{len(self.open)} requests run or wait and the limit is {self._max_open}: try again later",
                "queue_full",
                retry_after=wait,
            )

    def _draining(self) -> ApiError:
        sentence = "the server is shutting down and takes no more requests: send it to another one"
        return ApiError(503, sentence, "shutting_down", retry_after=self.settings.retry_after)

    async def _watch(self, ticket: Ticket, until_gone: Callable[[], Awaitable[None]]) -> None:
        await until_gone()
        self._interrupt(ticket, ApiError(CLIENT_LEFT, "the client left"))

    def _interrupt(self, ticket: Ticket, error: ApiError) -> None:
        if not ticket.ended and not ticket.interrupted:
            ticket.interrupted = True
            if error.status != CLIENT_LEFT:  # with the last byte of a whole answer the client has "left", too
                ticket.outcome = str(error.status)
            ticket.events.put_nowait(Interrupted(error))
            self.engine.cancel(ticket)

    def _ended(self, ticket: Ticket, event: LastEvent) -> None:
        self.open.discard(ticket)
        self.metrics.ended(event, ticket.outcome)
        if not self.open:
            self._all_ended.set()

    # --- answers ----------------------------------------------------------------------------------------------------

    async def pieces(self, ticket: Ticket, stops: tuple[str, ...] = ()) -> AsyncIterator[Piece]:
        """The answer as it grows, the last piece with its finish reason. Leaving early cancels the request.

        Raises ApiError: 504 at the deadline, 500 when the engine fails, 503 for one that waited when draining began.
        """
        detokenizer, stop = Detokenizer(decoder(self._tokenizer)), StopStrings(stops)
        clock = self.metrics.clock(ticket.arrival)
        reason: str | None = None
        try:
            while reason is None:
                ids: list[int] = []
                for event in await ticket.next_events():
                    match event:
                        case Token(token_id):
                            ids.append(token_id)
                        case Finished(reason):
                            pass
                        case Failed(error) | Interrupted(error):
                            raise error
                clock.tokens(len(ids))
                text = stop.add(detokenizer.add(ids))
                if reason is not None:
                    text += stop.add(detokenizer.finish()) + stop.finish()
                if stop.found:
                    reason = ticket.outcome = "stop"
                yield Piece(text, len(ids), reason)
            clock.done()
        finally:
            if not ticket.ended:
                self.engine.cancel(ticket)

    # --- the end ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End both threads; what is still open fails."""
        self._encoder.close()
        await self.engine.stop()

    async def drain(self) -> int:
        """Refuse new and waiting requests, let running ones finish; returns how many were cut off at drain_timeout."""
        self.is_draining = True
        self.engine.refuse_waiting(self._draining())
        seconds = self.settings.drain_timeout
        try:
            async with asyncio.timeout(seconds):
                while self.open:
                    self._all_ended.clear()
                    await self._all_ended.wait()
        except TimeoutError:
            cut_off = list(self.open)
            for ticket in cut_off:
                late = f"the server shut down before the request had finished: drain_timeout is {seconds:g} s"
                self._interrupt(ticket, ApiError(503, late, "shutting_down"))
            return len(cut_off)
        return 0
