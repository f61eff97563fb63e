"""The thread that owns the engine: a continuing admission loop.

Nobody else touches the engine. Requests and cancellations reach the thread through one queue, and take effect between
two steps; events go back to the asyncio loop, one hand-over a step. While nothing runs the thread sleeps on the queue.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from nanovllm.engine.llm import LLM
from nanovllm.engine.outputs import StepOutput
from nanovllm.engine.overlap import OverlappedLoop
from nanovllm.errors import NanoVLLMError, RequestError
from nanovllm.scheduler import SequenceStatus
from nanovllm.serve.errors import ApiError
from nanovllm.serve.policy import BoundedPrefill
from nanovllm.serve.ticket import Accepted, Event, Failed, Finished, Ticket, Token


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine is after a step; counters run since the start."""

    waiting: int = 0
    running: int = 0
    used_blocks: int = 0
    total_blocks: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    held_back_steps: int = 0
    blocks_given_up: int = 0


_Command = Callable[[], None]  # done by the engine's thread between two steps


class EngineLoop:
    """Runs `llm` in its own thread from `start` to `stop`. The other methods may be called from the asyncio side."""

    def __init__(self, llm: LLM, policy: BoundedPrefill | None) -> None:
        self.llm = llm
        self.policy = policy
        llm.policy = policy
        self.load = Load(total_blocks=llm.scheduler.block_manager.num_blocks)
        self.broken: str | None = None  # why the engine cannot go on
        self._inbox: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()  # None: stop
        self._tickets: dict[int, Ticket] = {}  # by request id
        self._told: list[tuple[Ticket, Event]] = []  # since the last hand-over
        self._prefills = self._decodes = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._asyncio: asyncio.AbstractEventLoop | None = None
        self._steps = OverlappedLoop(llm)

    # --- the asyncio side -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; events are delivered on the running asyncio loop."""
        self._asyncio = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, ticket: Ticket) -> None:
        """Queue a request. Its first event says whether the engine took it."""
        self._inbox.put(lambda: self._admit(ticket))

    def cancel(self, ticket: Ticket) -> None:
        """End a request between two steps; harmless if it has ended."""
        self._inbox.put(lambda: self._abort(ticket, Finished("abort")))

    def refuse_waiting(self, error: ApiError) -> None:
        """Fail every request that has not begun to run."""
        self._inbox.put(lambda: self._refuse_waiting(error))

    async def stop(self) -> None:
        """Fail what is left and end the thread."""
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    # --- the engine's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_commands():
                if not self.llm.is_finished():
                    self._step()
                self._forget_idle_step()
                self._publish()
        except Exception as error:  # a fault of the loop itself: better told to every client than a silent stop
            self.broken = f"{type(error).__name__}: {error}"
            self._fail_all(f"the server's engine loop failed: {self.broken}")
            self._publish()
            while self._take_commands():  # later requests are refused: see _admit
                self._publish()
        self._steps.cancel()
        self._fail_all("the server has stopped")
        self._publish()

    def _take_commands(self) -> bool:
        """Do what was asked for, waiting for it when nothing runs; False to stop."""
        wait = self.broken is not None or self.llm.is_finished()
        while True:
            try:
                command = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if command is None:
                return False
            command()

    def _admit(self, ticket: Ticket) -> None:
        if self.broken is not None:
            self._tell(ticket, Failed(ApiError(503, f"the engine cannot go on: {self.broken}", "engine_error")))
            return
        try:
            ticket.request_id = self.llm.add_request(ticket.prompt, ticket.params)
        except RequestError as refusal:
            self._tell(ticket, Failed(ApiError(400, str(refusal), "invalid_value")))
        except NanoVLLMError as error:  # the engine is closed
            self._tell(ticket, Failed(ApiError(503, str(error), "engine_error")))
        else:
            self._tickets[ticket.request_id] = ticket
            self._tell(ticket, Accepted(len(ticket.prompt)))

    def _abort(self, ticket: Ticket, last: Event) -> None:
        if ticket.request_id is None or self._tickets.pop(ticket.request_id, None) is None:
            return  # refused, or finished before the cancellation arrived
        self.llm.abort(ticket.request_id)
        self._tell(ticket, last)

    def _refuse_waiting(self, error: ApiError) -> None:
        sequences = self.llm.scheduler.sequences
        for request_id, ticket in list(self._tickets.items()):
            seq = sequences[request_id]
            if seq.status is SequenceStatus.WAITING and not seq.block_table and not seq.num_completion_tokens:
                self._abort(ticket, Failed(error))

    def _step(self) -> None:
        try:
            output = self._steps.step()
        except Exception as error:
            self._steps.cancel()
            self._fail_all(f"the engine failed: {type(error).__name__}: {error}")
            if self.llm.ranks.is_closed:
                self.broken = str(error)
            return
        self._count(output)
        for request_id, token_id in output.new_tokens:
            if request_id in self._tickets:
                self._tell(self._tickets[request_id], Token(token_id))
        for finished in output.finished:
            if finished.request_id in self._tickets:
                self._tell(self._tickets.pop(finished.request_id), Finished(finished.finish_reason))

    def _count(self, output: StepOutput) -> None:
        if output.is_prefill:
            self._prefills += 1
        else:
            self._decodes += 1

    def _forget_idle_step(self) -> None:
        """A step that was launched ahead for requests which are gone by now is forgotten."""
        if self.llm.is_finished():
            self._steps.cancel()

    def _fail_all(self, why: str) -> None:
        for ticket in list(self._tickets.values()):
            self._abort(ticket, Failed(ApiError(500, why, "engine_error")))

    # --- back to the asyncio side -----------------------------------------------------------------------------------

    def _tell(self, ticket: Ticket, event: Event) -> None:
        self._told.append((ticket, event))

    def _publish(self) -> None:
        """Hand over the events of this step, and how busy the engine is."""
        scheduler, held = self.llm.scheduler, self.policy.held_back if self.policy else {}
        manager = scheduler.block_manager
        self.load = Load(
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            used_blocks=manager.num_used_blocks,
            total_blocks=manager.num_blocks,
            prefill_steps=self._prefills,
            decode_steps=self._decodes,
            held_back_steps=held.get("max_prefill_steps", 0),
            blocks_given_up=held.get("half-computed prompt gave up its blocks", 0),
        )
        told, self._told = self._told, []
        if told and self._asyncio is not None:
            self._asyncio.call_soon_threadsafe(_deliver, told)


def _deliver(told: list[tuple[Ticket, Event]]) -> None:
    for ticket, event in told:
        ticket.deliver(event)
