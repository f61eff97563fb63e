"""The recall task: facts among filler sentences, and a question on one of them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from nanovllm.assets import words
from nanovllm.assets.example import Example

ASK_TOKENS = 13  # of the question that ends a recall prompt


def sizes(text: str) -> int:
    """Planned number of tokens of a text of known words: one a word, a digit and a mark; a space before digits."""
    total = 0
    for word in text.split():
        stem = word.rstrip(".,?:")
        total += len(word) - len(stem) + (1 + len(stem) if stem.isdigit() else bool(stem))
    return total


def filler(rng: random.Random) -> str:
    """One sentence that states nothing worth recalling."""
    return (
        f"The {rng.choice(words.ADJECTIVES)} {rng.choice(words.ANIMALS)} {rng.choice(words.VERBS)} "
        f"{rng.choice(words.PREPOSITIONS)} the {rng.choice(words.PLACES)}."
    )


@dataclass(frozen=True, slots=True)
class Passage:
    """Facts among filler sentences. `facts` are (name, key, tokens from its end to the passage's end)."""

    text: str
    tokens: int
    facts: tuple[tuple[str, str, int], ...]

    def ask(self, index: int) -> Example:
        """The recall example that asks for fact `index`."""
        name, key, after = self.facts[index]
        ask = f"What is the key of {name}?"
        prompt = f"{self.text}\nQ: {ask}\nA:"
        return Example("recall", prompt, f" {key}", f"{self.text}\n{ask}", key, self.text, after + ASK_TOKENS)


def passage(rng: random.Random, tokens: int, density: float | None = None) -> Passage:
    """Facts and fillers of about `tokens` tokens in all; `density` is the share of sentences that are facts."""
    density = rng.uniform(0.15, 0.9) if density is None else density
    names = rng.sample(words.NAMES, len(words.NAMES))
    sentences: list[str] = []
    facts: list[tuple[str, str, int]] = []
    total = 0
    while True:
        if names and (not facts or rng.random() < density):
            name, key = names.pop(), str(rng.randint(1000, 9999))
            sentence, fact = f"The key of {name} is {key}.", (name, key)
        else:
            sentence, fact = filler(rng), None
        size = sizes(sentence)
        if sentences and total + size > tokens:
            break
        total += size
        sentences.append(sentence)
        if fact:
            facts.append((*fact, total))
    placed = tuple((name, key, total - end) for name, key, end in facts)
    return Passage(" ".join(sentences), total, placed)


def recall(
    rng: random.Random, tokens: int | None = None, place: float | None = None, gap: int | None = None
) -> Example:
    """A passage and a question on one of its facts. `tokens` (30..1950) is the planned length of the prompt in
    tokens. Which fact is asked: `place` (0..1) counts from the first to the last one; `gap` asks the fact whose end
    lies nearest to that many tokens before the end of the prompt; without either, any.
    """
    tokens = rng.randint(60, 1900) if tokens is None else tokens
    if not 30 <= tokens <= 1950:
        raise ValueError(f"A recall prompt of {tokens} tokens was asked for: choose 30 to 1950.")
    text = passage(rng, tokens - ASK_TOKENS)
    if gap is not None:
        distances = [abs(after + ASK_TOKENS - gap) for _, _, after in text.facts]
        return text.ask(distances.index(min(distances)))
    return text.ask(rng.randrange(len(text.facts)) if place is None else round(place * (len(text.facts) - 1)))
