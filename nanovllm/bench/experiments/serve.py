"""Serving: requests arrive over time, at rates, at a concurrency or as a trace says; what do clients see?

Without rates of the user's, a closed loop first finds the capacity of this machine, and the rates are shares of it.
"""

import importlib
import random
from dataclasses import asdict, dataclass
from typing import Any

from nanovllm.bench.errors import BenchError
from nanovllm.bench.experiments.common import device_of, environment, noting_errors, pool, vocab_size
from nanovllm.bench.experiments.serve_points import point_of, run_of
from nanovllm.bench.formulas import chosen
from nanovllm.bench.load_session import Session, open_session
from nanovllm.bench.options import Options, ServeOptions
from nanovllm.bench.progress import Progress
from nanovllm.bench.record import ServeResult
from nanovllm.bench.record_serve import ServeRun
from nanovllm.bench.runner import started
from nanovllm.bench.workload import Shape, random_ids
from nanovllm.serve.load_plan import LoadPlan
from nanovllm.serve.load_report import Limits
from nanovllm.serve.settings import ServeSettings
from nanovllm.serve.trace_file import read_trace

DEFAULTS: dict[tuple[str, str], tuple[str, int, float, tuple[float, ...]]] = {
    # (device, profile): shape, max_num_seqs, seconds of arrivals, shares of the capacity
    ("cpu", "quick"): ("16:64/8:32", 16, 2.0, (0.4, 0.8, 1.2)),
    ("cpu", "short"): ("32:128/16:48", 16, 5.0, (0.3, 0.6, 0.9, 1.2)),
    ("cpu", "full"): ("32:128/16:48", 16, 15.0, (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)),
    ("cuda", "quick"): ("256:768/32:96", 64, 2.0, (0.4, 0.8, 1.2)),
    ("cuda", "short"): ("256:768/64:192", 128, 2.0, (0.4, 0.8, 1.2)),
    ("cuda", "full"): ("100:1024/100:1024", 256, 15.0, (0.2, 0.4, 0.6, 0.8, 1.0, 1.2)),
}
BURST_SHARE = 0.8  # of the capacity, where the arrival processes are compared
LIMITS = {"cpu": Limits(ttft=0.5, tpot=0.05), "cuda": Limits(ttft=0.2, tpot=0.02)}
FEWEST, MOST = 16, 4000  # requests of one run
FEW = 100  # below it a p99 is one request
CAPACITY_ROUNDS = 3  # requests for each place in the batch, in the closed loop that finds the capacity
FIGURES = ("serve_ttft", "serve_tpot", "itl", "serve_e2e", "percentile", "requests_s", "goodput", "in_time", "lateness")
ENGINE_NOTE = (
    "Without HTTP: requests went straight to the server's engine loop in this process, so admission, the starvation "
    "bound and the engine are measured; sockets, JSON and text are not."
)


@dataclass(frozen=True, slots=True)
class Load:
    """One point: an arrival process at a rate, a concurrency, or a trace."""

    name: str
    arrivals: str
    rate: float | None = None
    concurrency: int | None = None
    burstiness: float = 1.0


def run(options: Options) -> ServeResult:
    """Measure every load on one engine, `options.repeats` times each, with other arrivals in each repeat."""
    device, serve = device_of(options), options.serve
    shape_text, max_num_seqs, seconds, shares = DEFAULTS[device, options.profile]
    shape = options.shapes[0] if options.shapes else Shape.parse(shape_text)
    max_num_seqs = int(options.limits.get("max_num_seqs", max_num_seqs))
    goal = Limits(serve.ttft or LIMITS[device].ttft, serve.tpot or LIMITS[device].tpot, serve.e2e)
    result = ServeResult(experiment="serve", environment=environment(options), formulas=chosen(FIGURES))
    result.settings = options.common() | {
        "arrival": "over time, see the points; each repeat draws other gaps and prompts (seed + its number)",
        "warmup_workload": "a closed loop with max_num_seqs requests under way",
        "shape": str(shape),
        "max_num_seqs": max_num_seqs,
        "seconds_of_arrivals": seconds,
        "limits": asdict(goal),
        "max_prefill_steps": ServeSettings().max_prefill_steps,
        "max_prefill_tokens": ServeSettings().max_prefill_tokens,
    }
    with noting_errors(result, options):
        trace = None if serve.trace is None else read_trace(serve.trace)
        longest = max(shape.longest, *(a.prompt_tokens + a.completion_tokens for a in trace or []), 1)
        limits: dict[str, Any] = {"max_num_seqs": max_num_seqs, "max_model_len": longest + 1}
        block_size = int(options.limits.get("kvcache_block_size", 16 if device == "cpu" else 256))
        limits |= {"kvcache_block_size": block_size} | pool(device, max_num_seqs * -(-longest // block_size))
        transport, why = choose_transport(serve, result.environment.model.tokenizer_hash is not None)
        result.settings |= {"transport": transport, "transport_reason": why}
        result.notes += [ENGINE_NOTE] if transport == "engine" else []
        limits["skip_tokenizer_init"] = transport == "engine"
        bench = _Bench(options, shape, vocab_size(options), seconds, goal)
        with (
            started("nanovllm", options, result.engines, **limits) as llm,
            open_session(llm, transport) as session,
        ):
            bench.measure(session, result, shares, max_num_seqs)
        fewest = min(point.num_requests for point in result.points)
        if fewest < FEW:
            result.notes.append(f"With {fewest} requests a run, p99 is hardly more than the slowest of them.")
    return result


def choose_transport(serve: ServeOptions, has_tokenizer: bool) -> tuple[str, str]:
    """("http" or "engine", why). Raises BenchError when HTTP was asked for and cannot be had."""
    if serve.transport == "engine":
        return "engine", "asked for"
    broken = import_error()
    if broken is not None:
        why = f"{broken} (pip install 'nanovllm[serve]')"
    elif not has_tokenizer:
        why = "the checkpoint has no tokenizer, and a server of text needs one"
    else:
        return "http", "its packages and a tokenizer are there" if serve.transport == "auto" else "asked for"
    if serve.transport == "http":
        raise BenchError(f"no HTTP server can run here: {why}; pass --transport engine to measure without it")
    return "engine", why


def import_error() -> str | None:
    """Why the server cannot be imported: a package, or one that it needs itself, is missing. None if it can."""
    try:
        importlib.import_module("nanovllm.serve.server")
        importlib.import_module("nanovllm.serve.load")
    except ImportError as error:
        return str(error)
    return None


@dataclass(slots=True)
class _Bench:
    """What all points share."""

    options: Options
    shape: Shape
    vocab_size: int
    seconds: float
    goal: Limits

    def measure(self, session: Session, result: ServeResult, shares: tuple[float, ...], max_num_seqs: int) -> None:
        """The closed loop, then every load."""
        with Progress("serve", 1, self.options.progress) as bar:
            bar.say("closed loop")
            closed = Load("closed loop", "closed", concurrency=max_num_seqs)
            capacity = self._once(session, closed, CAPACITY_ROUNDS * max_num_seqs, "warm-up")
            answered = sum(q.status == 200 for q in capacity.requests)
            if not answered:
                raise BenchError(f"no request was answered: {capacity.requests[0].error}")
            found = answered / capacity.seconds
            result.settings["capacity_requests_s"] = found
            result.formulas |= chosen(("capacity",))
            bar.advance()
        loads = self.loads(found, shares)
        result.settings["loads"] = [load.name for load in loads]
        with Progress("serve", len(loads) * self.options.repeats, self.options.progress) as bar:
            for load in loads:
                runs = []
                for number in range(self.options.repeats):
                    bar.say(load.name)
                    runs.append(self._once(session, load, self._count(load, max_num_seqs), number))
                    bar.advance()
                point = point_of(load.name, load.arrivals, load.rate, load.concurrency, runs, self.goal)
                result.points.append(point)

    def loads(self, capacity: float, shares: tuple[float, ...]) -> list[Load]:
        """What the user asked for; else Poisson at shares of the capacity, and the other processes at one of them."""
        serve = self.options.serve
        if serve.trace is not None:
            return [Load(f"trace {serve.trace.name}", "trace")]
        if serve.rates or serve.concurrency:
            given = [self._at_rate(serve.arrivals, rate, serve.burstiness) for rate in serve.rates]
            return given + [Load(f"concurrency {c}", "closed", concurrency=c) for c in serve.concurrency]
        found = [self._at_rate(serve.arrivals, _rounded(capacity * share), serve.burstiness) for share in shares]
        others = [name for name in ("fixed", "poisson", "gamma") if name != serve.arrivals]
        at = _rounded(capacity * BURST_SHARE)
        if not any(load.rate == at for load in found):
            others = ["fixed", "poisson", "gamma"]
        return found + [self._at_rate(name, at, serve.burstiness) for name in others]

    def _at_rate(self, arrivals: str, rate: float, burstiness: float) -> Load:
        shown = f"gamma {burstiness:g}" if arrivals == "gamma" else arrivals
        return Load(f"{shown}, {rate:g} requests/s", arrivals, rate, burstiness=burstiness)

    def _count(self, load: Load, max_num_seqs: int) -> int:
        """Requests of one run: as many as arrive in the seconds, or a few rounds at a concurrency."""
        wanted = 4 * load.concurrency if load.concurrency else round((load.rate or 0) * self.seconds)
        return min(MOST, max(FEWEST, wanted))

    def _once(self, session: Session, load: Load, count: int, number: int | str) -> ServeRun:
        """One run, with prompts and gaps of its own."""
        options, seed = self.options, f"{self.options.seed}/{load.name}/{number}"
        rng = random.Random(seed)
        times = None
        if load.arrivals == "trace":
            assert options.serve.trace is not None
            trace = read_trace(options.serve.trace)
            times, lengths = [a.time for a in trace], [(a.prompt_tokens, a.completion_tokens) for a in trace]
        else:
            lengths = [(self.shape.prompt.draw(rng), self.shape.output.draw(rng)) for _ in range(count)]
        plan = LoadPlan(
            prompts=[random_ids(rng, prompt, self.vocab_size) for prompt, _ in lengths],
            body={"temperature": options.temperature, "ignore_eos": True, "seed": options.seed},
            rate=load.rate,
            concurrency=load.concurrency,
            arrivals=load.arrivals if load.rate else "poisson",
            burstiness=load.burstiness,
            seed=rng.randrange(2**31),
            limits=self.goal,
            times=times,
            outputs=[output for _, output in lengths],
        )
        return run_of(session.run(plan))


def _rounded(rate: float) -> float:
    """Two significant digits: a rate that can be named."""
    return float(f"{rate:.2g}")
