"""Buckets, padded batches and fused operators, as notebook 41 shows them."""

import xml.etree.ElementTree as ET

import pytest
import torch

from nanovllm import LLM
from nanovllm.course.lessons_part4 import buckets, operators, rows_launched, run_padded, what_a_compiler_sees
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
    assert step.changed_slots == sorted(step.inputs["slot_mapping"][:3])
    after = busy.scheduler.snapshot()
    assert {k: v for k, v in after.items() if k != "decisions"} == {k: v for k, v in before.items() if k != "decisions"}


def test_a_padded_row_that_writes_is_seen(busy: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = DecodeBuffers.fill

    def writes_slot_0(self: DecodeBuffers, *args: object) -> None:
        fill(self, *args)  # type: ignore[arg-type]
        self.device["slot_mapping"][3] = 200

    monkeypatch.setattr(DecodeBuffers, "fill", writes_slot_0)
    assert 200 in run_padded(busy, 4).changed_slots


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
