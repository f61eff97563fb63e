"""All ranks of one engine: rank 0 in this process, the others in processes of their own, and one way to call them all.

Whatever goes wrong in any of them ends in a `RankError` here, with every process ended and nothing left behind.
"""

import atexit
import os
import pickle
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from nanovllm.engine.control_channel import ChannelHost, Kind, Traffic
from nanovllm.engine.peer import OverdueError, PeerGoneError
from nanovllm.engine.processes import spawn_workers
from nanovllm.engine.rank_failures import RankTimeouts, rank_error, run_in_thread
from nanovllm.engine.supervisor import HostSeat, Supervisor
from nanovllm.errors import CollectiveError, NanoVLLMError

SETTLE_SECONDS = 1.0  # for workers to show that they finished a call which failed on rank 0
VERDICT_SECONDS = 5.0  # for the supervisor to see why a connection broke


class RankGroup:
    """`size` ranks that each hold one executor, made by `factory(seat, *args)`; both must be picklable.

    size 1 spawns nothing. The processes end when `close` is called, when the group is garbage collected, when the
    interpreter exits and when a rank fails; and the workers end by themselves when this process dies.
    worker_args: further arguments of the factory, for workers only.
    """

    def __init__(
        self,
        size: int,
        factory: Callable[..., Any],
        args: tuple[Any, ...] = (),
        worker_args: tuple[Any, ...] = (),
        timeouts: RankTimeouts | None = None,
    ) -> None:
        self.size = size
        self.timeouts = timeouts or RankTimeouts()
        self.local: Any = None
        self._seat = HostSeat(size)
        self._awaiting: str | None = None  # the call whose answers have not been collected
        self._answered: set[int] = set()  # the ranks that have answered it
        self._errors: dict[int, dict[str, Any]] = {}  # what workers reported, by rank
        self.is_closed = False
        if size == 1:
            self.local = factory(self._seat, *args)
            return
        create = pickle.dumps(("create", (factory, args + worker_args)))  # refused here, before a process is spawned
        self._channel = ChannelHost(size - 1, os.getpid())
        self._supervisor = Supervisor([], self._channel, self._seat)
        self._release = weakref.finalize(self, self._supervisor.release, os.getpid())
        self._release.atexit = False
        # Registered after multiprocessing's own exit hook, so it runs before that one, which would wait for a stopped
        # worker.
        atexit.register(self._release)
        with self._ended_on_error():
            self._start(create)
            self.local = factory(self._seat, *args)
            self._supervisor.on_failure = getattr(self.local, "abort", None)
            self._collect(self.timeouts.start)

    def _start(self, create: bytes) -> None:
        """Spawn the workers, wait until all have attached, and have them make their executors."""
        self._awaiting = "start"
        spawn_workers(self._channel.links, self._supervisor.processes)
        self._channel.release_links()
        self._supervisor.start()
        self._collect(self.timeouts.start)
        self._channel.unlink()
        self._post("create", create, self.timeouts.start)

    # --- calling every rank -----------------------------------------------------------------------------------------

    def every(self, method: str, *args: Any, in_thread: bool = False) -> list[Any]:
        """Call `executor.method(*args)` on every rank at the same time; the results in rank order.

        in_thread: rank 0's own part could block for good when another rank fails, so run it where it can be left.
        """
        limit = self.timeouts.start
        self._check_open()
        self._post(method, pickle.dumps((method, args)), limit)
        own = self._run_here(lambda: getattr(self.local, method)(*args), limit, in_thread)
        return [own, *self._collect(limit)]

    def step(self, message: Any, run: Callable[[], Any]) -> Any:
        """One step: `run` here, `executor.run_step(message)` on the workers, whose answers the next call collects."""
        self._check_open()
        self._post("run_step", pickle.dumps(("run_step", (message,))), self.timeouts.step)
        return self._run_here(run, self.timeouts.step)

    def here(self, wait: Callable[[], Any]) -> Any:
        """Wait on rank 0 for what an earlier `step` started, as closely watched as the step itself."""
        self._check_open()
        return self._run_here(wait, self.timeouts.step)

    @property
    def traffic(self) -> Traffic:
        """What the control channel has carried to the workers."""
        return Traffic() if self.size == 1 else self._channel.traffic

    @property
    def processes(self) -> list[Any]:
        """The worker processes, rank 1 first."""
        return [] if self.size == 1 else list(self._supervisor.processes)

    def _check_open(self) -> None:
        if self.is_closed:
            raise NanoVLLMError("the ranks of this engine have ended: build a new one")

    def _post(self, method: str, payload: bytes, limit: float) -> None:
        if self.size == 1:
            return
        self._collect(limit)
        self._awaiting, self._answered = method, set()
        with self._failures(limit):
            self._channel.post(method, payload, time.monotonic() + limit)

    def _collect(self, limit: float) -> list[Any]:
        """The workers' answers to the newest call, if they have not been collected yet."""
        if self._awaiting is None:
            return []
        with self._failures(limit):
            deadline = time.monotonic() + limit
            answers = [self._answer(rank, deadline) for rank in range(1, self.size)]
        self._awaiting = None
        return answers

    def _answer(self, rank: int, deadline: float) -> Any:
        """One worker's result. An error is noted and raised as PeerGoneError: a worker that reports one has ended."""
        message = self._channel.answer(rank, deadline)
        value: Any = pickle.loads(message.payload) if message.payload else None
        if message.kind is Kind.ERROR:
            self._errors[rank] = value
            raise PeerGoneError(rank)
        self._answered.add(rank)
        return value

    def _run_here(self, run: Callable[[], Any], limit: float, in_thread: bool = False) -> Any:
        """Rank 0's part of a call. When it fails, find out whether the ranks are still in step, and end them if not."""
        if self.size == 1:
            return run()
        self._seat.begin_call(limit, counts_whole=getattr(self.local, "waits_for_device", False))
        try:
            result = run_in_thread(run, self._supervisor, limit) if in_thread else run()
        except (CollectiveError, OverdueError) as error:
            self._fail(error, limit)
        except BaseException:
            self._seat.end_call()
            with self._ended_on_error():
                is_settled = self._is_settled()
            if not is_settled:
                self.kill()
            raise
        finally:
            self._seat.end_call()
        if self._supervisor.verdict is not None:  # on a GPU an aborted collective ends without an error
            self._fail(CollectiveError("a rank failed during this call"), limit)
        return result

    def _is_settled(self) -> bool:
        """True if every worker has finished the call that failed here and entered as many collectives as rank 0."""
        deadline = time.monotonic() + SETTLE_SECONDS
        try:
            for rank in range(1, self.size):
                self._answer(rank, deadline)
        except (PeerGoneError, OverdueError):
            return False
        self._awaiting = None
        return all(self._channel.status(rank)[1] == self._seat.collectives for rank in range(1, self.size))

    # --- failures ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _failures(self, limit: float) -> Iterator[None]:
        """End everything on an error, and turn the signs of another rank's failure into a RankError."""
        with self._ended_on_error():
            try:
                yield
            except (PeerGoneError, OverdueError) as error:
                self._fail(error, limit)

    @contextmanager
    def _ended_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.kill()
            raise

    def _fail(self, error: Exception, limit: float) -> NoReturn:
        """End everything and raise the RankError that says which rank failed and how."""
        supervisor, method = self._supervisor, self._awaiting or "a call"
        if isinstance(error, OverdueError):
            supervisor.give_up(supervisor.overdue(self._silent(), limit))
        deadline = time.monotonic() + VERDICT_SECONDS
        while supervisor.is_watching and supervisor.verdict is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if isinstance(error, PeerGoneError):
            supervisor.give_up(supervisor.dead(error.rank))
        elif supervisor.verdict is None:
            self.kill()
            raise error  # a collective failed and no rank is to blame
        supervisor.kill()
        self._silent()  # reads what the workers reported before they ended
        verdict = supervisor.verdict
        assert verdict is not None
        self.kill()
        raise rank_error(verdict, self._errors, method) from error

    def _silent(self) -> list[int]:
        """The ranks that have not answered the call under way. Notes the errors among the answers."""
        silent = []
        for rank in sorted(set(range(1, self.size)) - self._answered):
            try:
                self._answer(rank, time.monotonic())
            except OverdueError:
                silent.append(rank)
            except PeerGoneError:
                pass
        return silent or list(range(1, self.size))

    # --- ending -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ask every rank to give back its memory and end; the processes are gone afterwards. Harmless twice.

        Raises RankError, with everything gone just the same, if one of them failed or would not end.
        """
        if self.is_closed:
            return
        if self.size == 1:
            self.is_closed = True
            self.local.exit()
            return
        with self._ended_on_error():
            self._collect(self.timeouts.step)
            self._supervisor.stop_watching()
            self._post("exit", pickle.dumps(("exit", ())), self.timeouts.exit)
            self._supervisor.on_failure = None
            self.local.exit()
            self._collect(self.timeouts.exit)
            self._supervisor.wait_for_exit(time.monotonic() + self.timeouts.exit)
        self.kill()

    def kill(self) -> None:
        """End every process at once. Harmless twice."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.size > 1:
            atexit.unregister(self._release)
            self._release()
        if self.local is not None:
            with suppress(Exception):  # what led here is the error to see
                self.local.exit()
