"""What the user chose for a run, checked; an experiment fills in what was left open."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanovllm.bench.errors import BenchError
from nanovllm.bench.workload import Shape
from nanovllm.checks import check_choice, check_float, check_int

EXPERIMENTS = ("throughput", "graphs", "prefix", "pressure", "tp", "serve")
PROFILES = ("quick", "short", "full")
TRANSPORTS = ("auto", "http", "engine")
PEERS = ("transformers", "nano-vllm", "vllm")


@dataclass(slots=True)
class ServeOptions:
    """What only the serve experiment takes. Empty lists: rates found from what the engine can do here.

    rates: requests a second, arriving as `arrivals` says ("poisson", "gamma" with shape `burstiness`, or "fixed").
    concurrency: requests under way at any time. trace: a file of arrivals and lengths, see `serve.trace_file`.
    transport: "http" (a server on loopback, the client in a process of its own), "engine" (the server's engine loop
    without HTTP), or "auto": HTTP where its packages and a tokenizer are there.
    ttft, tpot, e2e: limits for goodput, seconds; None takes the default of the device for ttft and tpot.
    """

    rates: list[float] = field(default_factory=list)
    concurrency: list[int] = field(default_factory=list)
    arrivals: str = "poisson"
    burstiness: float = 0.25
    trace: Path | None = None
    transport: str = "auto"
    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def __post_init__(self) -> None:
        self.rates = [check_float("a rate", r, 0.0, 1e6, BenchError, open_low=True) for r in self.rates]
        self.concurrency = [check_int("a concurrency", c, 1, 100_000, BenchError) for c in self.concurrency]
        self.burstiness = check_float("burstiness", self.burstiness, 0.0, 1e6, BenchError, open_low=True)
        check_choice("arrivals", self.arrivals, ("poisson", "gamma", "fixed"), BenchError)
        check_choice("transport", self.transport, TRANSPORTS, BenchError)
        for name in ("ttft", "tpot", "e2e"):
            if getattr(self, name) is not None:
                limit = check_float(f"{name} limit", getattr(self, name), 0.0, 1e6, BenchError, open_low=True)
                setattr(self, name, limit)


@dataclass(slots=True)
class Options:
    """Options of every experiment. None and empty lists mean: the experiment's default for this device.

    profile: "quick" (seconds an experiment), "short" (fewer points and shorter than full), "full"; `quick=True` is the
    first. limits: keyword arguments of `LLM`, over the experiment's own. peer: another engine for throughput.
    shapes, batches: of throughput; the first shape also of the others, where it fits them. ranks: of tp.
    keep_errors: an experiment that fails notes its error in the result, with the points it has, instead of raising.
    """

    model: str = "qwen3-tiny"
    quick: bool = False
    repeats: int = 3
    warmups: int = 1
    seed: int = 0
    temperature: float = 0.6
    limits: dict[str, Any] = field(default_factory=dict)
    shapes: list[Shape] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    peer: str | None = None
    peer_path: Path | None = None
    progress: bool | None = None
    profile: str = ""
    serve: ServeOptions = field(default_factory=ServeOptions)
    keep_errors: bool = False

    def __post_init__(self) -> None:
        self.profile = self.profile or ("quick" if self.quick else "full")
        check_choice("profile", self.profile, PROFILES, BenchError)
        self.quick = self.profile == "quick"
        self.repeats = check_int("repeats", self.repeats, 1, 1000, BenchError)
        self.warmups = check_int("warmups", self.warmups, 0, 1000, BenchError)
        self.seed = check_int("seed", self.seed, 0, 2**31 - 1, BenchError)
        self.temperature = check_float("temperature", self.temperature, 0.0, 100.0, BenchError)
        self.batches = [check_int("a batch size", b, 1, 4096, BenchError) for b in self.batches]
        self.ranks = [check_int("a number of ranks", r, 1, 8, BenchError) for r in self.ranks]
        if self.peer is not None and self.peer not in PEERS:
            raise BenchError(f"no engine {self.peer!r}: the peers are {', '.join(PEERS)}")

    def refuse_limits(self, experiment: str, *names: str) -> None:
        """Raise BenchError when the user fixed what the experiment varies."""
        for name in names:
            if name in self.limits:
                flag = "--" + name.replace("_", "-")
                raise BenchError(f"{experiment} varies {name} itself: leave {flag} out")

    def common(self) -> dict[str, Any]:
        """What every result's settings begin with."""
        return {
            "profile": self.profile,
            "repeats": self.repeats,
            "warmups": self.warmups,
            "warmup_workload": "the same requests with at most 8 completion tokens",
            "seed": self.seed,
            "temperature": self.temperature,
            "arrival": "all requests are queued at once (offline)",
            "prompt_tokens": "uniform random ids of the vocabulary, without the first three",
            "stop": "EOS is ignored: every completion has exactly its tokens",
        }


def integers(text: str) -> list[int]:
    """From "1,2,4"."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BenchError(f"{text!r} is no list of integers: write them as 1,2,4") from None


def numbers(text: str) -> list[float]:
    """From "0.5,1,2"."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise BenchError(f"{text!r} is no list of numbers: write them as 0.5,1,2") from None
