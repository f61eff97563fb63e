"""The memory budget's arithmetic and the sentences for what does not fit; what a GPU really does is in tests/gpu."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from nanovllm.assets import checkpoint_path
from nanovllm.errors import MemoryBudgetError
from nanovllm.paged_kv.cache import KVCacheSpec
from nanovllm.paged_kv.memory import SAFETY_BYTES, MemoryBudget, check_weights_fit
from nanovllm.qwen3.config import Qwen3Config

GIB = 2**30
SPEC = KVCacheSpec(28, 8, 128, 256, torch.bfloat16)  # Qwen3-0.6B: 28 MiB a block


def budget(**changes: float) -> MemoryBudget:
    sizes = {"total": 80 * GIB, "free": 78 * GIB, "held": 2 * GIB, "peak": 3 * GIB, "graphs": GIB, "utilization": 0.9}
    return MemoryBudget(**{**sizes, **changes})


def test_the_pool_gets_the_share_less_weights_peak_and_graphs() -> None:
    assert budget().for_cache == int(80 * GIB * 0.9) - 2 * GIB - 3 * GIB - GIB
    assert budget().blocks(SPEC, None) == (72 - 6) * GIB // (28 * 2**20)


def test_what_others_hold_of_the_card_makes_the_pool_smaller() -> None:
    assert budget(free=20 * GIB).for_cache == 20 * GIB - SAFETY_BYTES - 4 * GIB


def test_a_requested_pool_that_does_not_fit_names_what_would() -> None:
    assert budget().blocks(SPEC, 100) == 100
    with pytest.raises(MemoryBudgetError, match=r"10,000 takes 273\.44 GiB .* at most 2,413 blocks fit"):
        budget().blocks(SPEC, 10_000)


def test_no_room_for_one_block_is_refused_with_the_whole_account() -> None:
    with pytest.raises(MemoryBudgetError, match=r"takes 28\.0 MiB .* weights hold 2\.00 GiB"):
        budget(utilization=0.05).blocks(SPEC, None)


def test_weights_that_do_not_fit_name_the_number_of_ranks_that_would() -> None:
    check_weights_fit(16 * GIB, 16 * GIB, 1)
    with pytest.raises(MemoryBudgetError, match=r"60\.0 GiB on each of 1 .* 22\.0 GiB .* tensor_parallel_size 4"):
        check_weights_fit(60 * GIB, 22 * GIB, 1)
    with pytest.raises(MemoryBudgetError, match="more than 8"):
        check_weights_fit(600 * GIB, 10 * GIB, 8)


def test_the_number_of_parameters_is_that_of_the_file() -> None:
    folder: Path = checkpoint_path()
    with safe_open(folder / "model.safetensors", framework="pt") as weights:
        stored = sum(weights.get_tensor(name).numel() for name in weights.keys())  # noqa: SIM118
    assert Qwen3Config.from_folder(folder).num_parameters == stored


@pytest.mark.parametrize(("tied", "bias"), [(True, False), (False, True)])
def test_the_number_of_parameters_is_transformers(tied: bool, bias: bool) -> None:
    from transformers import Qwen3Config as TheirConfig
    from transformers import Qwen3ForCausalLM

    shape = {
        "vocab_size": 101,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
        "tie_word_embeddings": tied,
        "attention_bias": bias,
    }
    theirs = Qwen3ForCausalLM(TheirConfig(**shape))
    ours = Qwen3Config.from_dict({**shape, "model_type": "qwen3"})
    assert ours.num_parameters == sum(p.numel() for p in theirs.parameters())
