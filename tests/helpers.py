"""Random tiny Qwen3 checkpoints on disk, and transformers as the judge of what the engine makes of them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from nanovllm import LLM, RequestOutput, SamplingParams
from nanovllm.paged_kv.batch import prepare, to_device
from nanovllm.scheduler import ScheduledSlice

TIE = 2e-3  # logits closer than this are a tie: fp32 sums in another order may choose either
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # ids 256, 257, 258 after the 256 bytes
EOS_ID = 258
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tiny_config(without: Iterable[str] = (), **changes: Any) -> dict[str, Any]:
    """A config.json of a two-layer Qwen3 that names rope settings in both schemas, with `changes` applied."""
    raw: dict[str, Any] = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 264,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "torch_dtype": "float32",
        "dtype": "float32",
        "eos_token_id": None,
    }
    raw.update(changes)
    return {key: value for key, value in raw.items() if key not in without}


def random_tensors(raw: dict[str, Any], seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Weights under their published names, large enough that every earlier token matters to the next one."""
    generator = torch.Generator().manual_seed(seed)
    hidden, inner, vocab = raw["hidden_size"], raw["intermediate_size"], raw["vocab_size"]
    head_dim = raw.get("head_dim") or 128
    q_size, kv_size = raw["num_attention_heads"] * head_dim, raw["num_key_value_heads"] * head_dim

    def matrix(rows: int, columns: int, gain: float = 1.5) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * gain * columns**-0.5

    def around(size: int, mean: float) -> Tensor:
        return mean + 0.2 * torch.randn(size, generator=generator)

    tensors = {"model.embed_tokens.weight": torch.randn(vocab, hidden, generator=generator)}
    for i in range(raw["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        for name, rows, columns in (
            ("q_proj", q_size, hidden),
            ("k_proj", kv_size, hidden),
            ("v_proj", kv_size, hidden),
            ("o_proj", hidden, q_size),
        ):
            tensors[f"{layer}.self_attn.{name}.weight"] = matrix(rows, columns, 2.0)
            if raw.get("attention_bias"):
                tensors[f"{layer}.self_attn.{name}.bias"] = around(rows, 0.0)
        for name in ("q_norm", "k_norm"):
            tensors[f"{layer}.self_attn.{name}.weight"] = around(head_dim, 1.2)
        for name, rows, columns in (
            ("gate_proj", inner, hidden),
            ("up_proj", inner, hidden),
            ("down_proj", hidden, inner),
        ):
            tensors[f"{layer}.mlp.{name}.weight"] = matrix(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{name}.weight"] = around(hidden, 1.0)
    tensors["model.norm.weight"] = around(hidden, 1.0)
    if not raw.get("tie_word_embeddings"):
        tensors["lm_head.weight"] = matrix(vocab, hidden, 3.0)
    return {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges: ids 0 to 255 are bytes, then the special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def write_config(folder: Path, raw: dict[str, Any]) -> None:
    """Put `raw` into folder/config.json."""
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")


def write_checkpoint(
    folder: Path,
    raw: dict[str, Any] | None = None,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    tokenizer: bool = False,
    shards: int = 1,
    generation_config: dict[str, Any] | None = None,
) -> Path:
    """Write a random checkpoint in the published layout, in one file or sharded with an index; returns `folder`."""
    raw = raw or tiny_config()
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, raw)
    write_weights(folder, random_tensors(raw, seed, dtype), shards)
    if tokenizer:
        write_tokenizer(folder)
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation_config), encoding="utf-8")
    return folder


def write_weights(folder: Path, tensors: dict[str, Tensor], shards: int = 1) -> None:
    """One model.safetensors, or `shards` files with model.safetensors.index.json."""
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file))
    total = sum(t.nbytes for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


# --- the engine -----------------------------------------------------------------------------------------------------


def make_llm(folder: Path, **limits: Any) -> LLM:
    """An engine on the CPU with a small pool; any limit can be given."""
    defaults: dict[str, Any] = {
        "device": "cpu",
        "kvcache_block_size": 4,
        "num_kvcache_blocks": 512,
        "max_num_seqs": 16,
        "max_model_len": 512,
    }
    return LLM(str(folder), **(defaults | limits))


def greedy(max_tokens: int = 12, **options: Any) -> SamplingParams:
    """Greedy parameters that run to their last token."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, **options)


def token_ids_of(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    """The completions."""
    return [output.token_ids for output in outputs]


def random_prompts(lengths: Sequence[int], seed: int = 0, vocab_size: int = 256) -> list[list[int]]:
    """Prompts of these lengths, all different."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab_size, (n,), generator=generator).tolist() for n in lengths]


def run_to_end(llm: LLM) -> dict[int, RequestOutput]:
    """Step until nothing is left; the outputs by request id."""
    outputs = {}
    while not llm.is_finished():
        outputs.update((output.request_id, output) for output in llm.step().finished)
        llm.scheduler.check_integrity()
    return outputs


def assert_idle(llm: LLM) -> None:
    """Nothing is queued, nothing holds a block, nothing is remembered of past requests."""
    assert llm.is_finished()
    assert not llm.scheduler.sequences
    assert not llm._metrics
    assert not llm._prompts
    assert llm.scheduler.block_manager.num_used_blocks == 0
    llm.scheduler.check_integrity()


# --- the judge ------------------------------------------------------------------------------------------------------


def transformers_model(folder: Path, dtype: torch.dtype = torch.float32, attention: str = "eager") -> Any:
    """The same checkpoint in transformers."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype, attn_implementation=attention).eval()


@torch.inference_mode()
def transformers_logits(model: Any, token_ids: Sequence[int]) -> Tensor:
    """[len(token_ids), vocab_size] fp32: one forward over all of them, without a cache."""
    return model(torch.tensor([list(token_ids)]), use_cache=False).logits[0].float()


def assert_greedy(model: Any, prompt: Sequence[int], completion: Sequence[int], tie: float = TIE) -> None:
    """Each token of `completion` is transformers' most likely next token, or tied with it."""
    assert len(completion) > 0
    logits = transformers_logits(model, [*prompt, *completion[:-1]])[len(prompt) - 1 :]
    chosen = logits.gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)
    gaps = logits.max(dim=1).values - chosen
    worst = int(gaps.argmax())
    assert gaps[worst] <= tie, (
        f"completion token {worst} is {completion[worst]}, whose logit is {gaps[worst]:.4g} below that of "
        f"{int(logits[worst].argmax())}"
    )


def assert_same_greedy(
    model: Any, prompts: Sequence[Sequence[int]], expected: Sequence[Sequence[int]], got: Sequence[Sequence[int]]
) -> None:
    """`got` equals `expected`, except from a tie of logits on (then it must be greedy in its own right)."""
    assert len(expected) == len(got) == len(prompts)
    for prompt, one, other in zip(prompts, expected, got, strict=True):
        assert len(one) == len(other)
        if list(one) != list(other):
            assert_greedy(model, prompt, other)


@torch.inference_mode()
def engine_logits(llm: LLM, token_ids: Sequence[int]) -> Tensor:
    """[len(token_ids), vocab_size] fp32: one prefill of them all through the engine's batch preparation and model."""
    runner = llm.model_runner
    block_size = llm.config.kvcache_block_size
    table = list(range(-(-len(token_ids) // block_size)))
    whole = ScheduledSlice(0, list(token_ids), 0, len(token_ids), table)
    batch = to_device(prepare([whole], True, block_size), runner.device)
    hidden = runner.model(batch.input_ids, batch.positions, batch.context)
    logits = runner.model.compute_logits(hidden, replace(batch.context, last_token_rows=None))
    assert logits is not None
    return logits.float()
