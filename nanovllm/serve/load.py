"""The load generator over HTTP: the requests of a plan, streamed and timed. The figures: load_report.py."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence

import httpx

from nanovllm.checks import check_int
from nanovllm.cli.main import Parser
from nanovllm.errors import ConfigError
from nanovllm.serve.command import KEY_VARIABLE
from nanovllm.serve.load_plan import ARRIVALS, Clock, LoadPlan, play
from nanovllm.serve.load_report import LoadReport, RequestRecord

__all__ = ["ARRIVALS", "LoadPlan", "main", "run_load"]


async def run_load(url: str, plan: LoadPlan, api_key: str | None = None) -> LoadReport:
    """Send the plan to a server (its address without /v1) and wait for every answer."""
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    no_limit = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=plan.timeout, limits=no_limit) as client:
        return await play(plan, lambda record, clock: _send(client, plan, record, clock))


async def _send(client: httpx.AsyncClient, plan: LoadPlan, record: RequestRecord, clock: Clock) -> RequestRecord:
    """One streamed request; refusals and broken connections become part of the record."""
    body = plan.body_of(record.number) | {"stream": True, "stream_options": {"include_usage": True}}
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
    """`python -m nanovllm.serve.load`: the summary as JSON on stdout, failures on stderr; 1 if nothing was answered."""
    parser = Parser(
        "python -m nanovllm.serve.load",
        description="Send load to an OpenAI-compatible server.",
        epilog=f"The server's API key, where it asks for one, comes from {KEY_VARIABLE}.",
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
    body = {"max_tokens": args.max_tokens, "temperature": 0, "ignore_eos": True}
    try:
        check_int("--requests", args.requests, 1, error=ConfigError)
        prompts = [f"{number} {args.prompt}" for number in range(args.requests)]
        plan = LoadPlan(prompts, body, args.rate, args.concurrency, args.arrivals, args.burstiness, args.seed)
    except ConfigError as refusal:
        parser.error(str(refusal))
    report = asyncio.run(run_load(args.url, plan, os.environ.get(KEY_VARIABLE)))
    sys.stdout.write(json.dumps(report.summary(), indent=2) + "\n")
    failed = [record for record in report.records if record.status != 200]
    if failed:
        told = failed[0].error or "the stream broke off"
        sys.stderr.write(f"{len(failed)} of {len(report.records)} requests failed, the first with: {told}\n")
    return 1 if len(failed) == len(report.records) else 0


if __name__ == "__main__":
    sys.exit(main())
