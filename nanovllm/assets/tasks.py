"""Small tasks with certain answers: what the shipped `qwen3-tiny` checkpoint was trained to do.

Pure Python, no torch. Each task makes `Example`s from a seed; a prompt belongs for ever to the training or to the
held-out side by a hash of its text, so a test can ask for prompts that no training step has seen.

    >>> from nanovllm.assets.tasks import examples
    >>> one = examples("count", 1, split="any", start=17, shown=4)[0]
    >>> one.prompt, one.answer
    ('count: 17 18 19 20', ' 21 22 23 24 25 26 27 28')

`prompt`/`answer` is the plain form (generation ends with `<|endoftext|>`); `question`/`reply` is the same example for
a chat (the reply ends with `<|im_end|>`). The end marks are not part of the strings.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from nanovllm.assets import words

Split = Literal["held_out", "train", "any"]
HELD_OUT_SHARE = 1 / 16
COUNT_ROW = 12
ASK_TOKENS = 13  # of the question that ends a recall prompt


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with its certain answer, in a plain and in a chat form.

    `key` is the text whose hash decides the split (the prompt; for recall the passage of facts, for count
    the first number). `gap` is set for
    recall alone: the planned number of tokens between the end of the asked fact and the end of the prompt.
    """

    task: str
    prompt: str
    answer: str
    question: str
    reply: str
    key: str
    gap: int | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat form as the list that a chat template takes."""
        return [{"role": "user", "content": self.question}]


@dataclass(frozen=True, slots=True)
class Task:
    """A named kind of example: `make(rng, **options)` draws one; `exact` says that one text alone is right."""

    name: str
    what: str
    make: Callable[..., Example]
    exact: bool = True

    def correct(self, example: Example, text: str) -> bool:
        """Whether `text`, generated after `example.prompt` or as a chat reply (end mark dropped), is right."""
        if self.exact:
            return text in (example.answer, example.reply)
        return story_problem(example, text) is None


def held_out(key: str) -> bool:
    """Whether a text lies on the held-out side (one in sixteen does, by its hash)."""
    digest = hashlib.blake2s(key.encode("utf-8"), digest_size=4).digest()
    return int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**32


def sizes(text: str) -> int:
    """Planned number of tokens of a text of known words: one a word, a digit and a mark; a space before digits."""
    total = 0
    for word in text.split():
        stem = word.rstrip(".,?:")
        total += len(word) - len(stem) + (1 + len(stem) if stem.isdigit() else bool(stem))
    return total


def _line(task: str, prompt: str, items: list[str], question: str) -> Example:
    """An example whose answer is a row of items: after a space in the plain form, bare in the chat form."""
    row = " ".join(items)
    return Example(task, prompt, f" {row}", question, row, prompt)


def count(rng: random.Random, start: int | None = None, shown: int | None = None) -> Example:
    """The first `shown` (3 to 6) numbers of a row of twelve; the answer is the rest of the row, then the end.

    `start` (0..9988) fixes the first number. Rows across 9, 99 and 999 are drawn more often than by chance. The
    split goes by the first number alone, so a held-out row was never seen from its start.
    """
    first = rng.choice(
        (rng.randint(0, 99), rng.randint(0, 988), rng.randint(0, 9988), 10 ** rng.randint(1, 3) - rng.randint(1, 9))
    )
    first = first if start is None else start
    shown = rng.randint(3, 6) if shown is None else shown
    numbers = [str(first + i) for i in range(COUNT_ROW)]
    head, tail = " ".join(numbers[:shown]), " ".join(numbers[shown:])
    return Example("count", f"count: {head}", f" {tail}", f"Count on:\n{head}", tail, f"count {first}")


def count_to(rng: random.Random, start: int | None = None, length: int | None = None) -> Example:
    """A first and a last number; the answer is the whole row, 2 to 60 numbers."""
    length = rng.randint(2, 60) if length is None else length
    first = rng.choice((rng.randint(0, 99), rng.randint(0, 999 - length))) if start is None else start
    numbers = [str(first + i) for i in range(length)]
    return _line(
        "count_to",
        f"count from {numbers[0]} to {numbers[-1]} ->",
        numbers,
        f"Count from {numbers[0]} to {numbers[-1]}.",
    )


def copy(rng: random.Random, length: int | None = None) -> Example:
    """A row of 2 to 24 random words, numbers and letter strings; the answer is the same row."""
    items: list[str] = []
    kinds = rng.choice(("words", "numbers", "letters", "mixed", "mixed"))
    for _ in range(rng.randint(2, 24) if length is None else length):
        kind = rng.choice(("words", "numbers", "letters")) if kinds == "mixed" else kinds
        if kind == "words":
            items.append(rng.choice(rng.choice((words.THINGS, words.ADJECTIVES, words.PLACES, words.NAMES))))
        elif kind == "numbers":
            items.append(str(rng.randint(0, 10 ** rng.randint(1, 4) - 1)))
        else:
            items.append("".join(rng.choices(words.LETTERS, k=rng.randint(1, 6))))
    row = " ".join(items)
    return _line("copy", f"copy: {row} ->", items, f"Copy this:\n{row}")


def sort(rng: random.Random, length: int | None = None) -> Example:
    """3 to 8 different numbers below 100, or different letters; the answer is the row in order."""
    length = rng.randint(3, 8) if length is None else length
    if rng.random() < 0.7:
        items = [str(n) for n in rng.sample(range(100), length)]
        ordered = sorted(items, key=int)
    else:
        items = rng.sample(words.LETTERS, length)
        ordered = sorted(items)
    row = " ".join(items)
    return _line("sort", f"sort: {row} ->", ordered, f"Sort this:\n{row}")


def add(rng: random.Random) -> Example:
    """Two numbers of one to three digits; the answer is their sum."""
    a, b = (rng.randint(0, 10 ** rng.choice((1, 2, 3, 3)) - 1) for _ in range(2))
    return _line("add", f"add: {a} + {b} =", [str(a + b)], f"What is {a} + {b}?")


def series(rng: random.Random) -> Example:
    """Days, months or letters in order from a given one, beginning again after the last."""
    unit, ring = rng.choice((("days", words.DAYS), ("months", words.MONTHS), ("letters", words.LETTERS)))
    length, at = rng.randint(2, len(ring)), rng.randrange(len(ring))
    items = [ring[(at + i) % len(ring)] for i in range(length)]
    text = f"{length} {unit} from {items[0]}"
    return _line("series", f"list {text} ->", items, f"List {text}.")


def fill(rng: random.Random, line: str, name: str, animal: str) -> str:
    """Replace the slots of a story line or a filler sentence by random words."""
    return line.format(
        name=name,
        animal=animal,
        adj=rng.choice(words.ADJECTIVES),
        place=rng.choice(words.PLACES),
        thing=rng.choice(words.THINGS),
    )


def story(rng: random.Random, name: str | None = None, animal: str | None = None) -> Example:
    """A hero; the answer is one of many rhymed stories of four couplets. Only the form is certain."""
    name = rng.choice(words.NAMES) if name is None else name
    animal = rng.choice(words.ANIMALS) if animal is None else animal
    lines: list[str] = []
    for group in rng.sample(words.RHYMES, 4):
        first, second = rng.sample(group, 2)
        lines += [fill(rng, first, name, animal) + ",", fill(rng, second, name, animal) + "."]
    text = "\n".join([*lines, "The end."])
    prompt = f"story: {name} the {animal} ->"
    return Example("story", prompt, f"\n{text}", f"Tell a story about {name} the {animal}.", text, prompt)


def story_problem(example: Example, text: str) -> str | None:
    """What is wrong with the form of a story, in a sentence, or None: eight rhymed lines and an end."""
    lines = text.strip("\n").split("\n")
    if len(lines) != 9 or lines[-1] != "The end.":
        return f"A story has eight lines and 'The end.'; this one has {len(lines)} lines and ends {lines[-1]!r}."
    groups = [{line.split()[-1] for line in group} for group in words.RHYMES]
    for first, second in zip(lines[0:8:2], lines[1:8:2], strict=True):
        pair = {first.split()[-1].strip(",."), second.split()[-1].strip(",.")}
        if len(pair) != 2 or not any(pair <= group for group in groups):
            return f"The lines {first!r} and {second!r} do not rhyme."
    hero = " ".join(example.prompt.split()[1:4])
    if " the " in text and any(f"{n} the " in text and f"{n} the" not in hero for n in words.NAMES):
        return f"The story names another hero than {hero}."
    return None


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
    lies nearest to that many tokens before the end of the prompt; without either, any."""
    tokens = rng.randint(60, 1900) if tokens is None else tokens
    if not 30 <= tokens <= 1950:
        raise ValueError(f"A recall prompt of {tokens} tokens was asked for: choose 30 to 1950.")
    text = passage(rng, tokens - ASK_TOKENS)
    if gap is not None:
        distances = [abs(after + ASK_TOKENS - gap) for _, _, after in text.facts]
        return text.ask(distances.index(min(distances)))
    return text.ask(rng.randrange(len(text.facts)) if place is None else round(place * (len(text.facts) - 1)))


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("count", "count on to the end of a row of twelve", count),
        Task("count_to", "count from one number to another", count_to),
        Task("copy", "copy words, numbers and letter strings", copy),
        Task("recall", "recall a fact stated far back", recall),
        Task("sort", "sort numbers or letters", sort),
        Task("add", "add two numbers of up to three digits", add),
        Task("series", "list days, months or letters", series),
        Task("story", "tell a rhymed story", story, exact=False),
    )
}


def distinct(task: str, n: int, seed: int = 0, split: Split = "held_out", **options: object) -> list[Example]:
    """Up to `n` examples with different prompts: fewer where the task has no more on that side of the split."""
    if task not in TASKS:
        raise ValueError(f"There is no task {task!r}; the tasks are {', '.join(TASKS)}.")
    rng = random.Random(f"{task}-{seed}")
    found: dict[str, Example] = {}
    for _ in range(1000 + 100 * n):
        if len(found) == n:
            break
        one = TASKS[task].make(rng, **options)
        if split == "any" or held_out(one.key) == (split == "held_out"):
            found.setdefault(one.prompt, one)
    return list(found.values())


def examples(task: str, n: int, seed: int = 0, split: Split = "held_out", **options: object) -> list[Example]:
    """Draw `n` different examples of a task from one side of the split; `options` go to the task's function.

    The same arguments give the same examples on every machine. Options that leave few prompts (a fixed `start`, say)
    may leave none on the wanted side: ask for `split="any"` then.
    """
    found = distinct(task, n, seed, split, **options)
    if len(found) < n:
        raise ValueError(
            f"Only {len(found)} of {n} different {task} prompts were found on the side {split!r}: ask for fewer, "
            f"loosen the options or choose split='any'."
        )
    return found
