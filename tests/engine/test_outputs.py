"""What comes back: text, ids, reasons, metrics; and when a request ends."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import EOS_ID, greedy, make_llm, run_to_end, tiny_config, token_ids_of, write_checkpoint

from nanovllm import LLM, RequestOutput, SamplingParams
from nanovllm.engine.metrics import RequestMetrics
from nanovllm.engine.requests import encode_all
from nanovllm.engine.texts import decode_all
from nanovllm.errors import RequestError

Prompts = list[list[int]]


def test_an_output_answers_as_object_and_as_dictionary(llm: LLM) -> None:
    output = llm.generate(["hello"], greedy(5), use_tqdm=False)[0]
    assert isinstance(output, RequestOutput)
    assert output["text"] == output.text == llm.tokenizer.decode(output.token_ids, skip_special_tokens=True)
    assert output["token_ids"] == output.token_ids
    assert output.keys() == [
        "request_id", "prompt", "prompt_token_ids", "text", "token_ids", "finish_reason", "metrics",
    ]  # fmt: skip
    assert dict(output)["finish_reason"] == "length"
    assert output.prompt == "hello"
    assert output.prompt_token_ids == llm.tokenizer.encode("hello")
    with pytest.raises(KeyError, match="a request output has no 'txt'; it has request_id, prompt"):
        output["txt"]
    assert json.loads(json.dumps(output.to_dict()))["metrics"]["num_completion_tokens"] == 5


def test_prompts_of_token_ids_have_no_text(llm: LLM, prompts: Prompts) -> None:
    output = llm.generate(prompts[:1], greedy(1), use_tqdm=False)[0]
    assert output.prompt is None
    assert output.prompt_token_ids == prompts[0]


def test_text_and_its_token_ids_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.tokenizer.encode("the same prompt")
    outputs = llm.generate(["the same prompt", ids], greedy(9), use_tqdm=False)
    assert outputs[0].token_ids == outputs[1].token_ids
    assert outputs[0].text == outputs[1].text


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_max_tokens_is_exact(llm: LLM, prompts: Prompts, max_tokens: int, temperature: float) -> None:
    """The last one is not lost."""
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, ignore_eos=True)
    for output in llm.generate(prompts, params, use_tqdm=False):
        assert len(output.token_ids) == max_tokens
        assert output.finish_reason == "length"
        assert output.metrics.num_completion_tokens == max_tokens


def test_each_prompt_has_its_own_parameters(llm: LLM, prompts: Prompts, expected: Prompts) -> None:
    params = [greedy(n) for n in (3, 1, 5)]
    assert token_ids_of(llm.generate(prompts[:3], params, use_tqdm=False)) == [
        expected[0][:3],
        expected[1][:1],
        expected[2][:5],
    ]


def test_without_parameters_the_defaults_hold(llm: LLM) -> None:
    """64 tokens at most, sampled."""
    output = llm.generate(["x"], use_tqdm=False)[0]
    assert 1 <= len(output.token_ids) <= SamplingParams().max_tokens == 64


def test_stop_token_ids(llm: LLM, prompts: Prompts, expected: Prompts) -> None:
    """The stop token is kept, as EOS is; ignore_eos does not ignore it."""
    stop = expected[5][4]
    first = expected[5].index(stop)
    params = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True, stop_token_ids=[263, stop])
    output = llm.generate([prompts[5]], params, use_tqdm=False)[0]
    assert output.token_ids == expected[5][: first + 1]
    assert output.finish_reason == "stop"


def eos_checkpoint(folder: Path, eos: object, in_config: object = None) -> Path:
    """The tiny checkpoint with end-of-sequence ids in generation_config.json, config.json or both."""
    generation = None if eos is None else {"eos_token_id": eos}
    return write_checkpoint(folder, tiny_config(eos_token_id=in_config), tokenizer=True, generation_config=generation)


@pytest.mark.parametrize("as_list", [True, False])
def test_eos_of_the_generation_config(tmp_path: Path, prompts: Prompts, expected: Prompts, as_list: bool) -> None:
    """One id or a list; config.json's is then not asked; the first of them to be sampled ends the request."""
    eos = expected[5][6]
    first = expected[5].index(eos)
    unrelated = expected[5][1]
    with make_llm(eos_checkpoint(tmp_path, [261, eos] if as_list else eos, in_config=unrelated)) as llm:
        stopping = SamplingParams(temperature=0, max_tokens=14)
        output, ignoring = llm.generate([prompts[5]] * 2, [stopping, greedy(14)], use_tqdm=False)
        assert llm.scheduler.eos_token_ids >= {eos, EOS_ID}
        assert unrelated not in llm.scheduler.eos_token_ids
    assert output.token_ids == expected[5][: first + 1]
    assert output.finish_reason == "stop"
    assert ignoring.token_ids == expected[5]
    assert ignoring.finish_reason == "length"


def test_eos_of_the_config(tmp_path: Path, prompts: Prompts, expected: Prompts) -> None:
    """config.json's is used when there is no generation_config.json."""
    eos = expected[5][6]
    with make_llm(eos_checkpoint(tmp_path, None, in_config=eos)) as llm:
        output = llm.generate([prompts[5]], SamplingParams(temperature=0, max_tokens=14), use_tqdm=False)[0]
    assert output.token_ids == expected[5][: expected[5].index(eos) + 1]


def test_eos_as_the_last_allowed_token_is_a_stop(tmp_path: Path, prompts: Prompts, expected: Prompts) -> None:
    eos = expected[5][6]
    first = expected[5].index(eos)
    with make_llm(eos_checkpoint(tmp_path, eos)) as llm:
        output = llm.generate([prompts[5]], SamplingParams(temperature=0, max_tokens=first + 1), use_tqdm=False)[0]
    assert (output.finish_reason, len(output.token_ids)) == ("stop", first + 1)


def test_special_tokens_are_not_in_the_text(llm: LLM, prompts: Prompts) -> None:
    """So hot that every token of the vocabulary comes."""
    params = SamplingParams(temperature=1000.0, max_tokens=500, ignore_eos=True, seed=0)
    output = llm.generate([prompts[0]], params, use_tqdm=False)[0]
    assert EOS_ID in output.token_ids
    assert "<|im_end|>" not in output.text


@pytest.mark.parametrize(("limit", "room"), [(32, 2), (31, 1), (44, 14)])
def test_max_model_len_ends_a_request(tiny: Path, prompts: Prompts, expected: Prompts, limit: int, room: int) -> None:
    """Prompt and completion together; the answer is cut, not changed."""
    with make_llm(tiny, max_model_len=limit) as llm:
        output = llm.generate([prompts[5]], greedy(10_000), use_tqdm=False)[0]
    assert output.token_ids == expected[5][:room]
    assert output.finish_reason == "length"


def test_max_model_len_is_clipped_to_the_checkpoint(tiny: Path) -> None:
    with make_llm(tiny, max_model_len=100_000) as llm:
        assert llm.plan.max_model_len == llm.scheduler.max_model_len == 512


def test_the_formulas_of_the_metrics() -> None:
    metrics = RequestMetrics(arrival_time=10.0, first_token_time=12.0, finish_time=20.0, num_completion_tokens=5)
    assert metrics.ttft == 2.0
    assert metrics.e2e_latency == 10.0
    assert metrics.tpot == 2.0  # (20 - 12) / (5 - 1)
    assert RequestMetrics(10.0, 12.0, 12.0, num_completion_tokens=1).tpot is None
    assert RequestMetrics(10.0).ttft is None
    assert RequestMetrics(10.0).tpot is None
    assert RequestMetrics(10.0).e2e_latency is None


def test_the_metrics_of_a_request(tiny: Path, prompts: Prompts) -> None:
    """Counts are those of the request, and its times follow each other, across preemption too."""
    with make_llm(tiny, num_kvcache_blocks=16) as llm:
        for n in (5, 4):
            llm.add_request(prompts[n], greedy(14))
        outputs = run_to_end(llm)
        for i, n in enumerate((5, 4)):
            m = outputs[i].metrics
            assert m.first_token_time is not None
            assert m.finish_time is not None
            assert m.arrival_time <= m.first_token_time <= m.finish_time
            assert (m.num_prompt_tokens, m.num_completion_tokens) == (len(prompts[n]), 14)
            assert m.tpot == pytest.approx((m.finish_time - m.first_token_time) / 13)
        assert (outputs[0].metrics.num_preemptions, outputs[1].metrics.num_preemptions) == (0, 1)


def test_a_preempted_request_keeps_the_time_of_its_first_token(tiny: Path, prompts: Prompts) -> None:
    with make_llm(tiny, num_kvcache_blocks=16) as llm:
        ids = [llm.add_request(prompts[n], greedy(14)) for n in (5, 4)]
        llm.step()
        first = llm._metrics[ids[1]].first_token_time
        assert first is not None
        assert run_to_end(llm)[ids[1]].metrics.first_token_time == first


def test_a_step_says_what_it_did(tiny: Path, prompts: Prompts, expected: Prompts) -> None:
    with make_llm(tiny, max_num_batched_tokens=25) as llm:
        first, second = (llm.add_request(prompts[n], greedy(2)) for n in (4, 3))
        step = llm.step()
        assert (step.is_prefill, step.num_seqs, step.num_tokens) == (True, 2, 25)
        assert step.new_tokens == [(first, expected[4][0])]
        step = llm.step()
        assert (step.is_prefill, step.num_seqs, step.num_tokens) == (True, 1, 4)
        assert step.new_tokens == [(second, expected[3][0])]
        step = llm.step()
        assert (step.is_prefill, step.num_seqs, step.num_tokens) == (False, 2, 2)
        assert step.new_tokens == [(first, expected[4][1]), (second, expected[3][1])]
        assert [o.request_id for o in step.finished] == [first, second]
        step = llm.step()
        assert (step.num_seqs, step.num_tokens, step.new_tokens, step.finished) == (0, 0, [], [])


def test_the_events_of_a_step(llm: LLM) -> None:
    events: list[str] = []
    llm.on_event = events.append
    llm.model_runner.on_phase = events.append
    llm.generate([[1, 2]], greedy(1), use_tqdm=False)
    assert events == ["begin", "schedule", "run", "prepare", "forward", "sample", "postprocess", "end"]


def test_requests_queued_earlier_wait_in_uncollected(llm: LLM, prompts: Prompts, expected: Prompts) -> None:
    earlier = llm.add_request(prompts[1], greedy(3))
    outputs = llm.generate([prompts[2]], greedy(14), use_tqdm=False)
    assert token_ids_of(outputs) == [expected[2]]
    assert llm.uncollected[earlier].token_ids == expected[1][:3]


def test_chat_is_generate_on_the_template(llm: LLM) -> None:
    """One conversation or several; the template's options are passed on."""
    talk = [{"role": "user", "content": "hi"}]
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    wanted = llm.generate([text], greedy(6), use_tqdm=False)[0]
    assert wanted.prompt_token_ids[0] == EOS_ID - 1
    one = llm.chat(talk, greedy(6))
    several = llm.chat([talk, talk], greedy(6))
    assert [o.token_ids for o in one + several] == [wanted.token_ids] * 3
    assert [o.prompt for o in one + several] == [text] * 3


def test_the_progress_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    """On by default, with both rates; off on request."""
    llm.generate(["a", "b"], greedy(3), use_tqdm=False)
    assert capsys.readouterr().err == ""
    llm.generate(["a", "b"], greedy(3))
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "Prefill=" in shown
    assert "Decode=" in shown


def test_prompts_that_are_encoded_at_once_are_those_encoded_alone() -> None:
    """Texts among token ids, the empty one, characters of many bytes; and a tokenizer that has a way of its own."""
    with LLM("qwen3-tiny", device="cpu") as llm:
        prompts: list[Any] = ["copy a b", [1, 2], "", "\N{SNOWMAN} \N{GRINNING FACE}", "count 1 2 " * 40]
        tokenizer = llm.tokenizer
        alone = [tokenizer.encode(p) if isinstance(p, str) else p for p in prompts]
        assert encode_all(prompts, tokenizer) == alone
        assert encode_all(prompts[:2], tokenizer) == prompts[:2], "one text is left to the check of its request"
        assert encode_all(prompts, None) is prompts
        with pytest.raises(RequestError, match="not valid Unicode text"):
            encode_all(["a", "\udc80"], tokenizer)
        outputs = llm.generate([*prompts[:2], *prompts[3:]], SamplingParams(max_tokens=1), use_tqdm=False)
        assert [o.prompt for o in outputs] == ["copy a b", None, *prompts[3:]]
        assert [o.prompt_token_ids for o in outputs] == [*alone[:2], *alone[3:]]

        class Whispering(type(tokenizer)):  # type: ignore[misc]
            def encode(self, text: str, **kwargs: Any) -> list[int]:
                return list(super().encode(text.lower(), **kwargs))

        tokenizer.__class__ = Whispering
        outputs = llm.generate(["COPY", "A"], SamplingParams(max_tokens=1), use_tqdm=False)
        assert [o.prompt_token_ids for o in outputs] == [tokenizer.encode("copy"), tokenizer.encode("a")]


def test_texts_that_are_decoded_at_once_are_those_decoded_alone() -> None:
    """With special tokens left out, bytes that are half a character, and a tokenizer that has a way of its own."""
    with LLM("qwen3-tiny", device="cpu") as llm:
        tokenizer, vocab_size = llm.tokenizer, llm.plan.model_config.vocab_size
        rows = [[(7 * i + j * j) % vocab_size for j in range(i)] for i in range(40)]
        alone = [tokenizer.decode(row, skip_special_tokens=True) for row in rows]
        assert decode_all(rows, tokenizer) == alone
        assert decode_all(rows[5:6], tokenizer) == alone[5:6]
        assert decode_all(rows, None) == [""] * 40

        class Shouting(type(tokenizer)):  # type: ignore[misc]
            def decode(self, *args: Any, **kwargs: Any) -> str:
                return str(super().decode(*args, **kwargs)).upper()

        tokenizer.__class__ = Shouting
        assert decode_all(rows, tokenizer) == [text.upper() for text in alone]
        outputs = llm.generate(["count 1 2 3"] * 3, SamplingParams(max_tokens=4, temperature=0), use_tqdm=False)
        assert [o.text for o in outputs] == [tokenizer.decode(o.token_ids, skip_special_tokens=True) for o in outputs]
