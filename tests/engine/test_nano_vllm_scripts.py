"""nano-vLLM's published example and benchmark run unchanged, but for the model's folder and smaller numbers."""

import os
import time
from pathlib import Path
from random import randint, seed

import pytest

from nanovllm import LLM, SamplingParams


def test_the_example(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoTokenizer

    path = os.path.expanduser(str(tiny))
    tokenizer = AutoTokenizer.from_pretrained(path)
    llm = LLM(path, enforce_eager=True, tensor_parallel_size=1)

    sampling_params = SamplingParams(temperature=0.6, max_tokens=25)
    prompts = [
        "introduce yourself",
        "list all prime numbers within 100",
    ]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}],
            tokenize=False,
            add_generation_prompt=True,
        )
        for prompt in prompts
    ]
    outputs = llm.generate(prompts, sampling_params)

    for prompt, output in zip(prompts, outputs):  # noqa: B905
        print("\n")
        print(f"Prompt: {prompt!r}")
        print(f"Completion: {output['text']!r}")

    shown = capsys.readouterr().out
    assert shown.count("Completion: ") == 2
    assert all(repr(output.text) in shown for output in outputs)


def test_the_benchmark(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed(0)
    num_seqs = 12
    max_input_len = 40
    max_ouput_len = 30

    path = os.path.expanduser(str(tiny))
    llm = LLM(path, enforce_eager=False, max_model_len=4096)

    prompt_token_ids = [[randint(0, 255) for _ in range(randint(10, max_input_len))] for _ in range(num_seqs)]
    sampling_params = [
        SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=randint(10, max_ouput_len)) for _ in range(num_seqs)
    ]
    # uncomment the following line for vllm
    # prompt_token_ids = [dict(prompt_token_ids=p) for p in prompt_token_ids]

    llm.generate(["Benchmark: "], SamplingParams())
    t = time.time()
    outputs = llm.generate(prompt_token_ids, sampling_params, use_tqdm=False)
    t = time.time() - t
    total_tokens = sum(sp.max_tokens for sp in sampling_params)
    throughput = total_tokens / t
    print(f"Total: {total_tokens}tok, Time: {t:.2f}s, Throughput: {throughput:.2f}tok/s")

    assert f"Total: {total_tokens}tok" in capsys.readouterr().out
    assert [len(o["token_ids"]) for o in outputs] == [sp.max_tokens for sp in sampling_params]
