"""The shipped checkpoint as an oracle: prompts, and the answers that transformers gives to them.

The answers are written down so that grading need not run transformers; a test works them out again.
"""

from typing import Any

from nanovllm.course.exercise import Example

# "count: 17 18 19 20 21 22", its first four numbers (a shared prefix), and "sort: 9 4 7 ->", as tokens.
PROMPTS = (
    (462, 28, 223, 19, 25, 223, 19, 26, 223, 19, 27, 223, 20, 18, 223, 20, 19, 223, 20, 20),
    (462, 28, 223, 19, 25, 223, 19, 26, 223, 19, 27, 223, 20, 18),
    (899, 28, 223, 27, 223, 22, 223, 25, 1123),
)
NUM_TOKENS = 8
ANSWERS = (
    (223, 20, 21, 223, 20, 22, 223, 20),
    (223, 20, 19, 223, 20, 20, 223, 20),
    (223, 22, 223, 25, 223, 27, 0, 14),
)
# Chunks of at most 12 tokens; blocks of 4; so few of them that a request is preempted.
LIMITS = "kvcache_block_size=4, num_kvcache_blocks=11, max_num_batched_tokens=12, max_model_len=32"

_RUN = f"""\
from nanovllm import LLM, SamplingParams
prompts = PROMPTS
limits = dict({LIMITS}, device="cpu", skip_tokenizer_init=True)
with LLM("qwen3-tiny", **limits) as llm:BEFORE
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    outputs = llm.generate(prompts, greedy, use_tqdm=False)
result = [output.token_ids for output in outputs]"""


def engine_example(*before: str, num_prompts: int = 3, num_tokens: int = NUM_TOKENS) -> Example:
    """The engine answers the last prompts; all of them make it share a prefix, cut chunks and preempt.

    before: lines to run once the engine is built.
    """
    lines = "".join(f"\n    {line}" for line in before)
    code = _RUN.replace("BEFORE", lines).replace("NUM_TOKENS", str(num_tokens))
    code = code.replace("PROMPTS", str([list(prompt) for prompt in PROMPTS[-num_prompts:]]))
    return Example(code, [list(answer[:num_tokens]) for answer in ANSWERS[-num_prompts:]])


def transformers_answers() -> list[list[int]]:
    """What transformers' own Qwen3 makes of the prompts, greedily; slow, so for tests and notebooks."""
    import torch
    from transformers import AutoModelForCausalLM

    from nanovllm.engine.checkpoint import resolve_checkpoint

    model: Any = AutoModelForCausalLM.from_pretrained(resolve_checkpoint("qwen3-tiny"), dtype=torch.float32)
    answers = []
    for prompt in PROMPTS:
        ids = list(prompt)
        for _ in range(NUM_TOKENS):
            with torch.inference_mode():
                logits = model(torch.tensor([ids])).logits
            ids.append(int(logits[0, -1].argmax()))
        answers.append(ids[len(prompt) :])
    return answers
