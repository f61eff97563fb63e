"""Do independent clients measure what ours measures? The same closed loop from each, in turns, against one server.

    python scripts/client_agreement.py
    python scripts/client_agreement.py --aiperf PATH_OF_AIPERF      pip install aiperf, in an environment of its own

Clients: the load generator of nanovllm, the openai package, and NVIDIA's AIPerf where its program is given. Each run
is a process of its own with the same prompts. Each client's mean TTFT and tokens a second are put beside

- the server: what its own counters say of the very same requests. Other work on the machine slows both alike. A client
  sees a little more: the way to the handler and back;
- ours: the client's ratio to the server over that of our generator in the same round. This is what has to agree: it
  says that both clients measure the same thing, on a busy machine too;
- ours, raw: the client's figure over that of our generator. It is as sharp as the machine is quiet.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from nanovllm.engine.checkpoint import resolve_checkpoint
from nanovllm.serve.load import LoadPlan, run_load

MODEL = "qwen3-tiny"
WORDS = "amber river stone cloud paper light green seven march garden window silver".split()


def main() -> int:
    """Run the rounds and print the ratios; 1 when a client disagrees with ours."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=32, help="of each run")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--words", type=int, default=150, help="of each prompt")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--aiperf", type=Path, metavar="PROGRAM")
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--json", type=Path, metavar="FILE", help="every run")
    parser.add_argument("--worker", choices=("ours", "openai"), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--prompts", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(args)
    runs = measure(args)
    if args.json:
        args.json.write_text(json.dumps(runs, indent=1) + "\n")
    return report(runs, args.tolerance)


# --- the clients ------------------------------------------------------------------------------------------------------


def prompts_of(path: Path) -> list[str]:
    """A prompt a line, as AIPerf takes them."""
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def body_of(args: argparse.Namespace) -> dict[str, Any]:
    """What every client sends besides the prompt."""
    return {"max_tokens": args.max_tokens, "temperature": 0, "ignore_eos": True}


def work(args: argparse.Namespace) -> int:
    """A client in Python: one request first, so that its libraries are loaded, then the run between two readings."""
    run, all_prompts = (ours if args.worker == "ours" else through_openai), prompts_of(args.prompts)

    async def both() -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
        await run(args, all_prompts[:1])
        before = counters(args.url)
        return before, await run(args, all_prompts), counters(args.url)

    before, told, after = asyncio.run(both())
    sys.stdout.write(json.dumps(told | beside_server(args, told, before, after)) + "\n")
    return 0


async def ours(args: argparse.Namespace, prompts: list[str]) -> dict[str, float]:
    """The load generator of this project."""
    plan = LoadPlan(prompts, body_of(args), concurrency=args.concurrency)
    report = await run_load(args.url, plan)
    summary = report.summary()
    assert summary["completed"] == len(plan.prompts), summary["by_status"]
    return {"ttft": summary["ttft"]["mean"], "tokens_s": summary["completion_tokens_per_second"]}


async def through_openai(args: argparse.Namespace, prompts: list[str]) -> dict[str, float]:
    """The openai package, timed by hand: from the call to the first chunk that has a choice."""
    from openai import AsyncOpenAI

    todo, first, tokens = iter(prompts), [], 0
    fields = body_of(args)
    fields["extra_body"] = {"ignore_eos": fields.pop("ignore_eos")}

    async def worker(client: AsyncOpenAI) -> None:
        nonlocal tokens
        for prompt in todo:
            began, seen = time.perf_counter(), False
            stream = await client.completions.create(
                model=MODEL,
                prompt=prompt,
                stream=True,
                stream_options={"include_usage": True},
                **fields,
            )
            async for chunk in stream:
                if chunk.choices and not seen:
                    seen = True
                    first.append(time.perf_counter() - began)
                if chunk.usage is not None:
                    tokens += chunk.usage.completion_tokens

    async with AsyncOpenAI(base_url=f"{args.url}/v1", api_key="unused", timeout=600, max_retries=0) as client:
        start = time.perf_counter()
        await asyncio.gather(*(worker(client) for _ in range(args.concurrency)))
        seconds = time.perf_counter() - start
    return {"ttft": statistics.mean(first), "tokens_s": tokens / seconds}


def through_aiperf(args: argparse.Namespace, url: str, prompts: Path, folder: Path) -> dict[str, float]:
    """AIPerf as a program; its own export has its figures."""
    command = [
        str(args.aiperf), "profile", "-m", MODEL, "-u", url, "--endpoint-type", "completions", "--streaming",
        "--concurrency", str(args.concurrency), "--request-count", str(args.requests), "--input-file", str(prompts),
        "--custom-dataset-type", "single_turn", "--use-server-token-count", "--ui", "none",
        "--tokenizer", str(resolve_checkpoint(MODEL)), "--artifact-dir", str(folder),
    ]  # fmt: skip
    for name, value in body_of(args).items():
        command += ["--extra-inputs", f"{name}:{json.dumps(value)}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"AIPerf ended with code {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    told = json.loads((folder / "profile_export_aiperf.json").read_text())
    return {"ttft": told["time_to_first_token"]["avg"] / 1e3, "tokens_s": told["output_token_throughput"]["avg"]}


# --- the rounds -------------------------------------------------------------------------------------------------------


@contextmanager
def server() -> Iterator[str]:
    """`nanovllm serve` as a process; its address."""
    command = [sys.executable, "-m", "nanovllm", "serve", "--model", MODEL, "--port", "0", "--json", "--device", "cpu"]
    with subprocess.Popen([*command, "--num-kvcache-blocks", "64"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def counters(url: str) -> dict[str, float]:
    """What the server has counted so far."""
    lines = [line for line in httpx.get(f"{url}/metrics").text.splitlines() if not line.startswith("#")]
    values = dict(line.rsplit(" ", 1) for line in lines)
    ttft, e2e = "nanovllm_time_to_first_token_seconds", "nanovllm_e2e_request_latency_seconds"
    names = {"ttft_sum": f"{ttft}_sum", "ttft_count": f"{ttft}_count", "e2e_sum": f"{e2e}_sum"}
    names["tokens"] = "nanovllm_generation_tokens_total"
    return {short: float(values[name]) for short, name in names.items()}


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Every client once a round, each round beginning with another one; a warm-up before."""
    clients = ["ours", "openai", *(["aiperf"] if args.aiperf else [])]
    rng = random.Random(0)
    runs = []
    with tempfile.TemporaryDirectory() as name, server() as url:
        prompts = Path(name) / "prompts.jsonl"
        texts = [f"{i} " + " ".join(rng.choice(WORDS) for _ in range(args.words)) for i in range(args.requests)]
        prompts.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        worker(args, "ours", url, prompts)
        for number in range(args.rounds):
            for client in clients[number % len(clients) :] + clients[: number % len(clients)]:
                if client == "aiperf":
                    before = counters(url)
                    told = through_aiperf(args, url, prompts, Path(name) / f"aiperf{number}")
                    told |= beside_server(args, told, before, counters(url))
                else:
                    told = worker(args, client, url, prompts)
                runs.append({"round": number, "client": client} | told)
                sys.stderr.write(json.dumps(runs[-1]) + "\n")
    return runs


def worker(args: argparse.Namespace, client: str, url: str, prompts: Path) -> dict[str, float]:
    """One run of a client in Python, in a process of its own."""
    command = [sys.executable, __file__, "--worker", client, "--url", url, "--prompts", str(prompts)]
    command += ["--concurrency", str(args.concurrency), "--max-tokens", str(args.max_tokens)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    told: dict[str, float] = json.loads(done.stdout)
    return told


def beside_server(
    args: argparse.Namespace, told: dict[str, float], before: dict[str, float], after: dict[str, float]
) -> dict[str, float]:
    """The server's own figures of the same requests.

    Its seconds: in a closed loop the end-to-end times of all requests, laid end to end, fill `concurrency` lanes (but
    for the last moments, when a lane is already empty).
    """
    grown = {name: after[name] - before[name] for name in after}
    ttft = grown["ttft_sum"] / grown["ttft_count"]
    tokens_s = grown["tokens"] / (grown["e2e_sum"] / args.concurrency)
    found = {"server_requests": grown["ttft_count"], "server_ttft": ttft, "server_tokens_s": tokens_s}
    return found | {"ttft_ratio": told["ttft"] / ttft, "tokens_s_ratio": told["tokens_s"] / tokens_s}


# --- the report -------------------------------------------------------------------------------------------------------


def report(runs: list[dict[str, Any]], tolerance: float) -> int:
    """Print medians and ranges; 1 when a client's median beside ours is off by more than the tolerance."""
    clients = list(dict.fromkeys(run["client"] for run in runs))
    ours_in = {run["round"]: run for run in runs if run["client"] == "ours"}
    lines, off = [], False
    for client in clients:
        mine = [run for run in runs if run["client"] == client]
        for figure, unit, factor in (("ttft", "ms", 1e3), ("tokens_s", "tok/s", 1.0)):
            middle = statistics.median(factor * run[figure] for run in mine)
            server_side = _told([run[f"{figure}_ratio"] for run in mine])
            told = f"{client:<7} {figure:<8} {middle:8.1f} {unit:<6} / server {server_side}"
            if client != "ours":
                beside = [run[f"{figure}_ratio"] / ours_in[run["round"]][f"{figure}_ratio"] for run in mine]
                raw = [run[figure] / ours_in[run["round"]][figure] for run in mine]
                off |= abs(statistics.median(beside) - 1) > tolerance
                told += f"   / ours {_told(beside)}   raw {_told(raw)}"
            lines.append(told)
    verdict = f"beside ours: {'NOT all' if off else 'all'} medians within {tolerance:.0%}"
    sys.stdout.write("\n".join([*lines, verdict]) + "\n")
    return 1 if off else 0


def _told(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} - {max(ratios):.3f})"


if __name__ == "__main__":
    sys.exit(main())
