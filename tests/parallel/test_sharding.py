"""The sharded model against the whole one: logits, counts of collectives, bytes read. Ranks are threads here."""

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import tiny_config, write_checkpoint
from safetensors import safe_open
from torch import Tensor

from nanovllm.errors import CollectiveError, ConfigError
from nanovllm.paged_kv.batch import prepare, to_device
from nanovllm.qwen3.config import Qwen3Config
from nanovllm.qwen3.distributed import CollectiveRecorder, DistributedGroup
from nanovllm.qwen3.model import Qwen3ForCausalLM
from nanovllm.qwen3.parallel import CollectiveRecord, TensorParallelGroup, check_divides
from nanovllm.qwen3.placement import Placement
from nanovllm.qwen3.weights import WeightReader
from nanovllm.scheduler.sequence import ScheduledSlice
from parallel.leftovers import State
from parallel.thread_ranks import ThreadSeat, on_ranks

CPU = torch.device("cpu")
EIGHT_HEADS: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8}
CASES: dict[str, dict[str, Any]] = {
    "untied": EIGHT_HEADS,
    "tied": EIGHT_HEADS | {"tie_word_embeddings": True},
    "biased": EIGHT_HEADS | {"attention_bias": True},
    "odd vocabulary": EIGHT_HEADS | {"vocab_size": 261},
    "vocabulary smaller than its padding": EIGHT_HEADS | {"vocab_size": 9, "tie_word_embeddings": True},
    "one kv head": EIGHT_HEADS | {"num_key_value_heads": 1, "attention_bias": True},
}


def build(folder: Path, group: TensorParallelGroup) -> tuple[Qwen3ForCausalLM, WeightReader]:
    config = Qwen3Config.from_folder(folder)
    model = Qwen3ForCausalLM(config, 64, Placement(group=group))
    reader = WeightReader(folder)
    model.load(reader)
    return model, reader


def logits_of(model: Qwen3ForCausalLM, vocab_size: int) -> Tensor | None:
    """Logits of two prompts' last tokens, without a pool."""
    lengths = (7, 5)
    slices = [
        ScheduledSlice(i, [(3 * j + i) % vocab_size for j in range(n)], 0, n, [0, 1]) for i, n in enumerate(lengths)
    ]
    batch = to_device(prepare(slices, True, 4), CPU)
    return model.compute_logits(model(batch.input_ids, batch.positions, batch.context), batch.context)


@pytest.mark.parametrize("name", CASES)
def test_logits_of_any_number_of_ranks_are_those_of_one(name: str, tmp_path: Path) -> None:
    raw = tiny_config(**CASES[name])
    write_checkpoint(tmp_path, raw)
    (expected,) = on_ranks(1, lambda group: logits_of(build(tmp_path, group)[0], raw["vocab_size"]))
    assert expected.shape == (2, raw["vocab_size"])
    for size in (2, 4, 8):
        got, *others = on_ranks(size, lambda group: logits_of(build(tmp_path, group)[0], raw["vocab_size"]))
        assert others == [None] * (size - 1)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_key_value_heads_are_held_by_several_ranks_when_there_are_fewer(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, tiny_config(**EIGHT_HEADS))
    one, _ = build(tmp_path, TensorParallelGroup())
    k_rows = one.decoder_layers[0].self_attn.qkv_proj.weight[64:96]  # 4 heads of 8 rows
    for rank in range(8):
        qkv = build(tmp_path, TensorParallelGroup(rank, 8))[0].decoder_layers[0].self_attn.qkv_proj
        assert (qkv.num_heads, qkv.num_kv_heads, qkv.first_kv_head) == (1, 1, rank // 2)
        assert torch.equal(qkv.weight[8:16], k_rows[rank // 2 * 8 : rank // 2 * 8 + 8])


# --- collectives ----------------------------------------------------------------------------------------------------


def test_a_step_has_one_all_reduce_after_the_embedding_two_a_layer_and_one_gather(tmp_path: Path) -> None:
    raw = tiny_config(**EIGHT_HEADS, num_hidden_layers=3)
    write_checkpoint(tmp_path, raw)

    def work(group: TensorParallelGroup) -> list[CollectiveRecord]:
        model, _ = build(tmp_path, group)
        assert isinstance(group, DistributedGroup)
        logits_of(model, 264)  # off: nothing is noted
        group.recorder = CollectiveRecorder()
        logits_of(model, 264)
        group.recorder.start_step()
        logits_of(model, 264)
        return group.recorder.records

    seats = [ThreadSeat(rank, 2) for rank in range(2)]
    for records in on_ranks(2, work, seats):
        layers = [f"layers.{i}.{part}" for i in range(3) for part in ("self_attn.o_proj", "mlp.down_proj")]
        assert [r.where for r in records] == ["embed_tokens", *layers, "lm_head"]
        assert [r.kind for r in records] == ["all_reduce"] * 7 + ["gather"]
        assert {r.shape for r in records[:7]} == {(12, 32)}
        assert {r.num_bytes for r in records[:7]} == {12 * 32 * 4}
        assert (records[7].shape, records[7].num_bytes, records[7].dtype) == ((2, 132), 2 * 132 * 4, "float32")
        assert all(r.seconds is not None and 0 < r.seconds < 10 for r in records)
    assert [(s.entered, s.left) for s in seats] == [(25, 25)] * 2  # the probe of `connect`, and three times eight


def test_gathered_shards_come_in_rank_order() -> None:
    def work(group: TensorParallelGroup) -> list[list[float]] | None:
        parts = group.gather(torch.full((2, 3), float(group.rank)), "here")
        return None if parts is None else [p[0].tolist() for p in parts]

    assert on_ranks(4, work) == [[[0.0] * 3, [1.0] * 3, [2.0] * 3, [3.0] * 3], None, None, None]


def test_all_ranks_hold_the_same_sum_to_the_last_bit() -> None:
    def work(group: TensorParallelGroup) -> Tensor:
        generator = torch.Generator().manual_seed(group.rank)
        return group.all_reduce(torch.randn(50, 33, generator=generator), "here")

    first, *others = on_ranks(4, work)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_adds_up(dtype: torch.dtype) -> None:
    results = on_ranks(2, lambda group: group.all_reduce(torch.full((3, 5), group.rank + 1.0, dtype=dtype), "here"))
    assert all(r.dtype is dtype and bool((r == 3).all()) for r in results)


def test_two_groups_in_one_process_do_not_mix() -> None:
    def work(group: TensorParallelGroup) -> list[float]:
        return [
            on_ranks(2, lambda inner: inner.all_reduce(torch.ones(1) * 10, "inner").item())[0],
            group.all_reduce(torch.ones(1), "outer").item(),
        ]

    assert on_ranks(2, work) == [[20.0, 2.0]] * 2


def test_a_group_leaves_no_port_and_listens_on_loopback_only() -> None:
    import psutil

    before = State()

    def work(group: TensorParallelGroup) -> set[str]:
        listening = [c for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        group.all_reduce(torch.ones(1), "wait for each other")
        return {c.laddr.ip for c in listening if c.laddr.port not in before.ports}

    assert on_ranks(2, work)[0] == {"127.0.0.1"}
    before.assert_restored()


def test_a_collective_without_a_connection_says_so() -> None:
    group = DistributedGroup(ThreadSeat(1, 2), CPU, 1)
    with pytest.raises(CollectiveError, match="rank 1 is not connected"):
        group.all_reduce(torch.ones(1), "here")


# --- bytes and refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_reads_its_share_of_the_sharded_tensors_and_the_whole_of_the_others(
    size: int, shards: int, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, tiny_config(**EIGHT_HEADS), shards=shards)
    sharded = whole = 0
    for file in tmp_path.glob("*.safetensors"):
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118
                if "norm" in key:
                    whole += tensors.get_tensor(key).nbytes
                else:
                    sharded += tensors.get_tensor(key).nbytes
    for rank in range(size):
        read = build(tmp_path, TensorParallelGroup(rank, size))[1].bytes_read - whole
        assert abs(read - sharded / size) <= 0.02 * sharded / size


@pytest.mark.parametrize(
    ("sizes", "ranks", "message"),
    [
        ((6, 2, 48), 4, "4 does not divide the 6 attention heads"),
        ((12, 3, 48), 2, "2 does not divide the 3 key/value heads"),
        ((12, 3, 48), 4, "4 is neither a divisor nor a multiple of the 3 key/value heads"),
        ((8, 4, 50), 4, "4 does not divide the 50 features"),
    ],
)
def test_sizes_that_ranks_cannot_share_are_refused(sizes: tuple[int, int, int], ranks: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_divides(*sizes, ranks)
