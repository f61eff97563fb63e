"""The shipped qwen3-tiny on its own tasks: transformers' greedy tokens, whatever the engine does around them."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import (
    assert_greedy,
    assert_same_greedy,
    engine_logits,
    make_llm,
    run_to_end,
    token_ids_of,
    transformers_logits,
    transformers_model,
)
from transformers import AutoTokenizer

from nanovllm import LLM, SamplingParams
from nanovllm.assets import checkpoint_path
from nanovllm.engine.checkpoint import load_tokenizer

try:
    from nanovllm.assets.tasks import TASKS, examples, passage

    FOLDER = checkpoint_path("qwen3-tiny")
except (ImportError, ValueError) as missing:
    pytest.skip(f"qwen3-tiny is not in this tree: {missing}", allow_module_level=True)
if not (FOLDER / "model.safetensors").exists():
    pytest.skip("qwen3-tiny has no weights in this tree", allow_module_level=True)

PARAMS = SamplingParams(temperature=0, max_tokens=16)
LIMITS: dict[str, Any] = {"kvcache_block_size": 16, "num_kvcache_blocks": 400, "max_model_len": 2048}


@pytest.fixture(scope="module")
def model() -> Any:
    return transformers_model(FOLDER, attention="sdpa")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """A prompt of every task, and two recalls of 120 tokens that share their passage."""
    short = [examples(task, 1)[0].prompt for task in TASKS if task != "recall"]
    long = passage(random.Random(1), 120)
    return [*short, long.ask(0).prompt, long.ask(1).prompt]


@pytest.fixture(scope="module")
def expected(model: Any, texts: list[str]) -> list[list[int]]:
    """One prompt at a time in a fresh cache, each found right by transformers."""
    with make_llm(FOLDER, **(LIMITS | {"kvcache_block_size": 256, "num_kvcache_blocks": 8})) as llm:
        completions = []
        for text in texts:
            output = llm.generate([text], PARAMS, use_tqdm=False)[0]
            llm.scheduler.block_manager.reset_prefix_cache()
            assert_greedy(model, output.prompt_token_ids, output.token_ids)
            completions.append(output.token_ids)
    return completions


def check(llm: LLM, model: Any, texts: list[str], expected: list[list[int]], got: list[list[int]]) -> None:
    """Up to ties, judged by transformers' logits."""
    prompts = [llm.tokenizer.encode(text) for text in texts]
    assert_same_greedy(model, prompts, expected, got)


def test_by_name_it_is_the_folder(texts: list[str], expected: list[list[int]]) -> None:
    with LLM("qwen3-tiny", device="cpu", num_kvcache_blocks=8) as llm:
        assert token_ids_of(llm.generate(texts[:1], PARAMS, use_tqdm=False)) == expected[:1]


def test_logits_are_transformers(model: Any, texts: list[str]) -> None:
    """fp32 to 1e-4 of their spread."""
    with make_llm(FOLDER, **LIMITS) as llm:
        for text in texts[::3]:
            ids = llm.tokenizer.encode(text)
            wanted = transformers_logits(model, ids)
            torch.testing.assert_close(engine_logits(llm, ids), wanted, rtol=0, atol=1e-4 * wanted.std().item())


def test_bf16_logits_are_as_close_as_transformers(model: Any, texts: list[str]) -> None:
    """The distance to fp32 is at most 1.5 times that of transformers' own bf16 run."""
    rounded = transformers_model(FOLDER, torch.bfloat16)
    with make_llm(FOLDER, dtype="bfloat16", **LIMITS) as llm:
        for text in texts[::3]:
            ids = llm.tokenizer.encode(text)
            exact = transformers_logits(model, ids)
            theirs = (transformers_logits(rounded, ids) - exact).pow(2).mean().sqrt().item()
            ours = (engine_logits(llm, ids) - exact).pow(2).mean().sqrt().item()
            assert 0 < ours <= 1.5 * theirs


@pytest.mark.parametrize("block_size", [1, 3, 4, 16, 256])
def test_batched_and_with_a_cached_prefix(
    model: Any, texts: list[str], expected: list[list[int]], block_size: int
) -> None:
    limits = LIMITS | {"kvcache_block_size": block_size, "num_kvcache_blocks": 20 + 5000 // block_size}
    with make_llm(FOLDER, **limits) as llm:
        first = llm.generate(texts, PARAMS, use_tqdm=False)
        again = llm.generate(texts, PARAMS, use_tqdm=False)
        check(llm, model, texts, expected, token_ids_of(first))
        check(llm, model, texts, expected, token_ids_of(again))
        for output in again:
            wanted = (len(output.prompt_token_ids) - 1) // block_size * block_size
            assert output.metrics.num_prefix_tokens == wanted


@pytest.mark.parametrize("budget", [3, 16, 64])
def test_chunked(model: Any, texts: list[str], expected: list[list[int]], budget: int) -> None:
    with make_llm(FOLDER, max_num_batched_tokens=budget, **LIMITS) as llm:
        check(llm, model, texts, expected, token_ids_of(llm.generate(texts, PARAMS, use_tqdm=False)))


@pytest.mark.parametrize("budget", [20, 16384])
def test_preempted(model: Any, texts: list[str], expected: list[list[int]], budget: int) -> None:
    limits = LIMITS | {"kvcache_block_size": 4, "num_kvcache_blocks": 42, "max_num_batched_tokens": budget}
    with make_llm(FOLDER, **limits) as llm:
        for text in texts * 3:
            llm.add_request(text, PARAMS)
        outputs = run_to_end(llm)
        assert sum(o.metrics.num_preemptions for o in outputs.values()) > 0
        check(llm, model, texts * 3, expected * 3, [outputs[i].token_ids for i in range(3 * len(texts))])


def test_recalls_over_1500_tokens(model: Any) -> None:
    """One wrong slot or position among 1,500 shows: transformers' tokens, whole, in chunks, from the cached passage."""
    facts = passage(random.Random(7), 1500)
    asked = [facts.ask(0).prompt, facts.ask(len(facts.facts) // 2).prompt]
    first: list[list[int]] = []
    for block_size, budget in [(4, 16384), (256, 333)]:
        limits = LIMITS | {"kvcache_block_size": block_size, "num_kvcache_blocks": 8192 // block_size}
        with make_llm(FOLDER, max_num_batched_tokens=budget, **limits) as llm:
            outputs = [llm.generate([prompt], PARAMS, use_tqdm=False)[0] for prompt in asked]
        assert outputs[1].metrics.num_prefix_tokens > 1200
        if not first:
            first = token_ids_of(outputs)
            for output in outputs:
                assert len(output.prompt_token_ids) > 1450
                assert_greedy(model, output.prompt_token_ids, output.token_ids)
        assert_same_greedy(model, [o.prompt_token_ids for o in outputs], first, token_ids_of(outputs))


def test_chat_ends_by_itself(model: Any) -> None:
    """The end mark of generation_config.json stops the reply and is not part of the text."""
    with make_llm(FOLDER, **LIMITS) as llm:
        messages = [e.messages for e in examples("count", 3)]
        for output in llm.chat(messages, SamplingParams(temperature=0, max_tokens=100)):
            assert output.finish_reason == "stop"
            assert output.token_ids[-1] in llm.scheduler.eos_token_ids
            assert "<|" not in output.text
            assert_greedy(model, output.prompt_token_ids, output.token_ids)


def test_an_engine_writes_nothing_into_the_package() -> None:
    before = sorted(p.name for p in FOLDER.iterdir())
    make_llm(FOLDER, **LIMITS).exit()
    assert sorted(p.name for p in FOLDER.iterdir()) == before


@pytest.mark.parametrize(
    "kind",
    ["Qwen2Tokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend", None],
    ids=str,
)
def test_a_tokenizer_is_the_one_that_transformers_chooses(tmp_path: Path, texts: list[str], kind: str | None) -> None:
    """Found without AutoTokenizer where the configuration names a class that is known."""
    for file in FOLDER.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"tokenizer_class": kind}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    ours = load_tokenizer(tmp_path)
    assert type(ours) is type(theirs)
    conversation = [{"role": "user", "content": texts[0]}]
    for tokenizer_of in (
        lambda t: [t.encode(text) for text in [*texts, "  wörld 123\n\n<|im_end|>你好"]],
        lambda t: t.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True),
        lambda t: (t.eos_token_id, t.pad_token_id, t.decode(t.encode(texts[0]), skip_special_tokens=True)),
    ):
        assert tokenizer_of(ours) == tokenizer_of(theirs)
