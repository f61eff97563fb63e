"""The views of parts 2 and 3: what they say is what they were given, and their pictures are well formed."""

import math
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from nanovllm import LLM
from nanovllm.course.lessons_part2 import cache_spec, compute, look, qwen3_0_6b, spell
from nanovllm.course.lessons_part3 import shard_model
from nanovllm.paged_kv.memory import MemoryBudget
from nanovllm.scheduler import BlockManager, Sequence
from nanovllm.viz import BlockPool, HashChain, View
from nanovllm.viz.layer import LayerCall, LayerFlow
from nanovllm.viz.manager import ManagerChain, ManagerPool
from nanovllm.viz.memory import MemoryMap
from nanovllm.viz.rotary import RotaryDials
from nanovllm.viz.sampling import Odds
from nanovllm.viz.shards import Read, ShardMap

GIB = 2**30


def well_formed(view: View) -> None:
    """A picture that parses, tells its text as its description, and shows both forms in a notebook."""
    root = ET.fromstring(view.svg())
    assert root[0].text == view.text()
    assert set(view._repr_mimebundle_()) == {"text/plain", "text/html"}


# --- a block manager by itself -----------------------------------------------------------------------------------


def test_the_pool_of_a_manager_is_its_live_state() -> None:
    manager = BlockManager(6, 4)
    sat, ran = (Sequence(i, spell(f"the cat {word}"), block_size=4) for i, word in enumerate(("sat", "ran")))
    manager.allocate(sat)
    compute(manager, sat)
    first = look(manager, [sat])
    manager.allocate(ran)
    record = look(manager, [sat, ran], first)
    lines = BlockPool(record).text().splitlines()
    assert lines[0] == "block 0: ref count 2, owners 0 1, full, published"
    assert lines[3] == "block 3: ref count 1, owners 1, 0 of 4 slots"
    assert lines[-1] == "free list: 4 5"
    assert record.hits() == {1: [0, 1]}
    assert record.allocated() == {1: [3]}
    assert "'the·', owners 0 1, hit by 1" in HashChain(record).text()
    assert first.after.refs == [1, 1, 1, 0, 0, 0]  # the earlier record did not change with the manager
    for view in (ManagerPool(record), ManagerChain(record)):
        well_formed(view)
        assert "step" not in view.heading
    assert ManagerPool(record).text() == BlockPool(record).text()
    assert ManagerPool(record).draw()[1] < BlockPool(record).draw()[1]


# --- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [8, 24, 141])
@pytest.mark.parametrize("utilization", [0.5, 0.9])
def test_the_memory_map_has_the_budgets_blocks_and_the_whole_card(total: int, utilization: float) -> None:
    config = qwen3_0_6b()
    weights = config.num_parameters * 2
    budget = MemoryBudget(total * GIB, total * GIB - weights - GIB, weights, GIB // 2, GIB // 4, utilization)
    spec = cache_spec(config)
    view = MemoryMap(budget, spec)
    assert view.num_blocks == budget.blocks(spec, None)
    assert sum(size for _, size in view.parts()) == budget.total
    well_formed(view)


def test_a_card_without_room_has_no_blocks() -> None:
    view = MemoryMap(MemoryBudget(2 * GIB, GIB, GIB, GIB, 0, 0.9), cache_spec(qwen3_0_6b()))
    assert view.num_blocks == 0
    well_formed(view)


def test_qwen3_0_6b_is_what_was_published() -> None:
    """751 million weights with an untied head; tied, as it is, 596 million. 28 MiB a block of 256 tokens."""
    config = qwen3_0_6b()
    assert config.num_parameters == 596_049_920
    assert cache_spec(config).bytes_per_block == 28 * 2**20
    assert cache_spec(config, ranks=8).num_kv_heads == 1


# --- rotary angles -----------------------------------------------------------------------------------------------


def test_dials_show_the_models_own_angles(llm: LLM) -> None:
    rotary = llm.model_runner.model.rotary
    view = RotaryDials(rotary.cos_sin, [0, 3, 50], [0, 1, 31])
    theta = llm.plan.model_config.rope_theta
    for position, row in zip([0, 3, 50], view.degrees(), strict=True):
        wanted = [math.degrees(position * theta ** (-2 * pair / 64)) % 360 for pair in (0, 1, 31)]
        assert row == [round(angle) % 360 for angle in wanted]
    well_formed(view)


# --- sampling ----------------------------------------------------------------------------------------------------


def test_odds_say_what_is_cut_and_what_was_drawn() -> None:
    probs, full = torch.tensor([0.0, 0.75, 0.0, 0.25]), torch.tensor([0.1, 0.6, 0.1, 0.2])
    view = Odds(probs, names=[" a", "b", "c", "d"], full=full, counts=torch.tensor([0, 7, 0, 3]))
    rows = view.text().splitlines()
    assert rows[0].split() == ["b", "75%", "#" * 30, "drawn", "7", "times"]
    assert rows[1].split()[:2] == ["d", "25%"]
    assert rows[2].split() == ["·a", "cut", "drawn", "0", "times"]
    assert "2 of 4 tokens" in view.heading
    well_formed(view)


def test_odds_show_the_likeliest_only() -> None:
    view = Odds(torch.arange(1, 101).float() / 5050, limit=3)
    assert [row.split()[0] for row in view.text().splitlines()] == ["99", "98", "97"]


# --- a layer, and its shards -------------------------------------------------------------------------------------


def test_a_layers_flow_names_shapes_and_weights() -> None:
    calls = [
        LayerCall("norm", "rms_norm", (3, 8), (3, 8), (8,)),
        LayerCall("attn", "attend", (3, 24), (3, 2, 4)),
        LayerCall("norm2", "add_rms_norm", (3, 8), (3, 8), (8,), residual=True),
    ]
    view = LayerFlow(calls)
    assert view.text().splitlines()[1].endswith("[3, 24] -> [3, 2, 4]")
    assert "3 operations on 3 tokens" in view.heading
    well_formed(view)


def test_a_shard_map_counts_bytes_by_rank() -> None:
    reads = [Read(r, "model.layers.0.mlp.up_proj.weight", (8, 4), 0, r * 4, 4, (0, 4), 32) for r in range(2)]
    reads += [Read(r, "model.norm.weight", (4,), None, 0, 4, None, 8) for r in range(2)]
    view = ShardMap(reads)
    assert view.bytes_of(0) == view.bytes_of(1) == 40
    assert "rank 1: rows 4..7, into rows 0..3, 32 bytes" in view.text()
    assert "rank 1: all, 8 bytes" in view.text()
    well_formed(view)


def test_a_shard_map_of_the_shipped_checkpoint(llm: LLM) -> None:
    folder: Path = llm.plan.folder
    reads = [read for rank in range(4) for read in shard_model(folder, rank, 4)[1] if ".layers.0." in read.name]
    well_formed(ShardMap(reads))
