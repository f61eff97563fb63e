"""One example of a task, and the split of all examples into a training and a held-out side."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

Split = Literal["held_out", "train", "any"]
HELD_OUT_SHARE = 1 / 16


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt with its certain answer, in a plain and in a chat form.

    `key` is the text whose hash decides the split (the prompt; for recall the passage of facts, for count the first
    number). `gap` is set for recall alone: the planned number of tokens between the end of the asked fact and the
    end of the prompt.
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


def held_out(key: str) -> bool:
    """Whether a text lies on the held-out side (one in sixteen does, by its hash)."""
    digest = hashlib.blake2s(key.encode("utf-8"), digest_size=4).digest()
    return int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**32
