"""Workloads: prompts of random token ids and fixed completion lengths, the same for the same seed."""

import random
import re
from dataclasses import dataclass

from nanovllm.bench.errors import BenchError

FIRST_ORDINARY = 3  # smaller ids are often special tokens


@dataclass(frozen=True, slots=True)
class Lengths:
    """A uniform distribution over the integers low..high; one number if they are equal."""

    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        """One length."""
        return rng.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}:{self.high}"


@dataclass(frozen=True, slots=True)
class Shape:
    """Prompt and completion lengths in tokens."""

    prompt: Lengths
    output: Lengths

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """From "512/128", or "100:1024/100:1024" for lengths drawn uniformly from a range."""
        match = re.fullmatch(r"(\d+)(?::(\d+))?/(\d+)(?::(\d+))?", text.strip())
        if match is None:
            raise BenchError(f"{text!r} is no shape: write PROMPT/OUTPUT in tokens, 512/128 or 100:1024/100:1024")
        a, b, c, d = (None if g is None else int(g) for g in match.groups())
        assert a is not None
        assert c is not None
        shape = cls(Lengths(a, a if b is None else b), Lengths(c, c if d is None else d))
        for lengths in (shape.prompt, shape.output):
            if lengths.low < 1 or lengths.high < lengths.low:
                raise BenchError(f"shape {text!r} has the lengths {lengths}: they start at 1 and must not fall")
        return shape

    @property
    def longest(self) -> int:
        """Tokens of the longest possible request."""
        return self.prompt.high + self.output.high

    def __str__(self) -> str:
        return f"{self.prompt}/{self.output}"


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that are queued at once. outputs: completion tokens of each, reached exactly (EOS is ignored)."""

    prompts: list[list[int]]
    outputs: list[int]

    def shortened(self, outputs: int) -> "Workload":
        """The same prompts with at most `outputs` completion tokens: a warm-up."""
        return Workload(self.prompts, [min(n, outputs) for n in self.outputs])

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum(map(len, self.prompts))

    @property
    def output_tokens(self) -> int:
        """Of all completions."""
        return sum(self.outputs)


def random_workload(shape: Shape, batch: int, vocab_size: int, seed: int) -> Workload:
    """`batch` requests of this shape. Token ids are uniform over the vocabulary without the first three."""
    rng = random.Random(f"{seed}/{shape}/{batch}")
    prompts = [random_ids(rng, shape.prompt.draw(rng), vocab_size) for _ in range(batch)]
    return Workload(prompts, [shape.output.draw(rng) for _ in range(batch)])


def random_ids(rng: random.Random, length: int, vocab_size: int) -> list[int]:
    """Uniform token ids."""
    return [rng.randrange(min(FIRST_ORDINARY, vocab_size - 1), vocab_size) for _ in range(length)]


def shared_prefix(batch: int, shared: int, tail: int, output: int, vocab_size: int, seed: int) -> Workload:
    """Prompts of `shared` equal tokens and `tail` tokens of their own; the first prompt is there to fill the cache."""
    rng = random.Random(f"{seed}/prefix/{batch}/{shared}/{tail}")
    common = random_ids(rng, shared, vocab_size)
    prompts = []
    for i in range(batch + 1):
        own = random_ids(rng, tail, vocab_size)
        own[0] = FIRST_ORDINARY + i % max(1, vocab_size - FIRST_ORDINARY)  # no two share more than `shared` tokens
        prompts.append(common + own)
    return Workload(prompts, [output] * (batch + 1))
