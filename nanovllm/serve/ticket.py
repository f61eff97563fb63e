"""One request on its way through the server, and what the engine's thread tells it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nanovllm.engine.requests import Prompt
from nanovllm.sampling_params import SamplingParams
from nanovllm.serve.errors import ApiError


@dataclass(frozen=True, slots=True)
class Accepted:
    """The engine has queued the request. num_prompt_tokens: how long its prompt is."""

    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Token:
    """One new token."""

    token_id: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request that ran to its end. reason: "stop", "length" or "abort"."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that did not."""

    error: ApiError


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The asyncio side's own: the client left, or the deadline passed. The engine was told to cancel."""

    error: ApiError


Event = Accepted | Token | Finished | Failed | Interrupted
LastEvent = Finished | Failed


@dataclass(eq=False, slots=True)
class Ticket:
    """A request between the two sides. The asyncio side makes it; the engine's thread alone touches `request_id`.

    prompt: token ids, in the form that the client sent or that the encoder made.
    events: what the engine's thread has told so far; the last one is Finished or Failed, and comes exactly once.
    on_end: called on the asyncio side when that last event arrives.
    guards: timers and tasks that watch over the request; cancelled when it ends.
    outcome: for the metrics, where the asyncio side ends the request: "stop" at a stop string, "504" at the deadline.
    """

    prompt: Prompt
    params: SamplingParams
    on_end: Callable[["Ticket", LastEvent], None]
    events: "asyncio.Queue[Event]" = field(default_factory=asyncio.Queue)
    arrival: float = field(default_factory=time.perf_counter)
    request_id: int | None = None
    guards: list[asyncio.TimerHandle | asyncio.Task[None]] = field(default_factory=list)
    interrupted: bool = False
    outcome: str | None = None
    ended: bool = False

    def deliver(self, event: Event) -> None:
        """Hand over an event; on the asyncio side."""
        if self.ended:
            raise RuntimeError(f"a request that has ended was told {event!r}")
        if isinstance(event, Finished | Failed):
            self.ended = True
            for guard in self.guards:
                guard.cancel()
            self.on_end(self, event)
        self.events.put_nowait(event)

    async def next_events(self) -> list[Event]:
        """Wait for one event and take all that are there."""
        events = [await self.events.get()]
        while not self.events.empty():
            events.append(self.events.get_nowait())
        return events
