"""The shipped checkpoint: its files, its tokenizer, and right answers through transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from nanovllm.assets import checkpoint_path, tasks, words

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MEGABYTE = 10**6


@pytest.fixture(scope="module")
def folder() -> Path:
    return checkpoint_path("qwen3-tiny")


@pytest.fixture(scope="module")
def config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_unknown_checkpoint_is_refused_with_what_exists() -> None:
    with pytest.raises(ValueError, match=r"no-such-model.*qwen3-tiny"):
        checkpoint_path("no-such-model")


def test_package_is_small_and_complete(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    needed = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert needed | {"README.md", "training_record.json"} <= names
    assert sum(path.stat().st_size for path in folder.iterdir()) < 12 * MEGABYTE


def test_config_speaks_both_schemas(config: dict[str, Any]) -> None:
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100_000.0
    assert config["rope_parameters"]["rope_type"] == "default"
    assert config.get("rope_scaling", "absent") is None
    assert config["torch_dtype"] == config["dtype"] == "bfloat16"
    assert config["num_attention_heads"] > config["num_key_value_heads"] >= 4
    assert (config["head_dim"], config["max_position_embeddings"]) == (64, 2048)


def test_weights_on_disk_have_hub_names(folder: Path, config: dict[str, Any]) -> None:
    from safetensors import safe_open

    with safe_open(str(folder / "model.safetensors"), "pt") as file:
        names = set(file.keys())
        assert {file.get_tensor(name).dtype for name in names} == {torch.bfloat16}
    assert "lm_head.weight" not in names
    assert {"model.embed_tokens.weight", "model.norm.weight"} <= names
    assert len(names) == 2 + 11 * config["num_hidden_layers"]


def test_model_shape(model: Any) -> None:
    assert sum(parameter.numel() for parameter in model.parameters()) == 4_951_424
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.rope_parameters["rope_theta"] == 100_000.0


def test_generation_stops_at_both_end_marks(folder: Path, tokenizer: Any) -> None:
    eos = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert eos == tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])


@pytest.mark.parametrize(
    "text", ["", " ", "a  b\n\n\tc ", "naïve café", "日本語 🦊👩‍🚀", "x = 3.14; // \\n", "\x00\x7f\u200b"]
)
def test_tokenizer_round_trip(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_tokenizer_knows_every_byte(folder: Path) -> None:
    from tokenizers import Tokenizer

    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rng = random.Random(0)
    for _ in range(50):
        text = "".join(chr(rng.choice((rng.randrange(1, 0xD800), rng.randrange(0xE000, 0x110000)))) for _ in range(40))
        assert raw.decode(raw.encode(text).ids, skip_special_tokens=False) == text
    assert raw.get_vocab_size() == 2048
    assert [raw.token_to_id(t) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] == [0, 1, 2]


def test_digits_stand_alone(tokenizer: Any) -> None:
    assert [tokenizer.decode([i]) for i in tokenizer("4821", add_special_tokens=False).input_ids] == list("4821")


def test_words_are_single_tokens(tokenizer: Any) -> None:
    known = (*words.NAMES, *words.ANIMALS, *words.ADJECTIVES, *words.PLACES, *words.THINGS, *words.DAYS, *words.MONTHS)
    split = [word for word in known if len(tokenizer(f" {word}", add_special_tokens=False).input_ids) != 1]
    assert split == []


def test_planned_recall_length_is_the_real_one(tokenizer: Any) -> None:
    for tokens in (60, 500, 1900):
        example = tasks.examples("recall", 1, split="any", tokens=tokens)[0]
        assert tokens - 12 <= len(tokenizer(example.prompt, add_special_tokens=False).input_ids) <= tokens


def test_examples_are_distinct_held_out_and_repeatable() -> None:
    for name in tasks.TASKS:
        held = tasks.examples(name, 5, seed=4)
        assert held == tasks.examples(name, 5, seed=4)
        assert len({one.prompt for one in held}) == 5
        assert all(tasks.held_out(one.key) for one in held)
        assert not any(tasks.held_out(one.key) for one in tasks.examples(name, 5, seed=4, split="train"))
    with pytest.raises(ValueError, match=r"no task 'sing'.*count"):
        tasks.examples("sing", 1)


def test_story_form_is_judged() -> None:
    story = tasks.examples("story", 1, seed=9)[0]
    assert tasks.story_problem(story, story.answer) is None
    assert "rhyme" in str(tasks.story_problem(story, story.answer.replace(",\n", " indeed,\n", 1)))
    assert "eight lines" in str(tasks.story_problem(story, "The end."))


def tokens(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False).input_ids


def chosen(model: Any, tokenizer: Any, prompt: str, answer: str) -> str:
    """What the model prefers at each place of the answer: the answer itself exactly when greedy decoding gives it."""
    head, tail = tokens(tokenizer, prompt), tokens(tokenizer, answer)
    with torch.no_grad():
        logits = model(torch.tensor([head + tail])).logits
    return tokenizer.decode(logits[0, len(head) - 1 : -1].argmax(-1))


def greedy(model: Any, tokenizer: Any, prompt: str, limit: int) -> str:
    ids = torch.tensor([tokens(tokenizer, prompt)])
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=limit)
    assert out[0, -1].item() in model.generation_config.eos_token_id, "generation did not stop by itself"
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


EXACT = [name for name, task in tasks.TASKS.items() if task.exact and name != "recall"]


@pytest.mark.parametrize("name", EXACT)
def test_answers_are_right(model: Any, tokenizer: Any, name: str) -> None:
    for example in tasks.examples(name, 4, seed=11):
        answer = example.answer + "<|endoftext|>"
        assert chosen(model, tokenizer, example.prompt, answer) == answer


@pytest.mark.parametrize(("length", "place"), [(100, 0.5), (700, 0.0), (1900, 0.0), (1900, 0.5)])
def test_recall_near_and_far(model: Any, tokenizer: Any, length: int, place: float) -> None:
    example = tasks.examples("recall", 1, seed=11, tokens=length, place=place)[0]
    if (length, place) == (1900, 0.0):
        assert (example.gap or 0) > 1500
    answer = example.answer + "<|endoftext|>"
    assert chosen(model, tokenizer, example.prompt, answer) == answer


@pytest.mark.parametrize("name", [*EXACT, "recall"])
def test_chat_answers_are_right(model: Any, tokenizer: Any, name: str) -> None:
    options: dict[str, Any] = {"tokens": 300} if name == "recall" else {}
    example = tasks.examples(name, 1, seed=12, **options)[0]
    prompt = tokenizer.apply_chat_template(example.messages, tokenize=False, add_generation_prompt=True)
    assert chosen(model, tokenizer, prompt, example.reply + "<|im_end|>") == example.reply + "<|im_end|>"


@pytest.mark.parametrize("name", ["add", "count", "story"])
def test_generation_gives_the_answer_and_stops(model: Any, tokenizer: Any, name: str) -> None:
    example = tasks.examples(name, 1, seed=13)[0]
    text = greedy(model, tokenizer, example.prompt, 200)
    assert tasks.TASKS[name].correct(example, text), f"{example.prompt!r} gave {text!r}"
