"""What a load is, and when each of its requests is due; how a request is sent is the sender's business.

At a rate a request is due at its time, whether or not earlier ones were answered. At a fixed concurrency one is due
when a worker is free.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanovllm.checks import check_choice, check_float, check_int
from nanovllm.errors import ConfigError
from nanovllm.serve.load_report import Limits, LoadReport, RequestRecord

ARRIVALS = ("poisson", "gamma", "fixed")
Clock = Callable[[], float]
Send = Callable[[RequestRecord, Clock], Awaitable[RequestRecord]]


@dataclass(slots=True)
class LoadPlan:
    """What is sent. Exactly one of rate, concurrency and times is given.

    prompts: text or token ids, one request each. body: further fields of every request. outputs: max_tokens of each
    request, over that of the body. rate: requests a second. arrivals: the gaps between them: "poisson" (exponential),
    "gamma" with shape `burstiness` (below 1 is burstier than Poisson, 1 is Poisson), or "fixed".
    concurrency: requests under way at any time. times: seconds after the start at which each request is due.
    seed: of the gaps. timeout: seconds that one request may take.

    Raises ConfigError for a value of the wrong type or out of range.
    """

    prompts: Sequence[str | list[int]]
    body: dict[str, Any] = field(default_factory=dict)
    rate: float | None = None
    concurrency: int | None = None
    arrivals: str = "poisson"
    burstiness: float = 1.0
    seed: int = 0
    timeout: float = 600.0
    limits: Limits = field(default_factory=Limits)
    times: Sequence[float] | None = None
    outputs: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.rate, self.concurrency, self.times)) != 1:
            raise ConfigError("a load needs either a rate or a concurrency or times of arrival: give one of them")
        if self.rate is not None:
            self.rate = check_float("rate", self.rate, 0.0, 1e6, ConfigError, open_low=True)
        if self.concurrency is not None:
            self.concurrency = check_int("concurrency", self.concurrency, 1, error=ConfigError)
        self.burstiness = check_float("burstiness", self.burstiness, 0.0, 1e6, ConfigError, open_low=True)
        self.timeout = check_float("timeout", self.timeout, 0.0, 86400.0, ConfigError, open_low=True)
        check_choice("arrivals", self.arrivals, ARRIVALS, ConfigError)
        if not self.prompts:
            raise ConfigError("a load needs at least one prompt")
        for name, values in (("times", self.times), ("outputs", self.outputs)):
            if values is not None and len(values) != len(self.prompts):
                raise ConfigError(f"{len(self.prompts)} prompts and {len(values)} {name}: give one for each request")
        if self.times is not None and (list(self.times) != sorted(self.times) or self.times[0] < 0):
            raise ConfigError("times of arrival must not fall, and start at 0 or later")

    def arrival_times(self) -> Iterator[float]:
        """Seconds after the start at which requests are due, for a rate. The same seed gives the same times."""
        if self.times is not None:
            yield from self.times
            return
        assert self.rate is not None
        rng, mean, at = random.Random(self.seed), 1.0 / self.rate, 0.0
        for _ in self.prompts:
            yield at
            if self.arrivals == "fixed":
                at += mean
            else:
                shape = 1.0 if self.arrivals == "poisson" else self.burstiness
                at += rng.gammavariate(shape, mean / shape)

    def body_of(self, number: int) -> dict[str, Any]:
        """The whole body of one request."""
        own = {} if self.outputs is None else {"max_tokens": self.outputs[number]}
        return {**self.body, **own, "prompt": self.prompts[number]}


async def play(plan: LoadPlan, send: Send) -> LoadReport:
    """Send every request of the plan when it is due, and wait for every answer."""
    start = time.perf_counter()

    def clock() -> float:
        return time.perf_counter() - start

    records = await (_open_loop if plan.concurrency is None else _closed_loop)(plan, send, clock)
    return LoadReport(records, clock(), plan.limits)


async def _open_loop(plan: LoadPlan, send: Send, clock: Clock) -> list[RequestRecord]:
    tasks = []
    for number, due in enumerate(plan.arrival_times()):
        await asyncio.sleep(max(0.0, due - clock()))
        tasks.append(asyncio.ensure_future(send(RequestRecord(number, due), clock)))
    return list(await asyncio.gather(*tasks))


async def _closed_loop(plan: LoadPlan, send: Send, clock: Clock) -> list[RequestRecord]:
    records: list[RequestRecord] = []
    numbers = iter(range(len(plan.prompts)))

    async def worker() -> None:
        for number in numbers:
            records.append(await send(RequestRecord(number, clock()), clock))

    await asyncio.gather(*(worker() for _ in range(plan.concurrency or 1)))
    return sorted(records, key=lambda record: record.number)
