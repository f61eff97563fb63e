"""What the user chose for a run, checked; an experiment fills in what was left open."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanovllm.bench.errors import BenchError
from nanovllm.bench.workload import Shape
from nanovllm.checks import check_float, check_int

EXPERIMENTS = ("throughput", "graphs", "prefix", "pressure", "tp")
PEERS = ("transformers", "nano-vllm", "vllm")


@dataclass(slots=True)
class Options:
    """Options of every experiment. None and empty lists mean: the experiment's default for this device.

    limits: keyword arguments of `LLM`, over the experiment's own. peer: another engine for throughput.
    shapes, batches: of throughput; the first shape also of the others, where it fits them. ranks: of tp.
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

    def __post_init__(self) -> None:
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
            "quick": self.quick,
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
