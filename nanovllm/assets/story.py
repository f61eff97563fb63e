"""The story task: rhymed couplets, certain in form only."""

from __future__ import annotations

import random

from nanovllm.assets import words
from nanovllm.assets.example import Example


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
