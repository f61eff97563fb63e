"""How long rank 0 waits for the others, and what it says when one of them failed."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nanovllm.engine.peer import OverdueError
from nanovllm.engine.supervisor import Supervisor, Verdict
from nanovllm.errors import CollectiveError, RankError


@dataclass(frozen=True, slots=True)
class RankTimeouts:
    """How long rank 0 waits for the others, s: in a call while starting, in a step, for a polite exit."""

    start: float = 600.0
    step: float = 60.0
    exit: float = 10.0


def run_in_thread(run: Callable[[], Any], supervisor: Supervisor, limit: float) -> Any:
    """Run something that could block for good; stop waiting once a worker has failed or `limit` seconds have passed."""
    outcome: list[Any] = []

    def target() -> None:
        try:
            outcome.append((True, run()))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=target, daemon=True, name="rank-0")
    thread.start()
    deadline = time.monotonic() + limit
    while thread.is_alive():
        if supervisor.verdict is not None:
            raise CollectiveError("a rank failed while rank 0 was waiting to meet it")
        if time.monotonic() > deadline:
            raise OverdueError(1)  # or another: the supervisor will tell
        thread.join(0.02)
    succeeded, value = outcome[0]
    if not succeeded:
        raise value
    return value


def rank_error(verdict: Verdict, errors: dict[int, dict[str, Any]], method: str) -> RankError:
    """Name the rank where it began: one that raised by itself, else the one that the supervisor saw fail first."""
    causes = sorted(rank for rank, e in errors.items() if not e["is_consequence"])
    rank = verdict.rank if verdict.rank in causes or not causes else causes[0]
    report = errors.get(rank)
    what = f"raised {report['summary']} in {report['method']}" if report else f"{verdict.what} during {method}"
    text = f"rank {rank} {what}; all ranks have been ended and this engine is closed: build a new one"
    return RankError(text, rank, report["traceback"] if report else "")
