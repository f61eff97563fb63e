"""What part 2 is judged by is true, and its solutions run where the engine uses the pieces."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nanovllm import LLM, SamplingParams
from nanovllm.course import swap
from nanovllm.course.checks import no_limit, observe
from nanovllm.course.exercise import Exercise
from nanovllm.course.grade import grade_all, grade_exercise
from nanovllm.course.judge import Grade, judge
from nanovllm.course.load import load_pieces
from nanovllm.course.numeric import numbers
from nanovllm.course.numeric.checkpoint import ANSWERS, NUM_TOKENS, PROMPTS, engine_example
from nanovllm.course.numeric.observe import observe_numeric
from nanovllm.course.part2 import cases
from nanovllm.course.registry import EXERCISES, select

ROOT = Path(__file__).resolve().parents[2]
PART = select("2")


@pytest.fixture
def graded(tmp_path: Path) -> Callable[..., Grade]:
    """The grade of a solution with some texts changed, as a learner's slip would."""

    def grade(number: str, *changes: tuple[str, str]) -> Grade:
        exercise = EXERCISES[number]
        text = (ROOT / "solutions" / exercise.file).read_text(encoding="utf-8")
        for old, new in changes:
            assert text.count(old) == 1, f"{old!r} stands there {text.count(old)} times"
            text = text.replace(old, new)
        path = tmp_path / Path(exercise.file).name
        path.write_text(text, encoding="utf-8")
        return judge(exercise, observe(exercise, load_pieces(exercise, path)), "exercises")

    return grade


interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1")


def first_failure(grade: Grade) -> Any:
    return next(group.failure for group in grade.groups if group.failure)


# --- the answers -----------------------------------------------------------------------------------------------------


def test_attention_in_plain_python_is_torch_s() -> None:
    rng = random.Random(3)
    for _ in range(20):
        before, count, kv_heads, group, width = (rng.randint(1, 4) for _ in range(5))
        q = numbers(rng, count, kv_heads * group, width)
        k, v = (numbers(rng, before + count, kv_heads, width) for _ in "kv")
        mask = torch.ones(count, before + count, dtype=torch.bool).tril(before)
        queries, keys, values = (torch.tensor(x).transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        wanted = F.scaled_dot_product_attention(queries, keys, values, mask, scale=0.7, enable_gqa=True)
        ours = torch.tensor(cases.causal(q, k, v, 0.7))
        torch.testing.assert_close(ours, wanted.squeeze(0).transpose(0, 1), rtol=0, atol=1e-5)


def test_blocks_of_random_tables_are_nobody_else_s() -> None:
    tables = cases.tables_for(random.Random(1), [3, 2, 4])
    blocks = [block for table in tables for block in table]
    assert len(set(blocks)) == 9
    cache = cases.filled_cache(random.Random(1), tables, [5, 3, 7], 2, 1, 1)
    flat = [slot[0][0] for block in cache for slot in block]
    assert sum(number != cases.NOBODY for number in flat) == 15
    assert len(cases.rows_of(cache, tables[0], 5)) == 5
    assert cases.padded(tables, [1, 2, 3])[0][1:] == [0, 0]


# --- the grader ------------------------------------------------------------------------------------------------------


def test_the_solutions_earn_all_points_in_processes_of_their_own() -> None:
    grades = grade_all([*PART, EXERCISES["4.1"], EXERCISES["4.2"]], ROOT / "solutions")
    assert {g.number: (g.earned, g.reason) for g in grades} == {g.number: (g.points, "") for g in grades}
    assert all(min(g.calls.values()) > 0 for g in grades), "every piece was called"


@pytest.mark.parametrize("exercise", PART, ids=lambda e: e.name)
def test_every_exercise_runs_in_the_engine(exercise: Exercise) -> None:
    codes = [example.code for group in exercise.groups for example in group.examples]
    assert any("LLM(" in code for code in codes)


@interpreted
def test_a_stray_write_of_a_kernel_is_seen_and_harms_nothing(graded: Callable[..., Grade]) -> None:
    grade = graded("2.5", ("if slot >= 0:", "if slot >= -1:"))
    assert grade.earned == 1
    assert grade.bug == "lets -1 be a slot"
    padded = grade.groups[1].failure
    assert padded is not None
    assert "which one? Who owns it?" in padded.think


def test_a_pointer_far_outside_ends_only_its_own_exercise(tmp_path: Path) -> None:
    text = (ROOT / "solutions" / EXERCISES["2.5"].file).read_text(encoding="utf-8")
    path = tmp_path / "ex05_store_kernel.py"
    path.write_text(text.replace("slot.to(tl.int64) * row_size", "(slot.to(tl.int64) + 1) * 10**12"), encoding="utf-8")
    grade = grade_exercise(EXERCISES["2.5"], path)
    assert grade.status == "void"
    assert "SIGSEGV" in grade.reason
    assert "does a pointer of a kernel leave its tensor?" in grade.reason


@interpreted
def test_a_kernel_of_an_untouched_stub_is_not_begun() -> None:
    for number in ("2.5", "2.8"):
        exercise = EXERCISES[number]
        report = observe(exercise, load_pieces(exercise, ROOT / "exercises"))
        assert judge(exercise, report, "exercises").status == "todo"


def test_a_failure_says_which_slot_and_what_it_should_be(graded: Callable[..., Grade]) -> None:
    failure = first_failure(
        graded(
            "2.2",
            (
                "padded[row, :width] = table[:width]",
                "padded[row, : len(table[: len(padded[0])])] = table[: len(padded[0])]",
            ),
        )
    )
    assert (failure.expected, failure.actual) == ("[1, 1]: 0", "[1, 1]: 2")
    assert failure.history[0] == "tables = [[1, 3], [4, 2]]"
    assert failure.history[-1].endswith("^")
    assert "which entries are these?" in failure.think


def test_words_for_a_single_check_come_before_those_of_its_group(graded: Callable[..., Grade]) -> None:
    failure = first_failure(graded("2.2", (".astype(np.int64)", "")))
    assert "2**31 slots" in failure.think
    assert failure.actual == "[-1734967296, -1734967041]"


@interpreted
def test_the_smallest_context_that_fails_is_little_more_than_a_chunk(
    graded: Callable[..., Grade], tmp_path: Path
) -> None:
    grade = graded("2.8", ("total = total * rescale +", "total = total +"))
    failure = grade.groups[1].failure
    assert failure is not None
    assert "summed up before" in failure.think
    text = (ROOT / "solutions" / EXERCISES["2.8"].file).read_text(encoding="utf-8")
    path = tmp_path / "ex08.py"
    path.write_text(text.replace("total = total * rescale +", "total = total +"), encoding="utf-8")
    with swap("2.8", path):
        numeric = EXERCISES["2.8"].groups[1].numeric
        assert numeric is not None
        small = observe_numeric(numeric, no_limit, 60.0, shrinking=True)["small"]
    assert 17 <= small["sizes"]["keys"] <= 20, "BLOCK_N is 16"


# --- the engine ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "method"), [("2.5", "store"), ("2.8", "decode")])
def test_the_triton_solutions_run_in_the_engine(number: str, method: str) -> None:
    """On a CPU through the interpreter; their seams are where a Triton backend calls them."""
    example = engine_example(
        "from nanovllm.paged_kv.backends.triton_backend import TritonBackend",
        "for layer in llm.model_runner.model.attention_layers:",
        f"    layer.backend.{method} = TritonBackend().{method}",
        num_prompts=1,
        num_tokens=3,
    )
    namespace: dict[str, Any] = {}
    with swap(number, ROOT / "solutions") as calls:
        exec(example.code, namespace)
    assert namespace["result"] == example.expected
    steps = 3 if method == "store" else 2
    assert set(calls.values()) == {5 * steps}, "once a layer and step"


def test_a_pool_whose_size_the_engine_works_out_uses_the_solution() -> None:
    options = {"cpu_kvcache_gib": 0.01, "kvcache_block_size": 4, "device": "cpu", "skip_tokenizer_init": True}
    with swap("2.1", ROOT / "solutions") as calls, LLM("qwen3-tiny", **options) as llm:
        assert llm.ranks.num_blocks == 262
    assert calls["KVCacheSpec.blocks_in"] > 0
    assert calls["KVCacheSpec.bytes_per_token"] > 0


COMPILE = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from compile_all import catch_launches
from nanovllm.course.load import load_pieces
from nanovllm.course.registry import EXERCISES
names = catch_launches(90)
store, decode = (load_pieces(EXERCISES[n], sys.argv[2])[f] for n, f in (("2.5", "store_kv"), ("2.8", "paged_decode")))
q, k = torch.zeros(3, 16, 128, dtype=torch.bfloat16), torch.zeros(3, 8, 128, dtype=torch.bfloat16)
cache, tables = torch.zeros(4, 16, 8, 128, dtype=torch.bfloat16), torch.zeros(3, 4, dtype=torch.int32)
store(k, k, cache, cache, torch.zeros(3, dtype=torch.int64))
decode(q, cache, cache, tables, torch.ones(3, dtype=torch.int32), 0.1)
print(*names)
"""


def test_the_triton_solutions_compile_for_a_gpu(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILE, str(ROOT / "tests" / "kernels"), str(ROOT / "solutions")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["store_kernel", "decode_kernel"]


@pytest.mark.gpu
@pytest.mark.parametrize("eager", [True, False])
def test_the_decode_of_the_solution_on_a_gpu(eager: bool) -> None:
    options = {"attention_backend": "triton", "dtype": "float32", "enforce_eager": eager, "gpu_memory_utilization": 0.2}
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with LLM("qwen3-tiny", swap={"2.8": ROOT / "solutions"}, skip_tokenizer_init=True, **options) as llm:
        outputs = llm.generate([list(prompt) for prompt in PROMPTS], greedy, use_tqdm=False)
        calls = llm.swap_calls()
    assert tuple(tuple(output.token_ids) for output in outputs) == ANSWERS
    assert calls["triton_backend.paged_decode"][0] > 0
