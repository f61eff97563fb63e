"""Measure exact answers on held-out prompts.

    python -m training.evaluate nanovllm/assets/qwen3-tiny --n 64 --dtype float32

An answer counts when every token of it, the end mark included, is the model's first choice given the right tokens
before it. That is the case exactly when greedy decoding gives the answer, and needs one forward pass instead of one a
token. `--generate` decodes a few prompts a task for real as well (stories can only be judged so).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from nanovllm.assets import tasks
from training.tokenizer import END_OF_TEXT, IM_END, IM_START

BANDS: tuple[tuple[int, int], ...] = ((14, 256), (257, 512), (513, 1024), (1025, 1500), (1501, 1900))
Logits = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """A tokenised example: `start` is the index of the first answer token in `ids`."""

    ids: list[int]
    start: int


def banded_recall(low: int, high: int, n: int, seed: int) -> list[tasks.Example]:
    """`n` held-out recall examples whose fact ends `low` to `high` tokens before the end of the prompt."""
    rng = random.Random(f"band-{low}-{high}-{seed}")
    found: list[tasks.Example] = []
    while len(found) < n:
        gap = rng.randint(low, high)
        one = tasks.recall(rng, tokens=rng.randint(min(gap + 40, 1949), 1950), gap=gap)
        if one.gap is not None and low <= one.gap <= high and tasks.held_out(one.key):
            found.append(one)
    return found


def suite(n: int, seed: int) -> dict[str, list[tasks.Example]]:
    """Up to `n` different held-out examples of every exact task; recall by bands of distance in tokens."""
    groups = {name: tasks.distinct(name, n, seed) for name, task in tasks.TASKS.items() if task.exact}
    del groups["recall"]
    for low, high in BANDS:
        groups[f"recall {low}-{high}"] = banded_recall(low, high, n, seed)
    return groups


def case(tokenizer: Tokenizer, example: tasks.Example, chat: bool) -> Case:
    """Tokenise an example in its plain or its chat form, as an engine does: the prompt on its own."""
    prompt, answer = example.prompt, example.answer + END_OF_TEXT
    if chat:
        prompt = f"{IM_START}user\n{example.question}{IM_END}\n{IM_START}assistant\n"
        answer = example.reply + IM_END
    head = tokenizer.encode(prompt, add_special_tokens=False).ids
    return Case(head + tokenizer.encode(answer, add_special_tokens=False).ids, len(head))


@torch.no_grad()
def right(logits: Logits, cases: Sequence[Case], device: str, rows: int) -> list[bool]:
    """For each case whether greedy decoding gives the answer; `logits` maps [B, T] ids to [B, T, vocab]."""
    order = sorted(range(len(cases)), key=lambda i: len(cases[i].ids))
    verdict = [False] * len(cases)
    for at in range(0, len(order), rows):
        batch = order[at : at + rows]
        width = max(len(cases[i].ids) for i in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        for row, i in enumerate(batch):
            ids[row, : len(cases[i].ids)] = torch.tensor(cases[i].ids)
        best = logits(ids.to(device)).argmax(-1).cpu()
        for row, i in enumerate(batch):
            start, end = cases[i].start, len(cases[i].ids)
            verdict[i] = bool((best[row, start - 1 : end - 1] == ids[row, start:end]).all())
    return verdict


def suite_cases(tokenizer_file: str, n: int, seed: int) -> dict[str, list[Case]]:
    """The tokenised suite: each group in its plain and in its chat form."""
    tokenizer = Tokenizer.from_file(tokenizer_file)
    found: dict[str, list[Case]] = {}
    for name, group in suite(n, seed).items():
        for chat in (False, True):
            found[f"{name}{' (chat)' if chat else ''}"] = [case(tokenizer, one, chat) for one in group]
    return found


def measure(logits: Logits, cases: dict[str, list[Case]], device: str = "cpu", rows: int = 8) -> dict[str, float]:
    """Share of exact answers of each group."""
    return {name: sum(right(logits, group, device, rows)) / len(group) for name, group in cases.items()}


def generate(folder: Path, dtype: torch.dtype, n: int, seed: int) -> dict[str, float]:
    """Decode `n` prompts a task greedily through transformers and judge the texts, stories included."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    result: dict[str, float] = {}
    for name, task in tasks.TASKS.items():
        good = 0
        for one in tasks.examples(name, n, seed):
            ids = tokenizer(one.prompt, return_tensors="pt").input_ids
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=400)
            good += task.correct(one, tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True))
        result[name] = good / n
    return result


def main() -> None:
    """Print the accuracies of a saved checkpoint as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--n", type=int, default=64, help="prompts a task, form and band")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--generate", type=int, default=0, help="prompts a task to decode for real")
    args = parser.parse_args()
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, args.dtype)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=dtype).eval().to(args.device)
    cases = suite_cases(str(args.folder / "tokenizer.json"), args.n, args.seed)
    report: dict[str, object] = {"dtype": args.dtype, "n": args.n, "seed": args.seed}
    report["exact"] = measure(lambda ids: model(ids).logits, cases, args.device)
    if args.generate:
        report["generated"] = generate(args.folder, dtype, args.generate, args.seed)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
