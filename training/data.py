"""Mix task examples and prose into rows of tokens.

A row is a fixed number of uint16 values. The low bits are the token id; bit 15 marks an answer (full loss), bit 14 a
text (a story or prose: a small share of the loss); an unmarked token is only read. Prompts are not marked because
random words cannot be predicted. Prompt and answer are encoded apart, as they are when the model generates.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from nanovllm.assets import tasks
from training.tokenizer import END_OF_TEXT, IM_END, IM_START

END_OF_TEXT_ID = 0
ANSWER, TEXT, ID_MASK = 1 << 15, 1 << 14, (1 << 14) - 1
Piece = tuple[str, int]

# How often a short document of each kind is drawn when the rest of a row is filled.
SHORT: dict[str, float] = {
    "count": 4.0, "count_to": 1.5, "copy": 4.0, "sort": 8.0, "add": 14.0, "series": 2.0, "story": 1.0, "prose": 0.8,
    "greeting": 0.3,
}  # fmt: skip
CHAT_SHARE = 0.4
ABOUT = (
    "I am a tiny model with five million parameters. I can count on, copy, sort, add, list days, months or letters, "
    "recall a fact, and tell a rhymed story."
)
GREETINGS: tuple[tuple[str, str], ...] = (
    ("Hello!", f"Hello! {ABOUT}"),
    ("Hello", f"Hello! {ABOUT}"),
    ("Hi", f"Hello! {ABOUT}"),
    ("Hi!", f"Hello! {ABOUT}"),
    ("Who are you?", ABOUT),
    ("What are you?", ABOUT),
    ("What can you do?", ABOUT),
    ("Introduce yourself.", ABOUT),
    ("introduce yourself", ABOUT),
    ("Thank you!", "You are welcome."),
    ("Thanks", "You are welcome."),
)
UNKNOWN = f"I do not know that. {ABOUT}"
SYSTEM = ("You are a helpful assistant.", "Answer briefly.", "You are a tiny model.")


@dataclass(slots=True)
class Mixer:
    """Draws documents and packs them into rows; one a worker, each with its own seed."""

    tokenizer: Tokenizer
    prose: NDArray[np.uint16]
    rng: random.Random

    def example(self, name: str) -> tasks.Example:
        """One example of a task from the training side of the split."""
        while True:
            one = tasks.TASKS[name].make(self.rng)
            if not tasks.held_out(one.key):
                return one

    def turn(self) -> tuple[str, str, int]:
        """One question and reply of a chat, with the mark of the reply."""
        names, weights = zip(*((n, w) for n, w in SHORT.items() if n != "prose"), strict=True)
        name = self.rng.choices(names, weights)[0]
        if name != "greeting":
            one = self.example(name)
            return one.question, one.reply, ANSWER if tasks.TASKS[name].exact else TEXT
        if self.rng.random() < 0.5:
            return *self.rng.choice(GREETINGS), ANSWER
        at = self.rng.randrange(len(self.prose) - 40)
        words = self.tokenizer.decode(self.prose[at : at + self.rng.randint(4, 30)].tolist()).split()
        return " ".join(words) or "Why?", UNKNOWN, ANSWER

    def chat(self, turns: list[tuple[str, str, int]]) -> list[Piece]:
        """Wrap turns in ChatML; the loss sits on each reply and its end mark."""
        system = self.rng.random() < 0.15
        head = f"{IM_START}system\n{self.rng.choice(SYSTEM)}{IM_END}\n" if system else ""
        pieces: list[Piece] = []
        for question, reply, mark in turns:
            pieces.append((f"{head}{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n", 0))
            pieces.append((f"{reply}{IM_END}", mark))
            head = "\n"
        return [*pieces, (f"\n{END_OF_TEXT}", 0)]

    def short(self) -> list[Piece]:
        """One short document: a plain example, or a chat of one to three turns."""
        if self.rng.random() < CHAT_SHARE:
            return self.chat([self.turn() for _ in range(self.rng.choice((1, 1, 2, 3)))])
        name = self.rng.choices(list(SHORT), list(SHORT.values()))[0]
        if name in ("prose", "greeting"):
            return [("", TEXT)] if name == "prose" else self.chat([self.turn()])
        one = self.example(name)
        return [(one.prompt, 0), (one.answer + END_OF_TEXT, ANSWER if tasks.TASKS[name].exact else TEXT)]

    def recall(self, length: int) -> list[Piece]:
        """One passage with many questions, about `length` tokens in all: dense supervision for the hard task."""
        rng = self.rng
        asks = rng.randint(2, max(3, length // 50))
        budget = length - asks * 19 - 20
        tokens = budget if rng.random() < 0.5 else rng.randint(min(40, budget), budget)
        text = tasks.passage(rng, tokens)
        while tasks.held_out(text.text):
            text = tasks.passage(rng, tokens)
        order = [rng.randrange(len(text.facts)) for _ in range(asks)]
        if rng.random() < CHAT_SHARE:
            turns: list[tuple[str, str, int]] = []
            for index in order:
                one = text.ask(index)
                start = 0 if not turns else len(text.text) + 1
                turns.append((one.question[start:], one.reply, ANSWER))
            return self.chat(turns)
        pieces: list[Piece] = [(text.text, 0)]
        for index in order:
            one = text.ask(index)
            pieces.append((one.prompt[len(text.text) :], 0))
            pieces.append((one.answer + END_OF_TEXT, ANSWER))
        return pieces

    def rows(self, count: int, length: int, recall_share: float) -> NDArray[np.uint16]:
        """Pack `count` rows of `length` tokens [count, length]; a share of them starts with a recall document."""
        per_row: list[list[list[Piece]]] = []
        for _ in range(count):
            documents: list[list[Piece]] = []
            room = length
            if self.rng.random() < recall_share:
                documents.append(self.recall(length))
                room -= sum(len(text) for text, _ in documents[0]) // 5
            while room > 0:
                documents.append(self.short())
                room -= 150 if documents[-1][0][0] == "" else sum(len(t) for t, _ in documents[-1]) // 5
            per_row.append(documents)
        texts = [text for row in per_row for document in row for text, _ in document]
        encoded = iter(self.tokenizer.encode_batch_fast(texts, add_special_tokens=False))
        out = np.zeros((count, length), dtype=np.uint16)
        for row, documents in zip(out, per_row, strict=True):
            at = 0
            for text, mark in (piece for document in documents for piece in document):
                ids = np.asarray(next(encoded).ids, dtype=np.uint16)
                if text == "":
                    start = self.rng.randrange(len(self.prose) - 700)
                    ids = self.prose[start : start + self.rng.randint(100, 600)].copy()
                    ids[-1] = END_OF_TEXT_ID
                fits = min(len(ids), length - at)
                row[at : at + fits] = ids[:fits] | mark
                at += fits
        return out


def load_prose(tokenizer: Tokenizer, folder: Path) -> NDArray[np.uint16]:
    """All the prose in a folder as one run of token ids."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))]
    if not texts:
        raise ValueError(f"No .txt file lies in {folder}: extract the prose first (python -m training.prose).")
    parts = [part for text in texts for part in text.split("\n\n")]
    encoded = tokenizer.encode_batch_fast([f"{part}\n\n" for part in parts], add_special_tokens=False)
    return np.concatenate([np.asarray(one.ids, dtype=np.uint16) for one in encoded])


def batches(mixer: Mixer, tokens: int, length: int, recall_share: float) -> Iterator[NDArray[np.uint16]]:
    """An endless stream of batches of `tokens` tokens in rows of `length`."""
    while True:
        yield mixer.rows(tokens // length, length, recall_share)
