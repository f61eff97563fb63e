"""Who calls whom, as notebook 40 shows it."""

import sys
import xml.etree.ElementTree as ET

import pytest

from diagrams.steps import startup
from nanovllm import LLM, SamplingParams
from nanovllm.course.lessons_part4 import STARTUP, STEP, holdings, watched_calls
from nanovllm.scheduler import Scheduler


def test_a_step_schedules_runs_and_postprocesses_in_this_order(busy: LLM) -> None:
    with watched_calls(STEP) as calls:
        busy.step()
    names = calls.names()
    order = ["LLMEngine.step", "Scheduler.schedule", "ModelRunner.run", "Sampler", "Scheduler.postprocess"]
    assert [name for name in names if name in order] == order
    layers = next(call for call in calls.calls if call.short == "Attention.forward")
    assert layers.count == busy.plan.model_config.num_hidden_layers
    assert calls.calls[0].depth == 0
    assert min(call.depth for call in calls.calls[1:]) == 1


def test_the_start_up_diagram_shows_the_order_that_is_taken() -> None:
    with watched_calls(STARTUP) as calls, LLM("qwen3-tiny", device="cpu", num_kvcache_blocks=4):
        pass
    drawn = [dotted for names in startup().code.values() for dotted in names]
    called = [call.name.removesuffix(".__init__") for call in calls.calls]
    assert [name for name in called if name in drawn] == [name for name in drawn if name in called]
    assert len([name for name in called if name in drawn]) >= 8


def test_it_leaves_no_hook_behind_and_none_of_another(busy: LLM) -> None:
    with pytest.raises(ZeroDivisionError), watched_calls(STEP):
        raise ZeroDivisionError
    assert sys.getprofile() is None


def test_a_call_that_raises_does_not_shift_those_after_it(llm: LLM) -> None:
    def fails(scheduler: Scheduler) -> None:
        llm.is_finished()
        raise KeyError

    with watched_calls((LLM.step, Scheduler.schedule, Scheduler.is_finished)) as calls:
        llm.policy = fails
        with pytest.raises(KeyError):
            llm.step()
        llm.policy = None
        llm.step()
    assert [(call.short, call.depth) for call in calls.calls] == [
        ("LLMEngine.step", 0),
        ("Scheduler.is_finished", 1),
        ("LLMEngine.step", 0),
        ("Scheduler.schedule", 1),
    ]


def test_the_picture_is_xml_and_its_text_says_the_same(busy: LLM) -> None:
    with watched_calls(STEP) as calls:
        busy.step()
    root = ET.fromstring(calls.svg())
    shown = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    for call in calls.calls:
        assert any(words.startswith(call.short) for words in shown)
        assert call.short in calls.text()


def test_requests_are_held_by_rank_0_alone() -> None:
    """Two of three requests are unfinished; the third has ended, and rank 1 was told of all three.

    An engine that was refused while it was made, and is still about, is none.
    """
    refused = object.__new__(LLM)
    assert not hasattr(refused, "model_runner")
    with LLM("qwen3-tiny", tensor_parallel_size=2, device="cpu", num_kvcache_blocks=8) as pair:
        for first, length in ((20, 9), (60, 9), (100, 1)):
            tokens = list(range(first, first + 6))
            pair.add_request(tokens, SamplingParams(temperature=0, max_tokens=length, ignore_eos=True))
        pair.step()
        pair.step()
        owner, worker = pair.ranks.call(holdings)
    assert (owner["unfinished requests"], worker["unfinished requests"]) == (2, 0)
    assert sorted(worker["block tables from messages"]) == [0, 1]
    assert owner["block tables from messages"] == {}
