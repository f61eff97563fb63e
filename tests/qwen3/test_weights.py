"""Weights from disk: single and sharded files, and a sentence for everything that can be wrong with them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import (
    engine_logits,
    make_llm,
    random_prompts,
    random_tensors,
    tiny_config,
    write_checkpoint,
    write_weights,
)
from torch import Tensor

from nanovllm.errors import CheckpointError
from nanovllm.qwen3.config import Qwen3Config
from nanovllm.qwen3.model import Qwen3ForCausalLM
from nanovllm.qwen3.placement import Placement
from nanovllm.qwen3.weights import WeightReader

PROMPT = random_prompts([20])[0]


def load(folder: Path) -> tuple[Qwen3ForCausalLM, WeightReader]:
    """A model filled from `folder`, and the reader that filled it."""
    model = Qwen3ForCausalLM(Qwen3Config.from_folder(folder), 64, Placement())
    reader = WeightReader(folder)
    model.load(reader)
    return model, reader


def logits(folder: Path) -> Tensor:
    with make_llm(folder) as llm:
        return engine_logits(llm, PROMPT)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", [2, 3, 7])
def test_sharded_is_single(tmp_path: Path, shards: int, tied: bool) -> None:
    raw = tiny_config(tie_word_embeddings=tied, attention_bias=True)
    single = write_checkpoint(tmp_path / "single", raw)
    sharded = write_checkpoint(tmp_path / "sharded", raw, shards=shards)
    assert len(list(sharded.glob("*.safetensors"))) == shards
    assert torch.equal(logits(single), logits(sharded))


def test_shards_without_an_index(tmp_path: Path) -> None:
    """Several files and no index: every tensor in them is found."""
    single = write_checkpoint(tmp_path / "single")
    sharded = write_checkpoint(tmp_path / "sharded", shards=3)
    (sharded / "model.safetensors.index.json").unlink()
    assert torch.equal(logits(single), logits(sharded))


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"attention_bias": True}])
@pytest.mark.parametrize("shards", [1, 3])
def test_bytes_read_are_the_tensors_bytes(tmp_path: Path, changes: dict[str, Any], shards: int) -> None:
    """Every byte once, none twice."""
    raw = tiny_config(**changes)
    folder = write_checkpoint(tmp_path, raw, shards=shards, dtype=torch.bfloat16)
    _, reader = load(folder)
    assert reader.bytes_read == sum(t.nbytes for t in random_tensors(raw, dtype=torch.bfloat16).values())


def test_every_parameter_is_filled(tmp_path: Path) -> None:
    """Nothing of the uninitialised memory is left: as many numbers as on disk, and the same sum of squares."""
    raw = tiny_config(attention_bias=True)
    model, _ = load(write_checkpoint(tmp_path, raw))
    on_disk = random_tensors(raw)
    parameters = list(model.parameters())
    assert sum(p.numel() for p in parameters) == sum(t.numel() for t in on_disk.values())
    energy = sum(p.double().square().sum() for p in parameters)
    torch.testing.assert_close(energy, sum(t.double().square().sum() for t in on_disk.values()))


def test_lm_head_in_a_tied_checkpoint_is_ignored(tmp_path: Path) -> None:
    """Some tools save it although it is tied; the embedding is used, as transformers does."""
    raw = tiny_config(tie_word_embeddings=True)
    plain = write_checkpoint(tmp_path / "plain", raw)
    extra = write_checkpoint(tmp_path / "extra", raw)
    tensors = random_tensors(raw)
    write_weights(extra, tensors | {"lm_head.weight": torch.ones_like(tensors["model.embed_tokens.weight"])})
    assert torch.equal(logits(plain), logits(extra))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("shards", [1, 2])
def test_each_missing_tensor_is_named(tmp_path: Path, tied: bool, shards: int) -> None:
    raw = tiny_config(tie_word_embeddings=tied, num_hidden_layers=1, attention_bias=True)
    tensors = random_tensors(raw)
    for name in tensors:
        folder = write_checkpoint(tmp_path / name, raw)
        if shards > 1:
            (folder / "model.safetensors").unlink()
        write_weights(folder, {other: t for other, t in tensors.items() if other != name}, shards)
        with pytest.raises(CheckpointError, match=f"lacks the tensor '{name}' that its config calls for"):
            make_llm(folder)


SURPLUS = ["model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias", "model.rotary.inv_freq", "x"]


@pytest.mark.parametrize("name", SURPLUS)
def test_a_surplus_tensor_is_named(tmp_path: Path, name: str) -> None:
    """A bias that the config does not have, a layer too many: not silently dropped."""
    folder = write_checkpoint(tmp_path)
    write_weights(folder, random_tensors(tiny_config()) | {name: torch.ones(64)})
    with pytest.raises(CheckpointError, match=f"holds 1 tensors that its config does not call for, '{name}' first"):
        make_llm(folder)


def test_each_mismatched_shape_is_named(tmp_path: Path) -> None:
    raw = tiny_config(num_hidden_layers=1, attention_bias=True)
    tensors = random_tensors(raw)
    for name, tensor in tensors.items():
        for wrong in (tensor[:-1], torch.cat([tensor, tensor]), tensor.unsqueeze(0), tensor[..., :-1]):
            folder = write_checkpoint(tmp_path / "checkpoint", raw)
            write_weights(folder, tensors | {name: wrong.contiguous()})
            with pytest.raises(CheckpointError, match=f"tensor '{name}' has shape .*do not belong together"):
                make_llm(folder)


CONFIG_CHANGES: list[dict[str, Any]] = [
    {"vocab_size": 265},
    {"vocab_size": 200},
    {"hidden_size": 16},
    {"intermediate_size": 96},
    {"num_hidden_layers": 1},
    {"num_hidden_layers": 3},
    {"num_attention_heads": 8},
    {"num_attention_heads": 2},
    {"num_key_value_heads": 1},
    {"num_key_value_heads": 4},
    {"head_dim": 8},
    {"head_dim": 32},
    {"head_dim": None},
    {"attention_bias": True},
]


@pytest.mark.parametrize("changes", CONFIG_CHANGES, ids=lambda c: "-".join(f"{k}={v}" for k, v in c.items()))
def test_weights_of_another_config_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(**changes)), encoding="utf-8")
    with pytest.raises(CheckpointError):
        make_llm(tmp_path)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("keep", [0, 4, 100, -1, -5000])
def test_a_truncated_file(tmp_path: Path, shards: int, keep: int) -> None:
    """A download that broke off: anywhere in the header or in the numbers."""
    folder = write_checkpoint(tmp_path, shards=shards)
    victim = sorted(folder.glob("*.safetensors"))[-1]
    victim.write_bytes(victim.read_bytes()[:keep])
    with pytest.raises(
        CheckpointError, match=rf"{victim.name} is damaged or truncated .*download the checkpoint again"
    ):
        make_llm(folder)


def test_a_missing_shard(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, shards=4)
    for number in (2, 3):
        (folder / f"model-0000{number}-of-00004.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"2 of 4 weight files are missing in .*, model-00002-of-00004"):
        make_llm(folder)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "null", '{"weight_map": null}', '{"weight_map": ["a"]}'])
def test_a_damaged_index(tmp_path: Path, text: str) -> None:
    folder = write_checkpoint(tmp_path, shards=2)
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"index\.json is damaged .*download the checkpoint again"):
        make_llm(folder)


def test_an_index_that_names_the_wrong_shard(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    files = sorted(set(index["weight_map"].values()))
    index["weight_map"] = {name: files[file == files[0]] for name, file in index["weight_map"].items()}
    path.write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"cannot read 'model\.embed_tokens\.weight' from model-00002"):
        make_llm(folder)


def test_no_weights_at_all(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(CheckpointError, match=r"has no \*\.safetensors weights: only that format is read"):
        make_llm(folder)


def break_nothing(folder: Path) -> None:
    """The checkpoint as it is."""


def drop_the_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("prepare", [break_nothing, drop_the_weights])
def test_dummy_weights_need_only_a_config(tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    """The same seed fills the same numbers; nothing on disk is read."""
    prepare(write_checkpoint(tmp_path, tiny_config(attention_bias=True)))
    seen = []
    for seed in (1, 1, 2):
        with make_llm(tmp_path, load_format="dummy", seed=seed) as llm:
            seen.append(engine_logits(llm, PROMPT))
    assert seen[0].isfinite().all()
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])


def test_dummy_weights_leave_the_global_random_state_alone(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    before = torch.get_rng_state()
    make_llm(tmp_path, load_format="dummy", seed=3).exit()
    assert torch.equal(torch.get_rng_state(), before)
