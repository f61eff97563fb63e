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

import random
from collections.abc import Callable
from dataclasses import dataclass

from nanovllm.assets import words
from nanovllm.assets.example import Example, Split, held_out
from nanovllm.assets.recall import Passage, passage, recall
from nanovllm.assets.story import story, story_problem

__all__ = [
    "TASKS",
    "Example",
    "Passage",
    "Split",
    "Task",
    "distinct",
    "examples",
    "held_out",
    "passage",
    "recall",
    "story",
    "story_problem",
]

COUNT_ROW = 12


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


def _line(task: str, prompt: str, items: list[str], question: str) -> Example:
    """An example whose answer is a row of items: after a space in the plain form, bare in the chat form."""
    row = " ".join(items)
    return Example(task, prompt, f" {row}", question, row, prompt)


def count(rng: random.Random, start: int | None = None, shown: int | None = None) -> Example:
    """The first `shown` (3 to 6) numbers of a row of twelve; the answer is the rest of the row, then the end.

    `start` (0..9988) fixes the first number. Rows across 9, 99 and 999 are drawn more often than by chance. The
    split goes by the first number, whatever is shown; the ten starts below 10 are too few to split and share a key.
    """
    first = rng.choice(
        (rng.randint(0, 99), rng.randint(0, 988), rng.randint(0, 9988), 10 ** rng.randint(1, 3) - rng.randint(1, 9))
    )
    first = first if start is None else start
    shown = rng.randint(3, 6) if shown is None else shown
    numbers = [str(first + i) for i in range(COUNT_ROW)]
    head, tail = " ".join(numbers[:shown]), " ".join(numbers[shown:])
    return Example("count", f"count: {head}", f" {tail}", f"Count on:\n{head}", tail, f"count {max(first, 10)}")


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
