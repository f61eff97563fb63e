"""The load generator: requests at a rate or at a concurrency, streamed and timed. The figures: load_report.py.

At a rate a request is due at its time, whether or not earlier ones were answered. At a fixed concurrency one is due
when a worker is free.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from nanovllm.checks import check_choice, check_float, check_int
from nanovllm.errors import ConfigError
from nanovllm.serve.load_report import Limits, LoadReport, RequestRecord

ARRIVALS = ("poisson", "gamma", "fixed")
Clock = Callable[[], float]


@dataclass(slots=True)
class LoadPlan:
    """What is sent. Exactly one of rate and concurrency is given.

    prompts: text or token ids, one request each. body: further fields of every request.
    rate: requests a second. arrivals: the gaps between them: "poisson" (exponential), "gamma" with shape `burstiness`
    (below 1 is burstier than Poisson, 1 is Poisson), or "fixed". concurrency: requests under way at any time.
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

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.concurrency is None):
            raise ConfigError("a load needs either a rate or a concurrency: give one of the two")
        if self.rate is not None:
            self.rate = check_float("rate", self.rate, 0.0, 1e6, ConfigError, open_low=True)
        if self.concurrency is not None:
            self.concurrency = check_int("concurrency", self.concurrency, 1, error=ConfigError)
        self.burstiness = check_float("burstiness", self.burstiness, 0.0, 1e6, ConfigError, open_low=True)
        self.timeout = check_float("timeout", self.timeout, 0.0, 86400.0, ConfigError, open_low=True)
        check_choice("arrivals", self.arrivals, ARRIVALS, ConfigError)
        if not self.prompts:
            raise ConfigError("a load needs at least one prompt")

    def arrival_times(self) -> Iterator[float]:
        """Seconds after the start at which requests are due, for a rate. The same seed gives the same times."""
        assert self.rate is not None
        rng, mean, at = random.Random(self.seed), 1.0 / self.rate, 0.0
        for _ in self.prompts:
            yield at
            if self.arrivals == "fixed":
                at += mean
            else:
                shape = 1.0 if self.arrivals == "poisson" else self.burstiness
                at += rng.gammavariate(shape, mean / shape)


async def run_load(url: str, plan: LoadPlan, api_key: str | None = None) -> LoadReport:
    """Send the plan to a server (its address without /v1) and wait for every answer."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    no_limit = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=plan.timeout, limits=no_limit) as client:
        start = time.perf_counter()

        def clock() -> float:
            return time.perf_counter() - start

        records = await (_open_loop(client, plan, clock) if plan.rate else _closed_loop(client, plan, clock))
        return LoadReport(records, clock(), plan.limits)


async def _open_loop(client: httpx.AsyncClient, plan: LoadPlan, clock: Clock) -> list[RequestRecord]:
    tasks = []
    for number, due in enumerate(plan.arrival_times()):
        await asyncio.sleep(max(0.0, due - clock()))
        tasks.append(asyncio.create_task(_send(client, plan, RequestRecord(number, due), clock)))
    return list(await asyncio.gather(*tasks))


async def _closed_loop(client: httpx.AsyncClient, plan: LoadPlan, clock: Clock) -> list[RequestRecord]:
    records: list[RequestRecord] = []
    numbers = iter(range(len(plan.prompts)))

    async def worker() -> None:
        for number in numbers:
            records.append(await _send(client, plan, RequestRecord(number, clock()), clock))

    await asyncio.gather(*(worker() for _ in range(plan.concurrency or 1)))
    return sorted(records, key=lambda record: record.number)


async def _send(client: httpx.AsyncClient, plan: LoadPlan, record: RequestRecord, clock: Clock) -> RequestRecord:
    """One streamed request; refusals and broken connections become part of the record."""
    body = {**plan.body, "prompt": plan.prompts[record.number]}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    record.sent = clock()
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code == 200:
                await _read(response, record, clock)
            else:
                record.error = (await response.aread()).decode(errors="replace")
                record.status = response.status_code
    except httpx.HTTPError as error:
        record.error = f"{type(error).__name__}: {error}"
    return record


async def _read(response: httpx.Response, record: RequestRecord, clock: Clock) -> None:
    async for line in response.aiter_lines():
        if line == "data: [DONE]":
            record.status = 200 if record.events else 0
        elif line.startswith("data: "):
            chunk = json.loads(line[6:])
            if chunk.get("choices"):
                record.events.append(clock())
            elif usage := chunk.get("usage"):
                record.num_prompt_tokens = usage["prompt_tokens"]
                record.num_completion_tokens = usage["completion_tokens"]
            else:
                record.error = json.dumps(chunk)


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m nanovllm.serve.load`: the summary as JSON on stdout."""
    parser = argparse.ArgumentParser(
        "python -m nanovllm.serve.load", description="Send load to an OpenAI-compatible server."
    )
    parser.add_argument("url", help="address without /v1")
    parser.add_argument("--requests", type=int, default=100, metavar="N")
    parser.add_argument("--prompt", default="count: 17 18 19 20", help="the prompt of every request, after its number")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N")
    parser.add_argument("--rate", type=float, metavar="PER_SECOND")
    parser.add_argument("--concurrency", type=int, metavar="N")
    parser.add_argument("--arrivals", choices=ARRIVALS, default="poisson")
    parser.add_argument("--burstiness", type=float, default=1.0, metavar="SHAPE")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    args = parser.parse_args(argv)
    prompts = [f"{number} {args.prompt}" for number in range(args.requests)]
    body = {"max_tokens": args.max_tokens, "temperature": 0, "ignore_eos": True}
    try:
        plan = LoadPlan(prompts, body, args.rate, args.concurrency, args.arrivals, args.burstiness, args.seed)
    except ConfigError as refusal:
        parser.error(str(refusal))
    report = asyncio.run(run_load(args.url, plan))
    sys.stdout.write(json.dumps(report.summary(), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
