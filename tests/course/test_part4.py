"""What part 4 is judged by is true, and its solutions run where the engine uses the pieces."""

import random
import re
from pathlib import Path

import numpy as np
import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.bench import stats
from nanovllm.course import swap
from nanovllm.course.grade import grade_exercise
from nanovllm.course.judge import Grade
from nanovllm.course.part4 import ex03, ex04, padding, traffic
from nanovllm.course.process import Limits as ProcessLimits
from nanovllm.serve.load_report import Limits, LoadReport, RequestRecord
from nanovllm.serve.policy import BoundedPrefill

SMALL = {"device": "cpu", "max_model_len": 64, "kvcache_block_size": 4, "num_kvcache_blocks": 32}


def test_percentiles_are_those_of_numpy() -> None:
    numeric = ex04.EXERCISE.groups[1].numeric
    assert numeric is not None
    for seed in range(100):
        case = numeric.inputs_of(seed, {"count": 1 + seed % 8})
        wanted = np.quantile(case["values"], case["share"])
        assert ex04._interpolated(**case) == pytest.approx(wanted, abs=1e-9)
        assert stats.percentile(**case) == pytest.approx(wanted, abs=1e-9)


def test_goodput_is_the_share_of_the_summary() -> None:
    numeric = ex04.EXERCISE.groups[3].numeric
    assert numeric is not None
    for seed in range(50):
        case = numeric.inputs_of(seed, {"requests": 6, "tokens": 4})
        records = [
            RequestRecord(i, due, events=events, status=status, num_completion_tokens=len(events))
            for i, (due, events, status) in enumerate(case["requests"])
        ]
        report = LoadReport(records, case["duration"], Limits(*case["limits"]))
        assert report.summary()["goodput"] == report.goodput == pytest.approx(ex04._useful(**case))


def test_a_replay_shows_what_a_row_would_do() -> None:
    """The player of 4.3 sees a padded row that stores and reads."""
    full, one = [[5, 0, [3]], [99, 1, [4]]], [[7, 2, [2, 1]]]
    steps = [{"batch": batch, "size": 2} for batch in (full, full, one)]  # two host buffers, used in turn
    sound = padding.replay(steps, 2)
    assert sound == ex03._played(steps, 2)

    def write(host, batch, size):
        for name in ("input_ids", "positions", "slot_mapping", "context_lens"):
            host[name][: len(batch.input_ids)] = getattr(batch, name)
        width = batch.block_tables.shape[1]
        host["block_tables"][: len(batch.input_ids), :width] = batch.block_tables

    with swap("cuda_graphs.write_padded", write):
        stale = padding.replay(steps, 2)
    assert stale[:2] == sound[:2]
    assert stale[2]["rows"] == sound[2]["rows"]
    assert stale[2]["padding"] == [[9, 2]], "slot and context length of an earlier step"


def test_plain_scheduling_starves_and_the_bound_holds() -> None:
    with swap("BoundedPrefill.__call__", lambda policy, scheduler: scheduler.schedule()):
        assert traffic.flood(1)["longest gap"] >= 200
    for most in (1, 3, 7):
        assert traffic.flood(most)["longest gap"] == BoundedPrefill(most).gap_bound == most + 1


def test_a_prompt_that_keeps_its_blocks_locks_the_traffic_up() -> None:
    with swap("policy._give_up_half_computed", lambda scheduler: None):
        seen = [traffic.random_traffic(random.Random(1000 + seed).randrange(10**6)) for seed in range(60)]
    assert any(not one["ended"] for one in seen)
    assert all(traffic.random_traffic(seed) == all_well() for seed in range(40))


def all_well() -> dict[str, object]:
    return {"beyond the bound": 0, "ended": True, "idle steps": 0, "wrong answers": 0}


def test_the_engine_runs_on_the_policy_and_the_metrics_of_the_solutions() -> None:
    prompts = ["count: 17 18 19 20", "sort: 9 4 7 ->", "count: 3 4 5"]
    how = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with LLM("qwen3-tiny", max_num_batched_tokens=8, **SMALL) as llm:
        wanted = [output.token_ids for output in llm.generate(prompts, how, use_tqdm=False)]
    with swap("4.4", "solutions") as figures, swap("4.5", "solutions") as choices:
        with LLM("qwen3-tiny", max_num_batched_tokens=8, **SMALL) as llm:
            llm.policy = BoundedPrefill(1)
            outputs = llm.generate(prompts, how, use_tqdm=False)
        assert [output.token_ids for output in outputs] == wanted
        metrics = [output.metrics for output in outputs]
        assert all(
            m.ttft and m.tpot and m.e2e_latency and m.ttft + 7 * m.tpot == pytest.approx(m.e2e_latency) for m in metrics
        )
        assert stats.percentile([m.ttft for m in metrics], 0.5) == sorted(m.ttft for m in metrics)[1]
        record = RequestRecord(0, 0.0, events=[1.0], status=200, num_completion_tokens=1)
        assert LoadReport([record], 2.0, Limits(ttft=1.0)).summary()["goodput"] == 0.5
    assert all(figures.values()), figures
    assert all(choices.values()), choices


# --- what a learner is told on the way ---------------------------------------------------------------------------


def graded(tmp_path: Path, exercises: Path, **bodies: str) -> Grade:
    """The grade of the stub of 4.4 with some functions written, each by its return statement."""
    text = (exercises / ex04.EXERCISE.file).read_text()
    for name, body in bodies.items():
        pattern = rf'(^def {name}\(.*?""".*?"""\n)    raise ExerciseNotDone\(.*?\)$'
        text, count = re.subn(pattern, lambda found, body=body: f"{found[1]}    {body}", text, flags=re.S | re.M)
        assert count == 1
    path = tmp_path / "ex04_metrics.py"
    path.write_text(text)
    return grade_exercise(ex04.EXERCISE, path, ProcessLimits(seconds=8))


def test_a_bug_is_named_while_the_rest_is_not_written(tmp_path: Path, exercises: Path) -> None:
    grade = graded(tmp_path, exercises, ttft="return (metrics.finish_time or 10.0) - metrics.arrival_time")
    assert (grade.earned, grade.status) == (0, "failed")
    assert grade.bug == ""
    grade = graded(tmp_path, exercises, ttft="return (metrics.first_token_time or 10.0) - metrics.arrival_time")
    assert grade.bug == "says 0 where there is no token yet"


def test_an_exception_comes_with_its_line(tmp_path: Path, exercises: Path) -> None:
    grade = graded(tmp_path, exercises, ttft="return metrics.first_token_time - metrics.arrival_time")
    failure = grade.groups[0].failure
    assert failure is not None
    lines = (tmp_path / "ex04_metrics.py").read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if text.startswith("    return metrics"))
    assert failure.actual.endswith(f"'NoneType' and 'float' (line {line} of ex04_metrics.py)")
