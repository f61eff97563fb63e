"""4.1 and 4.2: the solutions carry the whole engine, with two ranks where the codec is used."""

import random
from pathlib import Path
from typing import Any

import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.course import swap
from nanovllm.course.numeric.checkpoint import ANSWERS, NUM_TOKENS, PROMPTS
from nanovllm.course.part4 import ex02, table_traces
from nanovllm.engine.step_codec import StepEncoder
from nanovllm.errors import RequestError

ROOT = Path(__file__).resolve().parents[2]
SMALL: dict[str, Any] = {
    "device": "cpu",
    "kvcache_block_size": 4,
    "num_kvcache_blocks": 16,
    "max_num_batched_tokens": 12,
    "max_model_len": 32,
    "skip_tokenizer_init": True,
}


def greedy(max_tokens: int = NUM_TOKENS) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_the_codec_of_the_solution_between_ranks(num_ranks: int) -> None:
    """Rank 0 encodes, rank 1 decodes; a single rank sends nothing."""
    options = SMALL | {"tensor_parallel_size": num_ranks, "swap": {"4.2": ROOT / "solutions"}}
    with LLM("qwen3-tiny", **options) as llm:
        outputs = llm.generate([list(p) for p in PROMPTS], greedy(), use_tqdm=False)
        calls = llm.swap_calls()
    assert tuple(tuple(output.token_ids) for output in outputs) == ANSWERS
    expected = {
        "StepEncoder._change": [True, False],
        "StepEncoder._drop_released": [True, False],
        "StepDecoder.decode": [False, True],
    }
    used = {name: [count > 0 for count in counts] for name, counts in calls.items()}
    assert used == ({name: [False] for name in expected} if num_ranks == 1 else expected)


def test_the_loop_of_the_solution_serves_watchers_and_a_second_call() -> None:
    with swap("4.1", ROOT / "solutions") as calls, LLM("qwen3-tiny", **SMALL) as llm:
        events: list[str] = []
        llm.on_event = events.append
        for _ in range(2):
            outputs = llm.generate([list(p) for p in PROMPTS], greedy(), use_tqdm=False)
            assert tuple(tuple(output.token_ids) for output in outputs) == ANSWERS
        with pytest.raises(RequestError):
            llm.generate([[1], []], greedy())
        assert llm.is_finished()
    assert events[:5] == ["begin", "schedule", "run", "postprocess", "end"]
    assert len(events) == 5 * calls["LLMEngine.step"]
    assert calls["LLM.generate"] == 3


def test_the_traces_of_the_codec_have_what_they_should_find() -> None:
    """Preempted sequences that get the same first block again, tables that grow, and sequences that end."""
    numeric = ex02.EXERCISE.groups[3].numeric
    assert numeric is not None
    rows = [
        (row, before)
        for seed in range(numeric.cases)
        for steps in [numeric.inputs_of(seed, {"seqs": 4, "steps": 10})["steps"]]
        for before, (_, step, _) in zip([[], *[rows for _, rows, _ in steps]], steps, strict=False)
        for row in step
    ]
    again = [row for row, before in rows if row[5] and any(o[0] == row[0] and o[4][:1] == row[4][:1] for o in before)]
    assert len(again) > 20
    assert sum(not row[5] for row, _ in rows) > 100


def test_a_table_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worked answer of a trace counts what the engine's own encoder sends."""
    case = table_traces.random_steps(random.Random(8), 3, 8)
    namespace: dict[str, Any] = dict(case)
    sent: list[int] = []
    change = StepEncoder._change

    def counted(self: StepEncoder, s: Any) -> Any:
        found = change(self, s)
        sent.append(len(found[2]) if found else 0)
        return found

    monkeypatch.setattr(StepEncoder, "_change", counted)
    exec(table_traces.TRACE, namespace)
    assert sum(sent) == sum(step["block_ids_sent"] for step in table_traces.understood(**case)[:-1]) > 0
