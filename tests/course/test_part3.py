"""What part 3 is judged by is true: its formulas against transformers, its simulated ranks against real ones."""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config
from transformers.models.qwen3 import modeling_qwen3 as theirs

from nanovllm import LLM, SamplingParams
from nanovllm.course import swap
from nanovllm.course.numeric import numbers
from nanovllm.course.part3 import formulas, made, ranks
from nanovllm.course.part3.ex08 import ENGINE, SAMPLED
from nanovllm.course.part3.plain_backend import PlainBackend, grouped_attention
from nanovllm.errors import CheckpointError, CollectiveError
from nanovllm.paged_kv.backends.torch_backend import causal_attention
from nanovllm.qwen3 import sampler
from nanovllm.qwen3.parallel import TensorParallelGroup
from nanovllm.qwen3.weights import Shard

HEADS, KV_HEADS, DIM, HIDDEN, INNER, THETA, EPS = 4, 2, 6, 8, 10, 100.0, 1e-6


@pytest.fixture
def rng() -> random.Random:
    return random.Random(5)


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def close(ours: Any, wanted: Tensor) -> None:
    torch.testing.assert_close(torch.tensor(ours), wanted, rtol=0, atol=1e-5)


def config() -> Qwen3Config:
    return Qwen3Config(
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=DIM,
        rms_norm_eps=EPS,
        rope_theta=THETA,
        attn_implementation="eager",
    )


def fill(layer: torch.nn.Module, rng: random.Random) -> None:
    for parameter in layer.parameters():
        parameter.copy_(torch.tensor(numbers(rng, *parameter.shape)))


# --- the formulas ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_rms_norm_is_that_of_transformers(rng: random.Random, eps: float) -> None:
    norm = theirs.Qwen3RMSNorm(7, eps)
    fill(norm, rng)
    x = numbers(rng, 3, 7)
    close([formulas.rms_norm(row, norm.weight.tolist(), eps) for row in x], norm(torch.tensor(x)))


def test_rotation_is_that_of_transformers(rng: random.Random) -> None:
    rotary = theirs.Qwen3RotaryEmbedding(config())
    x = numbers(rng, 5, HEADS, DIM)  # [T, heads, D]
    cos, sin = rotary(torch.zeros(1), torch.arange(5).unsqueeze(0))
    wanted, _ = theirs.apply_rotary_pos_emb(torch.tensor(x), torch.tensor(x), cos[0], sin[0])
    turn = formulas.frequencies(DIM, THETA)
    close([[formulas.rotate(head, [p * f for f in turn]) for head in token] for p, token in enumerate(x)], wanted)


def test_qk_norm_and_grouped_attention_are_those_of_transformers(rng: random.Random) -> None:
    layer = theirs.Qwen3Attention(config(), 0)
    fill(layer, rng)
    x = torch.tensor(numbers(rng, 5, HIDDEN))
    qkv = torch.cat([layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)], dim=-1)
    q_weight, k_weight = layer.q_norm.weight.tolist(), layer.k_norm.weight.tolist()
    seen = formulas.heads_of(qkv.tolist(), HEADS, KV_HEADS, q_weight, k_weight, EPS, THETA)
    ours = torch.tensor(formulas.attention(seen["q"], seen["k"], seen["v"], DIM**-0.5)).flatten(1)
    cos, sin = theirs.Qwen3RotaryEmbedding(config())(x, torch.arange(5).unsqueeze(0))
    mask = torch.full((5, 5), -torch.inf).triu(1)[None, None]
    wanted, _ = layer(x.unsqueeze(0), position_embeddings=(cos, sin), attention_mask=mask)
    torch.testing.assert_close(layer.o_proj(ours), wanted[0], rtol=0, atol=1e-4)
    given = made.heads_of(qkv.tolist(), HEADS, KV_HEADS, q_weight, k_weight, EPS, THETA)
    for name in ("q", "k", "v"):
        close(seen[name], given[name])


def test_swiglu_is_that_of_transformers(rng: random.Random) -> None:
    layer = theirs.Qwen3MLP(config())
    fill(layer, rng)
    x = numbers(rng, 3, HIDDEN)
    rows = formulas.linear(x, [*layer.gate_proj.weight.tolist(), *layer.up_proj.weight.tolist()])
    ours = formulas.linear([formulas.silu_and_mul(row) for row in rows], layer.down_proj.weight.tolist())
    torch.testing.assert_close(torch.tensor(ours), layer(torch.tensor(x)), rtol=0, atol=1e-4)


def test_draws_and_cuts_are_those_of_the_engine(rng: random.Random) -> None:
    keys = [[rng.randrange(2**32), rng.randrange(2**32)] for _ in range(20)]
    close([formulas.exponential_draws(key, 30) for key in keys], sampler.exponential_draws(torch.tensor(keys), 30))
    logits = torch.tensor(numbers(rng, 50, 9))
    top_k = torch.tensor([[rng.randint(0, 10)] for _ in range(50)])
    top_p = torch.tensor([[rng.random()] for _ in range(50)])
    kept = sampler.keep_top(logits, top_k, top_p)
    for row in range(50):
        wanted = formulas.kept(logits[row].tolist(), int(top_k[row]), float(top_p[row]))
        assert kept[row].isfinite().nonzero().flatten().tolist() == wanted


@pytest.mark.parametrize(("queries", "keys", "share"), [(1, 1, 1), (3, 3, 2), (2, 5, 3), (1, 6, 2)])
def test_plain_attention_is_that_of_the_backends(queries: int, keys: int, share: int) -> None:
    q, k, v = torch.randn(queries, 2 * share, 4), torch.randn(keys, 2, 4), torch.randn(keys, 2, 4)
    torch.testing.assert_close(grouped_attention(q, k, v, 0.5), causal_attention(q, k, v, 0.5), rtol=0, atol=1e-5)


def test_the_sampled_answers_are_the_engines() -> None:
    namespace: dict[str, Any] = {}
    exec(ENGINE, namespace)
    assert namespace["result"] == SAMPLED
    exec(ENGINE.replace("seed=3", "seed=4"), namespace)
    assert namespace["result"] != SAMPLED


# --- simulated ranks ---------------------------------------------------------------------------------------------


def test_collectives_see_all_ranks() -> None:
    def work(group: TensorParallelGroup) -> list[Any]:
        mine = torch.tensor([1.0, 10.0 * group.rank])
        added = group.all_reduce(mine, "one")
        again = group.all_reduce(added, "two")  # depends on the first answer
        parts = group.gather(mine, "three")
        return [added.tolist(), again.tolist(), parts if parts is None else [part.tolist() for part in parts]]

    results, seen = ranks.on_ranks(3, work)
    assert [result[:2] for result in results] == [[[3.0, 30.0], [9.0, 90.0]]] * 3
    assert [result[2] for result in results] == [[[1.0, 0.0], [1.0, 10.0], [1.0, 20.0]], None, None]
    assert seen == [["all_reduce", "one", [2]], ["all_reduce", "two", [2]], ["gather", "three", [2]]]


def test_ranks_that_do_not_meet_are_told_so() -> None:
    x = torch.zeros(1)
    with pytest.raises(CollectiveError, match="rank 0 waits in all_reduce 'here' for rank 1, which never comes"):
        ranks.on_ranks(2, lambda group: group.rank or group.all_reduce(x, "here"))
    with pytest.raises(CollectiveError, match="do not ask for the same"):
        ranks.on_ranks(2, lambda group: group.all_reduce(torch.zeros(1 + group.rank), "here"))
    with pytest.raises(CollectiveError, match="more than 8 collectives"):
        ranks.on_ranks(2, lambda group: [group.all_reduce(x, "here") for _ in range(9)])


def test_a_checkpoint_in_memory_refuses_what_a_real_one_refuses() -> None:
    reader = ranks.MemoryReader({"a": torch.arange(6.0).view(3, 2)})
    target = torch.zeros(2, 2)
    reader.fill(target, "a", into=(0, 2), shard=Shard(0, 1, 2, 3))
    assert target.tolist() == [[2.0, 3.0], [4.0, 5.0]]
    assert reader.numbers_read == 4
    wrong = [
        ("b", Shard(0, 0, 2, 3), "no tensor 'b'"),
        ("a", Shard(0, 0, 2, 4), "not 4"),
        ("a", None, r"shape \[3, 2\]"),
    ]
    for name, rows, said in wrong:
        with pytest.raises(CheckpointError, match=said):
            reader.fill(target, name, shard=rows)


# --- in the engine -----------------------------------------------------------------------------------------------


def sampled_answers() -> list[list[int]]:
    """Requests that use the sampler, in an engine whose attention is spelled out."""
    how = [SamplingParams(temperature=0.8, top_p=0.9, seed=seed, max_tokens=10, ignore_eos=True) for seed in range(2)]
    with LLM("qwen3-tiny", device="cpu", max_model_len=64, kvcache_block_size=4, num_kvcache_blocks=32) as llm:
        for layer in llm.model_runner.model.attention_layers:
            layer.backend = PlainBackend()
        outputs = llm.generate(["count: 17 18 19 20", "sort: 9 4 7 ->"], how, use_tqdm=False)
    return [output.token_ids for output in outputs]


def test_the_engine_runs_on_the_solutions_of_part_3() -> None:
    wanted = sampled_answers()
    with ExitStack() as stack:
        calls = [stack.enter_context(swap(f"3.{i}", "solutions")) for i in range(1, 9)]
        assert sampled_answers() == wanted
    counts = {name: count for one in calls for name, count in one.items()}
    assert all(counts.values()), counts
    assert sampled_answers() == wanted


def test_two_ranks_run_on_the_solutions() -> None:
    prompts, how = ["count: 17 18 19 20"], SamplingParams(temperature=0, max_tokens=6)
    limits = {"max_model_len": 64, "kvcache_block_size": 4, "num_kvcache_blocks": 32, "device": "cpu"}
    with LLM("qwen3-tiny", **limits) as llm:
        wanted = [output.token_ids for output in llm.generate(prompts, how, use_tqdm=False)]
    pieces = dict.fromkeys(["3.5", "3.6", "3.7"], "solutions")
    with LLM("qwen3-tiny", tensor_parallel_size=2, swap=pieces, **limits) as llm:
        assert [output.token_ids for output in llm.generate(prompts, how, use_tqdm=False)] == wanted
        calls = llm.swap_calls()
    assert {name: [count > 0 for count in by_rank] for name, by_rank in calls.items()} == {n: [True] * 2 for n in calls}
