"""Train the byte-level BPE tokenizer of `qwen3-tiny`: 2,048 entries, digits one by one, any bytes round-trip.

    python -m training.tokenizer .corpus nanovllm/assets/qwen3-tiny

Every word of the tasks is repeated until it earns a token of its own (after a space), so that the lengths planned in
`nanovllm.assets.tasks` hold; the rest of the vocabulary comes from the prose.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from nanovllm.assets import words

VOCAB_SIZE = 2048
END_OF_TEXT, IM_START, IM_END = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TASK_WORDS: tuple[str, ...] = (
    *words.NAMES, *words.ANIMALS, *words.ADJECTIVES, *words.PLACES, *words.VERBS, *words.PREPOSITIONS, *words.THINGS,
    *words.DAYS, *words.MONTHS, "The", "the", "key", "of", "is", "What", "from", "to", "days", "months", "letters",
    "->", "+", "=",
)  # fmt: skip
LINE_STARTS = (
    "The key\nQ: What is\nA:\ncount:\ncount from\ncopy:\nsort:\nadd:\nlist\nstory:\nCount on:\nCount from\n"
    "Copy this:\nSort this:\nWhat is\nList\nTell a story about\nuser\nassistant\nsystem\n"
)


def corpus(folder: Path) -> list[str]:
    """The training text: each task word many times over, the stories' lines, and a share of the prose."""
    texts = [f"{LINE_STARTS}{' '.join(('', *TASK_WORDS))}" for _ in range(3000)]
    texts += [line.replace("{", "").replace("}", "") for group in words.RHYMES for line in group] * 100
    novels = sorted(folder.glob("*.txt"))
    if not novels:
        raise ValueError(f"No .txt file lies in {folder}: extract the prose first (python -m training.prose).")
    return texts + [novel.read_text(encoding="utf-8")[:400_000] for novel in novels]


def train(texts: list[str]) -> Tokenizer:
    """Train the BPE; the 256 byte symbols are all in the alphabet, so no input is unknown."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def tokenizer_config() -> dict[str, object]:
    """tokenizer_config.json, written by hand with a class that transformers 4.51 and 5.x both know."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE,
    }


def main(prose: Path, folder: Path) -> None:
    """Train on the prose in one folder and write tokenizer.json and tokenizer_config.json to another."""
    tokenizer = train(corpus(prose))
    split = [word for word in TASK_WORDS if len(tokenizer.encode(f" {word}").ids) != 1]
    if split:
        raise ValueError(f"{len(split)} task words are not one token each: {' '.join(split)}.")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps(tokenizer_config(), indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    print(f"{tokenizer.get_vocab_size()} entries written to {folder}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit("Usage: python -m training.tokenizer PROSE_FOLDER OUTPUT_FOLDER")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
