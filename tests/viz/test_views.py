"""Each view's text equals the live state: it says what the engine's objects hold, and changes when they do."""

import re
import xml.etree.ElementTree as ET
from collections import deque
from collections.abc import Callable

import pytest
import torch

from nanovllm import LLM
from nanovllm.trace import Record, Trace, peek
from nanovllm.viz import (
    Answers,
    AttentionMask,
    BlockPool,
    BlockTables,
    Budgets,
    ChangedSlots,
    Deques,
    HashChain,
    PackedBatch,
    Phases,
    SlotMapping,
    TensorParallelLayer,
    Throughput,
    Timeline,
    View,
)
from nanovllm.viz.panels import PANELS
from nanovllm.viz.theme import stylesheet


def holders(llm: LLM) -> list:
    return [s for s in llm.scheduler.sequences.values() if s.block_table]


# --- equal to the live state -------------------------------------------------------------------------------------


def test_deques_are_the_live_deques(busy: LLM) -> None:
    lines = Deques(peek(busy)).text().splitlines()
    assert lines[0].endswith("-> " + " ".join(str(s.seq_id) for s in busy.scheduler.waiting))
    assert lines[1].endswith("-> " + " ".join(str(s.seq_id) for s in busy.scheduler.running))
    assert [line.strip() for line in lines[2:]] == [d.reason for d in busy.scheduler.decisions]


def test_budgets_count_the_live_blocks_and_holders(busy: LLM) -> None:
    text = Budgets(peek(busy)).text()
    manager = busy.scheduler.block_manager
    assert f"blocks: {manager.num_used_blocks} of {manager.num_blocks}" in text
    assert f"requests: {len(holders(busy))} of {busy.scheduler.max_num_seqs}" in text


def test_block_pool_has_the_live_ref_counts_and_free_list(busy: LLM) -> None:
    text = BlockPool(peek(busy)).text()
    manager = busy.scheduler.block_manager
    for block in manager.blocks:
        if block.ref_count:
            owners = " ".join(str(s.seq_id) for s in holders(busy) if block.block_id in s.block_table)
            assert f"block {block.block_id}: ref count {block.ref_count}, owners {owners}," in text
    assert text.splitlines()[-1] == "free list: " + " ".join(map(str, manager.free_block_ids))
    reusable = [b for b in manager.free_block_ids if b in manager.hash_to_block_id.values()]
    assert re.findall(r"block (\d+): free, reusable", text) == [str(b) for b in sorted(reusable)]


def test_block_tables_are_the_scheduler_s_and_the_device_s(busy: LLM) -> None:
    text = BlockTables(peek(busy)).text()
    for seq in holders(busy):
        assert f"request {seq.seq_id}: {' '.join(map(str, seq.block_table))}" in text
    for i, row in enumerate(busy.model_runner.last_batch.context.block_tables.tolist()):
        assert f"row {i}: {' '.join(map(str, row))}" in text


def test_slot_mapping_is_the_device_tensor(busy: LLM) -> None:
    batch = busy.model_runner.last_batch
    lines = SlotMapping(peek(busy)).text().splitlines()
    assert [int(re.search(r"slot (\d+)", line)[1]) for line in lines] == batch.context.slot_mapping.tolist()
    assert [int(re.search(r"position +(\d+)", line)[1]) for line in lines] == batch.positions.tolist()


def test_packed_batch_is_the_device_tensors(trace: Trace, busy: LLM) -> None:
    view = PackedBatch(peek(busy))
    assert view.heading.startswith("Packed batch of the newest step")  # whose number a look at the engine does not know
    text = view.text()
    batch = busy.model_runner.last_batch
    for name in ("positions", "input_ids"):
        assert f"{name}: {' '.join(map(str, getattr(batch, name).tolist()))}\n" in text
    assert f"context_lens: {' '.join(map(str, batch.context.context_lens.tolist()))}\n" in text


def test_attention_mask_sees_what_the_device_says(busy: LLM) -> None:
    record = peek(busy)
    context, batch = busy.model_runner.last_batch.context, busy.model_runner.last_batch
    for row, seq_id in enumerate(record.tensors.rows):
        head, line = AttentionMask(record, seq_id).text().splitlines()
        keys = context.context_lens.tolist()[row]
        pages = context.block_tables.tolist()[row][: -(-keys // 4)]
        assert head.endswith(f"keys 0..{keys - 1}, pages {' '.join(map(str, pages))}")
        assert line.count("#") == batch.positions.tolist()[row] + 1


def test_hash_chain_is_the_live_prefix_cache(busy: LLM) -> None:
    text = HashChain(peek(busy)).text()
    published = [b for b in busy.scheduler.block_manager.blocks if b.hash is not None]
    assert len(text.splitlines()) == len(published)
    by_content = {b.content_id: b.block_id for b in published}
    for block in published:
        parent = "first" if block.parent_id is None else f"after block {by_content.get(block.parent_id)}"
        if block.parent_id is None or block.parent_id in by_content:
            assert f"block {block.block_id}: {parent}, hash {block.hash:016x}" in text


def test_changed_slots_come_from_the_cache(trace: Trace) -> None:
    for record in trace:
        text = ChangedSlots(record).text()
        names = [f"{s // 4}:{s % 4}" for s in record.changed_slots]
        assert text.splitlines()[0] == "changed: " + (" ".join(names) or "-")
        assert "NOT" not in text


def test_timeline_letters_follow_the_records(trace: Trace) -> None:
    view = Timeline(trace, len(trace) - 1, width=len(trace))
    rows = dict(re.findall(r"request +(\d+) \|(.*)\|", view.text()))
    for step, record in enumerate(trace):
        batch = record.tensors.rows if record.tensors else []
        for name, letters in rows.items():
            assert (letters[step] in "PpdF") == (int(name) in batch)
            preempted = any(n.kind == "preempt" and n.seq_id == int(name) for n in record.decisions)
            assert (letters[step] == "x") == preempted


def test_answers_grow_by_the_sampled_tokens(trace: Trace) -> None:
    last = Answers(trace, len(trace) - 1)
    assert last.parts(0)[0] == "count: 17 18 19 20 ->"
    assert last.parts(0)[1].startswith(" 21 22 23")
    for seq_id, tokens in trace.token_ids.items():
        assert last.known[seq_id] == (len(tokens), "finished")
    assert Answers(trace, 0).known.keys() == set(trace[0].arrivals)


def test_throughput_and_phases_name_the_work(trace: Trace) -> None:
    assert Phases(trace[0]).text() == "schedule -> prepare -> forward -> sample -> postprocess"
    numbers = Throughput(trace).text().removeprefix("tokens a step: ").split()
    assert numbers == [f"{r.num_tokens}{r.kind[0]}" for r in trace][-60:]
    assert "ms" in Phases(trace[0]).text(times=True)


def test_tensor_parallel_layer_counts_the_collectives(trace: Trace) -> None:
    assert "no collectives" in TensorParallelLayer(trace).text()
    header = trace.header | {"tensor_parallel_size": 2}
    two = Trace(header)
    call = {"kind": "all_reduce", "shape": [5, 256], "dtype": "float32", "num_bytes": 5120, "seconds": 1e-4}
    calls = [call | {"where": f"layers.{i}.mlp.down_proj"} for i in range(3)]
    two.lines = [trace.lines[0] | {"col": calls}]
    view = TensorParallelLayer(two)
    assert "3 x all_reduce at mlp.down_proj, shape [5, 256], 5120 bytes each" in view.text()
    assert "15,360 bytes" in view.heading


# --- disturbed ---------------------------------------------------------------------------------------------------


def _swap_waiting(llm: LLM) -> None:
    llm.scheduler.running = deque(reversed(llm.scheduler.running))


def _ref_count(llm: LLM) -> None:
    llm.scheduler.block_manager.blocks[holders(llm)[0].block_table[0]].ref_count += 1


def _free_list(llm: LLM) -> None:
    llm.scheduler.block_manager.free_block_ids.move_to_end(next(iter(llm.scheduler.block_manager.free_block_ids)))


def _slot(llm: LLM) -> None:
    llm.model_runner.last_batch.context.slot_mapping[0] += 1


def _position(llm: LLM) -> None:
    llm.model_runner.last_batch.positions[0] += 1


def _device_table(llm: LLM) -> None:
    llm.model_runner.last_batch.context.block_tables[0, 0] += 1


def _host_table(llm: LLM) -> None:
    holders(llm)[0].block_table[0] += 1


def _context_len(llm: LLM) -> None:
    llm.model_runner.last_batch.context.context_lens[0] -= 1


def _hash(llm: LLM) -> None:
    next(b for b in llm.scheduler.block_manager.blocks if b.hash is not None).hash ^= 1


def _more_seqs(llm: LLM) -> None:
    holders(llm)[0].num_scheduled_tokens += 3


@pytest.mark.parametrize(
    ("view", "disturb"),
    [
        (Deques, _swap_waiting),
        (BlockPool, _ref_count),
        (BlockPool, _free_list),
        (BlockPool, _host_table),
        (BlockTables, _host_table),
        (BlockTables, _device_table),
        (SlotMapping, _slot),
        (SlotMapping, _position),
        (PackedBatch, _position),
        (PackedBatch, _context_len),
        (AttentionMask, _device_table),
        (AttentionMask, _context_len),
        (HashChain, _hash),
        (Budgets, _more_seqs),
        (Budgets, _host_table),
    ],
)
def test_a_disturbed_state_shows(busy: LLM, view: Callable[[Record], View], disturb: Callable[[LLM], None]) -> None:
    scheduler, manager = busy.scheduler, busy.scheduler.block_manager
    running, free = scheduler.running, manager.free_block_ids.copy()
    refs = [b.ref_count for b in manager.blocks]
    hashes = [b.hash for b in manager.blocks]
    tables = {s.seq_id: list(s.block_table) for s in holders(busy)}
    before = view(peek(busy))
    with torch.inference_mode():  # the step's tensors were made there
        disturb(busy)
    try:
        after = view(peek(busy))
        assert after.text() != before.text()
        assert after.svg() != before.svg()
    finally:
        scheduler.running, manager.free_block_ids = running, free
        for block, count, value in zip(manager.blocks, refs, hashes, strict=True):
            block.ref_count, block.hash = count, value
        for seq in holders(busy):
            seq.block_table, seq.num_scheduled_tokens = tables[seq.seq_id], 0


def test_a_stray_write_is_called_out(trace: Trace) -> None:
    record = trace[4]
    stray = next(s for s in range(120) if s not in record.tensors.slot_mapping)
    try:
        record.changed_slots.append(stray)
        view = ChangedSlots(record)
        assert f"1 changed slots are NOT in slot_mapping: {stray}" in view.text()
        rects = [e for e in ET.fromstring(view.svg()).iter() if e.tag.endswith("rect")]
        slot = next(e for e in rects if "is not in slot_mapping" in "".join(e.itertext()))
        assert f".nv .{slot.get('class')}," in stylesheet(), "it would keep its light colour in a dark theme"
    finally:
        record.changed_slots.remove(stray)


# --- pictures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("panel", PANELS, ids=lambda p: p.name)
def test_every_picture_of_every_step_is_sound(trace: Trace, panel) -> None:
    for index in range(0, len(trace), 3):
        view = panel.make(trace, index, None)
        root = ET.fromstring(view.svg())
        assert root.get("role") == "img"
        assert root.get("aria-label") == view.heading
        assert root.find("{http://www.w3.org/2000/svg}desc").text == view.text()
        assert "NaN" not in view.svg()
        assert view.text() == panel.make(trace, index, None).text()
        assert set(view._repr_mimebundle_()) == {"text/plain", "text/html"}


def test_dashed_is_free_and_bold_is_a_hit_in_pool_and_prefix_cache(trace: Trace) -> None:
    seen = {"free": 0, "findable": 0, "hit": 0, "new": 0}
    for record in trace:
        state, hits = record.after, {b for blocks in record.hits().values() for b in blocks}
        owned = set(state.owners())
        picture = ET.fromstring(BlockPool(record).svg())
        cells = {}
        for cell in picture.iterfind(".//{*}rect"):
            words = cell.findtext("{*}title") or ""
            if match := re.match(r"block (\d+): ref count", words):
                cells[int(match[1])] = cell
        assert {b for b, cell in cells.items() if cell.get("stroke-dasharray")} == cells.keys() - owned
        assert {b for b, cell in cells.items() if "nv-s-mark" in cell.get("class", "")} == hits & owned
        findable = {b for b, cell in cells.items() if cell.get("class") == "nv-soft nv-s-muted"}
        assert findable == set(state.reusable) - owned
        corners = [path for path in picture.iterfind(".//{*}path") if path.get("class") == "nv-ink"][:-1]
        before = {b for table in record.before.tables.values() for b in table}
        assert len(corners) == len(owned - before - hits), "the last one is the legend's"
        nodes = dict(re.findall(r"^b(\d+) \[(.*)\];$", HashChain(record).dot(), re.M))
        assert {int(b) for b, look in nodes.items() if "dashed" in look} == state.published.keys() - owned
        assert {int(b) for b, look in nodes.items() if "penwidth=2.4" in look} == state.published.keys() & hits
        for name, found in zip(seen, (cells.keys() - owned, findable, hits, owned - before - hits), strict=True):
            seen[name] += len(found)
    assert min(seen.values()) > 0, seen


def test_a_request_has_one_colour_in_every_view(trace: Trace) -> None:
    found = set()
    for panel in PANELS:
        for group in re.findall(r'<g data-r="3">(.*?)</g>', panel.make(trace, 5, None).svg(style=False)):
            found |= set(re.findall(r'<rect[^>]*class="nv-s(\d)"', group))
    assert found == {"3"}


def test_text_forms_are_the_same_after_loading(trace: Trace, tmp_path) -> None:
    loaded = Trace.load(trace.save(tmp_path / "t.jsonl"))
    for index in (0, 7, 15):
        for panel in PANELS:
            assert panel.make(trace, index, None).text() == panel.make(loaded, index, None).text()


def test_graphs_need_no_graphviz(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    from nanovllm.viz import graph

    def absent(_: str) -> str:
        raise RuntimeError("no Graphviz here")

    view = HashChain(trace[10])
    graph.render.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(graph, "_with_dot", absent)
        for draw in (graph._with_pygraphviz, absent):
            patch.setattr(graph, "_with_pygraphviz", draw)
            graph.render.cache_clear()
            ET.fromstring(view.svg())
        assert "block 0: first" in view.svg(style=False).split("</desc>")[1]
    graph.render.cache_clear()
