"""What the lessons of parts 2 and 3 use: taps that change nothing, reads that add up, comparisons that can fail."""

import math
from collections import defaultdict

import pytest
import torch

from nanovllm import LLM, SamplingParams
from nanovllm.course.lessons_part2 import AttentionTap, changed_slots, measured_budget
from nanovllm.course.lessons_part3 import (
    Theirs,
    chi_square,
    chi_square_limit,
    compare,
    logits_of,
    shard_model,
    watch_layer,
)

GREEDY = SamplingParams(temperature=0, max_tokens=3)
PROMPT = "count: 17 18 19 20"


def run(llm: LLM) -> list[int]:
    llm.scheduler.block_manager.reset_prefix_cache()
    return llm.generate([PROMPT], GREEDY, use_tqdm=False)[0].token_ids


# --- attention ---------------------------------------------------------------------------------------------------


def test_a_tap_has_the_live_keys_and_lets_go(llm: LLM) -> None:
    wanted = run(llm)
    with AttentionTap(llm, layer=2) as calls:
        assert run(llm) == wanted
    assert [call.context.is_prefill for call in calls] == [True, False, False]
    prefill, first, second = calls
    slots = prefill.context.slot_mapping
    assert torch.equal(prefill.k_cache.flatten(0, 1)[slots], prefill.k)
    assert torch.equal(prefill.v_cache.flatten(0, 1)[slots], prefill.v)
    assert changed_slots(first.k_cache, second.k_cache) == second.context.slot_mapping.tolist()
    run(llm)
    assert len(calls) == 3


def test_while_a_tap_is_in_q_is_made_before_attention(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where a kernel that makes q itself would pass the tap by; two taps let go together."""
    backend = llm.model_runner.model.attention_layers[0].backend
    monkeypatch.setattr(backend, "fuses_decode", True)
    outer, inner = AttentionTap(llm), AttentionTap(llm, layer=1)
    with outer:
        with inner:
            assert not backend.fuses_decode
        assert not backend.fuses_decode
    assert backend.fuses_decode


def test_changed_slots_finds_one_number() -> None:
    cache = torch.zeros(3, 4, 2, 8)
    other = cache.clone()
    other[1, 2, 1, 7] = 1e-20
    assert changed_slots(cache, other) == [6]
    assert changed_slots(cache, cache.clone()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure")
def test_without_a_gpu_there_is_no_measured_budget(llm: LLM) -> None:
    assert measured_budget(llm) is None


# --- the model beside transformers -------------------------------------------------------------------------------


def test_theirs_has_the_inside_of_a_run(llm: LLM) -> None:
    token_ids = llm.tokenizer.encode(PROMPT)
    theirs = Theirs(llm, token_ids)
    for name in ("layers.0.input_layernorm", "layers.4.mlp", "layers.0.self_attn.q_norm", "norm"):
        assert theirs.outputs[name].shape[0] == len(token_ids)
    assert theirs.rotary[0].shape == (len(token_ids), 64)
    assert theirs.logits.shape == (len(token_ids), llm.plan.model_config.vocab_size)
    torch.testing.assert_close(logits_of(llm, token_ids), theirs.logits[-1].cpu(), rtol=0, atol=1e-3)


def test_logits_of_stores_and_schedules_nothing(llm: LLM) -> None:
    first = run(llm)[0]
    pool = llm.model_runner.cache.tensor.clone()
    before = llm.scheduler.block_manager.snapshot()
    logits = logits_of(llm, llm.tokenizer.encode(PROMPT))
    assert logits.argmax() == first
    assert torch.equal(pool, llm.model_runner.cache.tensor)
    assert llm.scheduler.block_manager.snapshot() == before


def test_compare_can_tell() -> None:
    theirs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert compare("x", theirs + 1e-6, theirs) == "x: agree, [5, 4]"
    assert compare("x", theirs + 0.1, theirs).startswith("x: DIFFER by 0.1")
    assert "shapes differ" in compare("x", theirs[:4], theirs)
    assert "DIFFER" in compare("x", theirs + 1e-6, theirs, tolerance=0)
    spoilt = theirs.clone()
    spoilt[0, 0] = math.nan
    assert "DIFFER" in compare("x", spoilt, theirs)


def test_a_watched_layer_runs_as_before_and_is_put_back(llm: LLM) -> None:
    layer = llm.model_runner.model.layers[1]
    ops = layer.mlp.ops
    wanted = run(llm)
    with watch_layer(llm, index=1) as calls:
        assert run(llm) == wanted
    prefill = calls[:8]
    assert [(c.module.split(".")[-1], c.op) for c in prefill] == [
        ("input_layernorm", "add_rms_norm"),  # of the second layer: it adds what the first one gave
        ("qkv_proj", "linear"),
        ("self_attn", "attend"),
        ("o_proj", "linear"),
        ("post_attention_layernorm", "add_rms_norm"),
        ("gate_up_proj", "linear"),
        ("mlp", "silu_and_mul"),
        ("down_proj", "linear"),
    ]
    assert len(calls) == 3 * 8  # three steps
    assert layer.mlp.ops is ops
    assert layer.input_layernorm.ops is ops


# --- shards ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_the_ranks_reads_cover_each_tensor(llm: LLM, size: int) -> None:
    """Every row (or column) is read; by one rank alone, but for whole tensors and shared KV heads."""
    readers: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    sizes: dict[str, int] = {}
    for rank in range(size):
        model, reads = shard_model(llm.plan.folder, rank, size)
        assert sum(p.numel() for p in model.parameters()) * 2 == sum(read.num_bytes for read in reads)
        for read in reads:
            sizes[read.name] = read.shape[0 if read.dim is None else read.dim]
            for index in range(read.first, read.first + read.length):
                readers[read.name][index] += 1
    for name, total in sizes.items():
        times = set(readers[name].values())
        assert len(readers[name]) == total
        shared = 2 if size == 8 and ("k_proj" in name or "v_proj" in name) else 1
        assert times == ({size} if "norm" in name else {shared})


# --- chi-square --------------------------------------------------------------------------------------------------


def test_chi_square_by_hand() -> None:
    probs = torch.tensor([0.5, 0.25, 0.25, 0.0])
    assert chi_square(torch.tensor([50, 25, 25, 0]), probs) == 0
    assert chi_square(torch.tensor([60, 20, 20, 0]), probs) == pytest.approx(100 / 50 + 25 / 25 + 25 / 25)
    assert chi_square(torch.tensor([50, 25, 24, 1]), probs) == math.inf


@pytest.mark.parametrize(("degrees", "tabled"), [(1, 15.14), (3, 21.11), (10, 35.56), (50, 95.97)])
def test_the_limit_is_the_tabled_quantile(degrees: int, tabled: float) -> None:
    """The 99.99 % quantile, and never less: Wilson-Hilferty is up to 8 % above it for few degrees."""
    assert tabled - 0.05 <= chi_square_limit(degrees) <= 1.08 * tabled
