"""Buckets, padded batches and fused operators, as notebook 41 shows them."""

import xml.etree.ElementTree as ET

import pytest
import torch

from nanovllm import LLM, SamplingParams
from nanovllm.course.exercise import Variant
from nanovllm.course.lessons_part4 import buckets, operators, rows_launched, run_padded, what_a_compiler_sees
from nanovllm.course.registry import get_exercise
from nanovllm.course.swap import swap
from nanovllm.course.variants import build
from nanovllm.paged_kv.cuda_graphs import DecodeBuffers
from nanovllm.viz.buckets import Buckets


def test_the_chooser_is_the_engines() -> None:
    graphs = buckets(40)
    assert graphs.sizes == [1, 2, 4, 8, 16, 32, 40]
    assert [graphs.padded_size(n) for n in (1, 3, 9, 33)] == [1, 4, 16, 40]


def test_padding_is_counted_by_hand() -> None:
    shown = Buckets([1, 2, 4])  # batches 1, 2, 3, 4 take 1, 2, 4, 4 rows
    assert [shown.bucket(n) for n in (1, 2, 3, 4)] == [1, 2, 4, 4]
    assert shown.mean_padding == pytest.approx(1 - 10 / 11)
    assert "batches 3 to 4" in shown.text()
    ET.fromstring(shown.svg())


def test_many_sizes_are_shortened_in_the_text() -> None:
    assert "... " in Buckets(buckets(512).sizes).text()


def test_padded_rows_do_no_harm(busy: LLM) -> None:
    before = busy.scheduler.snapshot()
    step = run_padded(busy, 4)
    assert step.same_hidden
    assert step.written_slots == sorted(step.inputs["slot_mapping"][:3])
    after = busy.scheduler.snapshot()
    assert {k: v for k, v in after.items() if k != "decisions"} == {k: v for k, v in before.items() if k != "decisions"}


def test_written_slots_are_seen_where_both_runs_store_the_same_bits(busy: LLM) -> None:
    """Three rows padded to three are the same step, and a second look finds what the first one stored."""
    for _ in range(2):
        step = run_padded(busy, 3)
        assert step.same_hidden
        assert step.written_slots == sorted(step.inputs["slot_mapping"])


def test_the_pool_is_left_as_it_was(busy: LLM) -> None:
    assert busy.model_runner.cache is not None
    before = busy.model_runner.cache.tensor.clone()
    run_padded(busy, 4)
    assert torch.equal(busy.model_runner.cache.tensor, before)


@pytest.mark.parametrize("slot", [0, 200])  # slot 0 is a real one, of the first request
def test_a_padded_row_that_writes_is_seen(busy: LLM, monkeypatch: pytest.MonkeyPatch, slot: int) -> None:
    fill = DecodeBuffers.fill

    def writes_the_slot(self: DecodeBuffers, *args: object) -> None:
        fill(self, *args)  # type: ignore[arg-type]
        self.device["slot_mapping"][3] = slot

    monkeypatch.setattr(DecodeBuffers, "fill", writes_the_slot)
    for _ in range(2):
        step = run_padded(busy, 4)
        assert step.written_slots == sorted([slot, *step.inputs["slot_mapping"][:3]])


def test_a_padded_row_is_seen_that_stores_what_the_slot_holds(busy: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    busy.add_request([0, *range(140, 150)], SamplingParams(temperature=0, max_tokens=20))
    busy.step()
    held = busy.scheduler.running[-1].block_table[0] * 4  # token 0 at position 0, which is what a padded row computes
    fill = DecodeBuffers.fill

    def writes_the_slot(self: DecodeBuffers, *args: object) -> None:
        fill(self, *args)  # type: ignore[arg-type]
        self.device["slot_mapping"][4] = held

    monkeypatch.setattr(DecodeBuffers, "fill", writes_the_slot)
    assert held in run_padded(busy, 5).written_slots


def outcome(llm: LLM) -> tuple[object, ...]:
    """What the exercise cell of notebook 41 prints of a padded run; the name of the error where it does not get so far.

    Slots that change from test to test are told by whether they are the real rows' own.
    """
    try:
        step = run_padded(llm, 4)
    except (IndexError, ValueError, RuntimeError) as error:
        return (type(error).__name__,)
    slots, lens = step.inputs["slot_mapping"], step.inputs["context_lens"]
    return slots[3:], lens, len(step.written_slots), step.written_slots == sorted(slots[:3]), step.same_hidden


PADDING = [bug for bug in get_exercise("4.3").bugs if bug.function == "write_padded"]


@pytest.mark.parametrize("bug", PADDING, ids=lambda bug: bug.about)
def test_the_planted_bugs_of_the_exercise_are_seen(busy: LLM, bug: Variant) -> None:
    right = ([-1], [12, 12, 12, 0], 3, True, True)
    assert outcome(busy) == right
    for _ in range(2):
        with swap("4.3", build(get_exercise("4.3"), bug)):
            assert outcome(busy) != right
    assert outcome(busy) == right


def test_a_batch_that_does_not_fit_is_refused(busy: LLM) -> None:
    with pytest.raises(ValueError, match="0 requests wait and 3 run: none may wait and 1 to 2 must run"):
        run_padded(busy, 2)


def test_launched_rows_are_counted_and_the_runner_is_left_as_it_was(busy: LLM) -> None:
    with rows_launched(busy) as rows:
        busy.step()
    assert rows == [3]
    assert "launch" not in vars(busy.model_runner)


def test_operators_and_their_traffic() -> None:
    x = torch.ones(4, 8)
    names, num_bytes = operators(lambda a: a + a, x)
    assert names == ["add.Tensor"]
    assert num_bytes == 3 * 4 * 8 * 4
    assert what_a_compiler_sees(lambda a: (a + 1) * 2, x) == ["add", "mul"]
