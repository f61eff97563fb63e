"""On a GPU: what the views show is the device's own tensors, and the changed slots agree with them."""

from collections.abc import Iterator

import pytest

from nanovllm import LLM
from nanovllm.trace import Recorder
from nanovllm.trace.workload import arrivals, small_llm, task_prompts
from nanovllm.viz import ChangedSlots, SlotMapping

pytestmark = pytest.mark.gpu(count=1)


@pytest.fixture(params=["graphs", "eager"])
def gpu_llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with small_llm(device="cuda", enforce_eager=request.param == "eager") as llm:
        yield llm


def test_slot_mapping_and_changed_slots_agree_with_the_device(gpu_llm: LLM) -> None:
    pending = sorted(arrivals(task_prompts()), key=lambda a: a.step)
    device: list[list[int]] = []
    buckets: list[int | None] = []
    with Recorder(gpu_llm, watch_cache=True) as recorder:
        step = 0
        while pending or not gpu_llm.is_finished():
            while pending and (pending[0].step <= step or gpu_llm.is_finished()):
                arrival = pending.pop(0)
                gpu_llm.add_request(arrival.prompt, arrival.params)
            gpu_llm.step()
            slots = gpu_llm.model_runner.last_batch.context.slot_mapping
            assert slots.device.type == "cuda"
            device.append(slots.cpu().tolist())
            buckets.append(gpu_llm.model_runner.last_graph_size)
            step += 1
    written: set[int] = set()
    for record, mapping, bucket in zip(recorder.trace, device, buckets, strict=True):
        assert record.tensors.slot_mapping == mapping
        assert record.tensors.graph_bucket == bucket
        lines = SlotMapping(record).text().splitlines()
        assert [int(line.split("slot ")[1].split()[0]) for line in lines] == mapping
        changed = set(record.changed_slots)
        assert changed <= set(mapping)
        assert changed >= set(mapping) - written  # a slot that nobody wrote before must change
        assert "NOT" not in ChangedSlots(record).text()
        written |= set(mapping)
    assert any(buckets) == (not gpu_llm.config.enforce_eager)
