"""Traces: three formats, and refusals that name the line."""

from pathlib import Path

import pytest

from nanovllm.errors import ConfigError
from nanovllm.serve.load_plan import LoadPlan
from nanovllm.serve.trace_file import Arrival, read_trace

OURS = "arrival,prompt_tokens,completion_tokens\n2.5,10,3\n1.0,20,4\n"
MOONCAKE = '{"timestamp": 1000, "input_length": 20, "output_length": 4, "hash_ids": [1]}\n\n' + (
    '{"timestamp": 2500, "input_length": 10, "output_length": 3}\n'
)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,20,4\n2023-11-16 18:15:48.1805900,10,3\n"


@pytest.mark.parametrize("text", [OURS, MOONCAKE, AZURE], ids=["ours", "mooncake", "azure"])
def test_the_same_requests_in_three_formats(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    first, second = read_trace(path)
    assert first == Arrival(0.0, 20, 4)
    assert second.time == pytest.approx(1.5)
    assert (second.prompt_tokens, second.completion_tokens) == (10, 3)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no request"),
        ("a,b\n1,2\n", "line 2 has .*a trace needs arrival, prompt_tokens, completion_tokens or"),
        ("arrival,prompt_tokens,completion_tokens\n0,1,1\n0,x,1\n", "line 3: invalid literal"),
        ("arrival,prompt_tokens,completion_tokens\n0,0,1\n", "lengths start at 1"),
        ("arrival,prompt_tokens,completion_tokens\nnan,1,1\n", "arrival nan"),
        ('{"arrival": 0\n', "line 1 is not valid JSON"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_trace(path)
    with pytest.raises(ConfigError, match="cannot read the trace"):
        read_trace(tmp_path / "none")


def test_times_and_outputs_of_a_plan_belong_to_its_prompts() -> None:
    plan = LoadPlan(["a", "b"], {"max_tokens": 9}, times=[0.0, 0.5], outputs=[3, 4])
    assert list(plan.arrival_times()) == [0.0, 0.5]
    assert plan.body_of(1) == {"max_tokens": 4, "prompt": "b"}
    for wrong in ({"times": [0.0]}, {"times": [1.0, 0.5]}, {"times": [-1.0, 0.0]}, {"rate": 1.0, "outputs": [1]}):
        with pytest.raises(ConfigError, match=r"one for each request|must not fall"):
            LoadPlan(["a", "b"], **wrong)
    with pytest.raises(ConfigError, match="give one of them"):
        LoadPlan(["a"], rate=1.0, times=[0.0])
