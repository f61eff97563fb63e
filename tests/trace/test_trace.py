"""Records equal what the live objects said, in any order of reading, after saving and loading, and small enough."""

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from nanovllm import LLM, SamplingParams
from nanovllm.trace import EventKind, Recorder, Stepper, Trace, difference, explain, save_chrome_trace
from nanovllm.trace.record import PHASES, Record


def check_against_live(record: Record, watched) -> None:
    """Compare a record with the copies that were taken beside the recorder at the end of its step."""
    i, after = record.step, record.after
    scheduler, blocks, tensors = watched.scheduler[i], watched.blocks[i], watched.tensors[i]
    assert after.waiting == scheduler["waiting"]
    assert after.running == scheduler["running"]
    for seq_id, values in scheduler["sequences"].items():
        found = after.sequence(seq_id)
        assert {k: found[k] for k in values if k in found} == {k: v for k, v in values.items() if k in found}
    assert [n.reason for n in record.decisions][-len(scheduler["decisions"]) :] == [
        d["reason"] for d in scheduler["decisions"]
    ]
    assert after.free == blocks["free"]
    assert after.refs == blocks["ref_counts"]
    assert {b: p[0] for b, p in after.published.items()} == blocks["hashes"]
    assert {b: p[4] for b, p in after.published.items() if p[3]} == blocks["cached"]
    if tensors is None:
        assert record.tensors is None
    else:
        assert {name: getattr(record.tensors, name) for name in tensors} == tensors


def test_the_run_has_everything_in_it(watched) -> None:
    kinds = Counter(event.kind for record in watched.trace for event in record.events())
    assert len(watched.trace) == 200
    assert all(kinds[kind] >= 3 for kind in EventKind), kinds


def test_forward_and_backward_replay_equal_the_live_state(watched) -> None:
    stepper = Stepper(watched.trace)
    while not stepper.at_end:
        check_against_live(stepper.forward(), watched)
    assert stepper.position == 199
    while stepper.position:
        check_against_live(stepper.back(), watched)


def test_jumping_about_gives_the_same_records(watched) -> None:
    for i in (150, 3, 199, 64, 31, 32, 0, 90):
        check_against_live(watched.trace[i], watched)


def test_saving_and_loading_changes_nothing(watched, tmp_path: Path) -> None:
    for name in ("run.jsonl", "run.jsonl.gz"):
        loaded = Trace.load(watched.trace.save(tmp_path / name))
        assert all(a == b for a, b in zip(watched.trace, loaded, strict=True))
        assert loaded.token_ids == watched.trace.token_ids
        assert loaded.labels == watched.trace.labels
    for line in (tmp_path / "run.jsonl").read_text().splitlines():
        json.loads(line)


def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"something": "else"}\n')
    with pytest.raises(ValueError, match=r"other\.jsonl"):
        Trace.load(path)


def test_prompts_and_completions_are_told_apart(watched) -> None:
    trace = watched.trace
    assert trace.request_ids == sorted(watched.prompts)
    for seq_id, prompt in watched.prompts.items():
        assert trace.token_ids[seq_id][: trace.num_prompt_tokens[seq_id]] == prompt


def test_steps_join_without_a_gap(watched) -> None:
    for old, new in pairwise(watched.trace):
        gone = {i for i, status in old.after.column("status").items() if status == "finished"}
        assert set(new.before.ids) - set(new.arrivals) == set(old.after.ids) - gone - _aborted(new)


def _aborted(record: Record) -> set[int]:
    return {n.seq_id for n in record.decisions if n.kind == "abort"}


def test_difference_names_exactly_what_changed(watched) -> None:
    record = watched.trace[10]
    assert difference(record, record) == {}
    paths = difference(watched.trace[10], watched.trace[11])
    assert paths["step"] == (10, 11)
    assert all(".".join(p.split(".")[:1]) in Record.__slots__ for p in paths)


def test_changed_slots_are_written_slots(watched) -> None:
    """Every changed slot is in the device's slot mapping; a slot of it that did not change was rewritten as it was."""
    rewritten = 0
    for record in watched.trace:
        if record.tensors is None:
            continue
        mapped = set(record.tensors.slot_mapping)
        assert set(record.changed_slots) <= mapped
        rewritten += len(mapped) - len(record.changed_slots)
    total = sum(r.num_tokens for r in watched.trace)
    assert rewritten < total / 4


def test_a_write_behind_the_mapping_is_seen(llm: LLM) -> None:
    with Recorder(llm, watch_cache=True) as recorder:
        llm.add_request([1, 2, 3], SamplingParams(temperature=0, max_tokens=1))
        runner = llm.model_runner
        keys, _ = runner.cache.layer(0)

        def stray(name: str) -> None:
            if name == "forward":
                keys[35, 3] += 1.0

        inner = runner.on_phase
        runner.on_phase = lambda name: (inner(name), stray(name))
        llm.step()
        runner.on_phase = inner
    record = recorder.trace[0]
    assert 35 * 4 + 3 in record.changed_slots
    assert 35 * 4 + 3 not in record.tensors.slot_mapping


def test_events_and_words(watched) -> None:
    for record in watched.trace:
        words = " ".join(explain(record))
        for note in record.decisions:
            if note.kind in ("preempt", "admit", "finish", "abort", "defer"):
                assert note.reason[1:] in words
        for seq_id, blocks in record.hits().items():
            assert all(record.before.refs[b] > 0 or b in record.before.free for b in blocks), seq_id


def test_run_to_stops_at_the_first_event_of_a_kind(watched) -> None:
    stepper = Stepper(watched.trace)
    for kind in EventKind:
        stepper.seek(0)
        event = stepper.run_to(kind)
        assert event is not None
        assert event.kind is kind
        between = [e for i in range(1, stepper.position) for e in watched.trace[i].events()]
        assert kind not in {e.kind for e in between}
    stepper.seek(199)
    assert stepper.run_to("preemption") is None
    assert stepper.back_to("preemption").kind is EventKind.PREEMPTION


def test_a_live_stepper_steps_back_and_on(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    stepper = Stepper.live(llm)
    try:
        assert stepper.at_end
        llm.add_request([5, 6, 7, 8, 9], params)
        assert stepper.run_to("admission").seq_id == stepper.record.tensors.rows[0]
        first = stepper.record
        stepper.forward()
        assert stepper.back() == first
        assert len(stepper.trace) == 2
        assert stepper.run_to("finish").kind is EventKind.FINISH
        assert stepper.at_end
        assert stepper.forward().step == len(stepper.trace) - 1
    finally:
        stepper.close()
    assert llm.on_event is None


def test_callbacks_are_kept_and_put_back(llm: LLM) -> None:
    seen: list[str] = []
    llm.on_event = seen.append
    try:
        with Recorder(llm) as recorder:
            llm.add_request([1, 2], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
            llm.step()
            with pytest.raises(RuntimeError, match="attached"):
                recorder.attach()
        llm.step()
        assert seen.count("end") == 2
        assert len(recorder.trace) == 1
        assert llm.model_runner.on_phase is None
    finally:
        llm.on_event = None


def test_a_request_cancelled_by_another_hook_after_it_was_scheduled(llm: LLM) -> None:
    """The record's rows are those that ran, and nothing breaks."""
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    ids = [llm.add_request([5 + i, 6, 7], params) for i in range(3)]
    llm.on_event = lambda name: llm.abort(ids[1]) if name == "run" else None
    try:
        with Recorder(llm) as recorder:
            while not llm.is_finished():
                llm.step()
    finally:
        llm.on_event = None
    assert all(record.tensors.rows == [ids[0], ids[2]] for record in (recorder.trace[i] for i in range(4)))


def test_a_failed_step_leaves_no_record(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    with Recorder(llm) as recorder:
        llm.add_request([1, 2, 3], SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
        with monkeypatch.context() as patch:
            patch.setattr(llm.model_runner, "run", lambda *a, **k: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                llm.step()
        assert len(recorder.trace) == 0
        llm.step()
        llm.step()
    assert [r.kind for r in recorder.trace] == ["prefill", "decode"]
    assert len(recorder.trace[0].arrivals) == 1


def test_chrome_export_has_spans_for_steps_phases_and_requests(watched, tmp_path: Path) -> None:
    data = json.loads(save_chrome_trace(watched.trace, tmp_path / "t.json").read_text())
    spans = [e for e in data["traceEvents"] if e["ph"] == "X"]
    assert sum(e["name"].startswith("step ") for e in spans) == 200
    assert {e["name"] for e in spans} >= set(PHASES)
    assert all(e["dur"] >= 0 for e in spans)
    assert any(e["ph"] == "C" and e["name"] == "free blocks" for e in data["traceEvents"])


def test_a_thousand_steps_of_64_requests_fit_in_five_megabytes(tmp_path: Path) -> None:
    """Recorded for 120 steps and scaled; `measure_overhead.py` runs all of them."""
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    with LLM("qwen3-tiny", max_num_seqs=64, num_kvcache_blocks=640, kvcache_block_size=16, max_model_len=128) as llm:
        with Recorder(llm) as recorder:
            for i in range(96):
                llm.add_request([(i * 5 + j) % 300 for j in range(20 + i % 20)], params)
            for _ in range(120):
                llm.step()
        saved = recorder.trace.save(tmp_path / "big.jsonl").stat().st_size
    assert saved * 1000 / 120 < 5e6


def test_device_tables_that_differ_from_the_scheduler_s_are_kept_as_they_are(llm: LLM) -> None:
    """As with a CUDA graph's wide buffers, whose entries past a sequence's end are old ones."""
    seen: list[list[list[int]]] = []
    with Recorder(llm) as recorder:
        llm.add_request(list(range(20)), SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
        llm.add_request(list(range(30, 41)), SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
        llm.add_request(list(range(50, 59)), SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
        inner = llm.on_event

        def stale(name: str) -> None:
            tables = llm.model_runner.last_batch.context.block_tables if name == "end" else None
            if tables is not None:
                with torch.inference_mode():
                    wide = torch.full((tables.shape[0], 12), 7, dtype=tables.dtype)
                    wide[:, : tables.shape[1]] = tables
                object.__setattr__(llm.model_runner.last_batch.context, "block_tables", wide)
                seen.append(wide.tolist())
            inner(name)

        llm.on_event = stale
        while not llm.is_finished():
            llm.step()
        llm.on_event = inner
    found = [r.tensors.block_tables for r in recorder.trace if r.tensors.block_tables is not None]
    assert found == seen
    assert any(isinstance(line["x"].get("block_tables"), dict) for line in recorder.trace.lines)
