"""Another engine on the same requests, in a process of its own. Run as a script; imports nothing of this package.

Reads one JSON job from the file named as its argument, writes one JSON object a line to the file named second:
{"ready": seconds, "versions": {...}}, {"warm": point}, {"point": i, "seconds": s, "outputs": [tokens...]}.
nano-VLLM's own package is called nanovllm as well, which is why none of this one may be imported here.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Run = Callable[[list[list[int]], list[int]], list[int]]  # prompts, completion tokens -> tokens that came


def make_transformers(job: dict[str, Any]) -> tuple[Run, Callable[[], None]]:
    """`generate` on all prompts at once, padded on the left to the longest; all rows run to the longest completion."""
    import torch
    from transformers import AutoModelForCausalLM

    device, kwargs = job["device"], {"dtype": getattr(torch, job["dtype"])}
    model = AutoModelForCausalLM.from_pretrained(job["model"], **kwargs).to(device).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    warm = job["temperature"] > 1e-5
    sampling = {"do_sample": True, "temperature": job["temperature"], "top_k": 0, "top_p": 1.0} if warm else {}
    sampling = sampling or {"do_sample": False}

    @torch.inference_mode()
    def run(prompts: list[list[int]], outputs: list[int]) -> list[int]:
        torch.manual_seed(job["seed"])
        width, longest = max(map(len, prompts)), max(outputs)
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=longest, min_new_tokens=longest, **sampling)
        rows = out[:, width:].tolist()
        return [len(row[:n]) for row, n in zip(rows, outputs, strict=True)]

    return run, lambda: None


def make_nano_vllm(job: dict[str, Any]) -> tuple[Run, Callable[[], None]]:
    """nano-vLLM's LLM.generate; its prefix cache is emptied between repeats."""
    from nanovllm import LLM, SamplingParams

    llm = LLM(job["model"], max_model_len=job["max_model_len"], tensor_parallel_size=job["ranks"])

    def run(prompts: list[list[int]], outputs: list[int]) -> list[int]:
        params = [SamplingParams(temperature=job["temperature"], ignore_eos=True, max_tokens=n) for n in outputs]
        return [len(o["token_ids"]) for o in llm.generate(prompts, params, use_tqdm=False)]

    return run, llm.scheduler.block_manager.hash_to_block_id.clear


def make_vllm(job: dict[str, Any]) -> tuple[Run, Callable[[], None]]:
    """vLLM's LLM.generate with its own defaults beyond the lengths, the batch and the ranks."""
    vllm: Any = import_module("vllm")
    llm = vllm.LLM(
        job["model"],
        max_model_len=job["max_model_len"],
        max_num_seqs=job["max_num_seqs"],
        tensor_parallel_size=job["ranks"],
        enable_prefix_caching=True,
        seed=job["seed"],
    )

    def run(prompts: list[list[int]], outputs: list[int]) -> list[int]:
        params = [
            vllm.SamplingParams(temperature=job["temperature"], ignore_eos=True, max_tokens=n, detokenize=False)
            for n in outputs
        ]
        done = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return [len(o.outputs[0].token_ids) for o in done]

    return run, llm.reset_prefix_cache


MAKERS = {"transformers": make_transformers, "nano-vllm": make_nano_vllm, "vllm": make_vllm}


def versions_of(names: list[str]) -> dict[str, str]:
    """Of what the peer runs on."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main(job_path: str, out_path: str) -> None:
    """Measure every workload of the job."""
    with open(job_path, encoding="utf-8") as f:
        job = json.load(f)
    with open(out_path, "w", encoding="utf-8") as out:

        def tell(**line: Any) -> None:
            out.write(json.dumps(line) + "\n")
            out.flush()

        began = time.perf_counter()
        run, reset = MAKERS[job["engine"]](job)
        tell(ready=time.perf_counter() - began, versions=versions_of([job["engine"], "torch", "flash-attn"]))
        for number, (prompts, outputs) in enumerate(job["work"]):
            for _ in range(job["warmups"]):
                reset()
                run(prompts, [min(n, job["warm_up_outputs"]) for n in outputs])
                tell(warm=number)
            for _ in range(job["repeats"]):
                reset()
                began = time.perf_counter()
                counts = run(prompts, outputs)
                tell(point=number, seconds=time.perf_counter() - began, outputs=counts)


if __name__ == "__main__":
    main(*sys.argv[1:])
