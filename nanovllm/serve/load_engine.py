"""The same load without HTTP: requests go straight to the server's engine loop, in this process.

What is measured is admission, the starvation policy and the engine under arrivals over time; sockets, JSON and text
are not. Prompts must be token ids, so a checkpoint without a tokenizer can be measured too.
"""

import asyncio
from dataclasses import fields
from typing import Any

from nanovllm import SamplingParams
from nanovllm.engine.llm import LLM
from nanovllm.serve.engine_loop import EngineLoop
from nanovllm.serve.errors import ApiError
from nanovllm.serve.load_plan import Clock, LoadPlan, play
from nanovllm.serve.load_report import LoadReport, RequestRecord
from nanovllm.serve.policy import BoundedPrefill
from nanovllm.serve.ticket import Accepted, Failed, Finished, Interrupted, LastEvent, Ticket, Token

_SAMPLING = {f.name for f in fields(SamplingParams)}


class EngineServer:
    """The server's engine loop in its thread, without a network: `async with EngineServer(llm) as server`.

    policy: the starvation bound; None is the plain scheduler.
    """

    def __init__(self, llm: LLM, policy: BoundedPrefill | None) -> None:
        self.loop = EngineLoop(llm, policy)

    async def __aenter__(self) -> "EngineServer":
        self.loop.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.loop.stop()
        self.loop.llm.policy = None

    async def run(self, plan: LoadPlan) -> LoadReport:
        """Play the plan and wait for every request."""
        return await play(plan, lambda record, clock: self._send(plan, record, clock))

    async def _send(self, plan: LoadPlan, record: RequestRecord, clock: Clock) -> RequestRecord:
        """One request; an event is what one step brought, as in a stream."""
        body = plan.body_of(record.number)
        record.sent = clock()
        ticket = Ticket(body["prompt"], _params(body), _nothing)
        self.loop.submit(ticket)
        try:
            async with asyncio.timeout(plan.timeout):
                while record.status == 0 and record.error is None:
                    _note(await ticket.next_events(), record, clock())
        except TimeoutError:
            self.loop.cancel(ticket)
            record.error = f"no whole answer within {plan.timeout:g} s"
        return record


def _params(body: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**{name: value for name, value in body.items() if name in _SAMPLING})


def _note(events: list[Any], record: RequestRecord, now: float) -> None:
    """Book the events that came together."""
    tokens = 0
    for event in events:
        match event:
            case Accepted(num_prompt_tokens):
                record.num_prompt_tokens = num_prompt_tokens
            case Token():
                tokens += 1
            case Finished(reason):
                record.status = 200 if reason != "abort" else 0
                record.error = None if reason != "abort" else "aborted"
            case Failed(error) | Interrupted(error):
                assert isinstance(error, ApiError)
                record.status, record.error = error.status, error.message
    if tokens:
        record.num_completion_tokens += tokens
        record.events.append(now)


def _nothing(ticket: Ticket, event: LastEvent) -> None:
    """Nobody counts open requests here."""
