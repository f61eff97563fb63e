"""Every exercise passes the gates, and each gate notices a planted failure."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nanovllm.course.exercise import Exercise, Variant
from nanovllm.course.gates import (
    bug_breaches,
    form_breaches,
    harmless_breaches,
    solution_breaches,
    stub_breaches,
)
from nanovllm.course.registry import COURSE_POINTS, EXERCISES, select
from nanovllm.course.seams import SEAMS
from nanovllm.course.stubs import stale_stubs, stub_of, write_stubs

ROOT = Path(__file__).resolve().parents[2]
ALL = list(EXERCISES.values())
each_exercise = pytest.mark.parametrize("exercise", ALL, ids=lambda e: e.name)
EASY = EXERCISES["1.1"]


def variants(kind: str) -> list:
    return [pytest.param(e, v, id=f"{e.number} {v.about}") for e in ALL for v in getattr(e, kind)]


# --- every exercise ----------------------------------------------------------------------------------------------


@each_exercise
def test_form(exercise: Exercise) -> None:
    assert form_breaches(exercise) == []


@each_exercise
def test_a_stub_fails_only_with_exercise_not_done(exercise: Exercise, exercises: Path) -> None:
    assert stub_breaches(exercise, exercises) == []


@each_exercise
def test_a_solution_earns_all_points(exercise: Exercise, solutions: Path) -> None:
    assert solution_breaches(exercise, solutions) == []


@pytest.mark.parametrize(("exercise", "bug"), variants("bugs"))
def test_every_planted_bug_is_caught(exercise: Exercise, bug: Variant) -> None:
    assert bug_breaches(exercise, bug) == []


@pytest.mark.parametrize(("exercise", "variant"), variants("harmless"))
def test_every_harmless_variant_is_accepted(exercise: Exercise, variant: Variant) -> None:
    assert harmless_breaches(exercise, variant) == []


def test_stubs_are_the_solutions_without_their_regions() -> None:
    assert stale_stubs(ROOT) == [], "run: python -m nanovllm.course.stubs"


def test_parts_are_complete() -> None:
    assert [e.number for e in select("1")] == [f"1.{i}" for i in range(1, 9)]
    assert [e.number for e in select("2")] == [f"2.{i}" for i in range(1, 9)]
    assert [e.number for e in select("3")] == [f"3.{i}" for i in range(1, 9)]
    assert [e.number for e in select("4")] == [f"4.{i}" for i in range(1, 6)]
    assert {part: sum(e.points for e in select(part)) for part in "1234"} == {"1": 25, "2": 27, "3": 26, "4": 22}
    assert sum(e.points for e in ALL) == COURSE_POINTS
    used = [seam.name for e in ALL for _, seam in e.pieces]
    assert sorted(used) == sorted(SEAMS), "each seam belongs to one exercise"
    assert len({e.file for e in ALL}) == len(ALL)


# --- the planted failures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hints": ("one", "one", "two")}, "three different hints"),
        ({"hints": ("one", "two", " ")}, "three different hints"),
        ({"groups": ()}, "needs points"),
        ({"groups": (replace(EASY.groups[0], points=0),)}, "needs points"),
        ({"groups": (replace(EASY.groups[0], examples=()),)}, "checks nothing"),
        ({"groups": (replace(EASY.groups[0], think=""),)}, "nothing to think about"),
        ({"bugs": EASY.bugs[:3]}, "3 planted bugs, at least 4"),
        ({"harmless": EASY.harmless[:1]}, "1 harmless variants, at least 2"),
        ({"pieces": (("block", replace(SEAMS["Sequence.block"], signature="(self, i)")),)}, "the engine has"),
    ],
)
def test_the_form_gate_notices(change: dict, said: str) -> None:
    (breach,) = form_breaches(replace(EASY, **change))
    assert said in breach


def test_the_stub_gate_notices_a_stub_that_does_something_else(tmp_path: Path, exercises: Path) -> None:
    text = (exercises / EASY.file).read_text()
    stub = tmp_path / "ex01_sequence_blocks.py"
    start = text.index("    raise ExerciseNotDone")
    stub.write_text(text[:start] + "    pass\n" + text[text.index("\n", start) + 1 :])
    assert any("of the stub gives" in breach for breach in stub_breaches(EASY, tmp_path))
    stub.write_text(text.replace('"1.1 sequence_blocks"', '"1.9 something"'))
    assert stub_breaches(EASY, tmp_path)


def test_the_solution_gate_notices_a_wrong_solution(tmp_path: Path, solutions: Path) -> None:
    text = (solutions / EASY.file).read_text()
    (tmp_path / "ex01_sequence_blocks.py").write_text(text.replace("seq.block_size - 1) //", "seq.block_size) //"))
    (breach,) = solution_breaches(EASY, tmp_path)
    assert "earns 0 of 2 points: expected [[1, 1]" in breach


def test_the_bug_gate_notices_a_bug_that_no_check_catches() -> None:
    (breach,) = bug_breaches(EASY, EASY.harmless[0])
    assert "no check notices" in breach


def test_the_harmless_gate_notices_a_variant_that_is_refused() -> None:
    (breach,) = harmless_breaches(EASY, EASY.bugs[0])
    assert "earns 0 of 2 points" in breach


def test_a_planted_text_that_is_gone_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 times, not once"):
        bug_breaches(EASY, Variant("nothing", "block", (("no such text", ""),)))


def test_the_stub_gate_notices_drift(tmp_path: Path) -> None:
    (tmp_path / "solutions" / "part1").mkdir(parents=True)
    solution = tmp_path / "solutions" / "part1" / "ex01_a.py"
    solution.write_text("def f():\n    # stub: raise E\n    # solution: begin\n    return 1\n    # solution: end\n")
    (stub,) = write_stubs(tmp_path)
    assert stub.read_text() == "def f():\n    raise E\n"
    assert stale_stubs(tmp_path) == []
    stub.write_text("def f():\n    raise F\n")
    (tmp_path / "exercises" / "part1" / "ex02_b.py").write_text("")
    assert stale_stubs(tmp_path) == ["part1/ex01_a.py", "part1/ex02_b.py"]


@pytest.mark.parametrize("text", ["# solution: begin\n", "# solution: end\n", "# solution: begin\n" * 2])
def test_marks_that_do_not_pair_up_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"line \d: .* has no counterpart"):
        stub_of(text)


def test_no_line_of_a_region_reaches_the_stub(solutions: Path, exercises: Path) -> None:
    for exercise in ALL:
        assert "solution:" not in (exercises / exercise.file).read_text()
        assert (solutions / exercise.file).read_text().count("# solution: begin") == len(exercise.pieces)


def test_there_are_enough_variants() -> None:
    assert sum(len(e.bugs) for e in ALL) >= 100
    assert sum(len(e.harmless) for e in ALL) >= 20
    assert len({(e.number, v.function, v.about) for e in ALL for v in (*e.bugs, *e.harmless)}) == sum(
        len(e.bugs) + len(e.harmless) for e in ALL
    ), "each says what is its own"


def table(*options: str) -> subprocess.CompletedProcess:
    argv = [sys.executable, str(ROOT / "scripts" / "exercise_table.py"), *options]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def test_the_page_of_planted_bugs_is_that_of_the_exercises() -> None:
    done = table("--check")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    text = (ROOT / "docs" / "planted_bugs.md").read_text(encoding="utf-8")
    assert text.count("| rejected |") == sum(len(e.bugs) for e in ALL)


def test_the_check_of_that_page_notices_drift(tmp_path: Path) -> None:
    for folder in ("scripts", "docs"):
        (tmp_path / folder).mkdir()
    script = tmp_path / "scripts" / "exercise_table.py"
    script.write_text((ROOT / "scripts" / "exercise_table.py").read_text())
    page = (ROOT / "docs" / "planted_bugs.md").read_text(encoding="utf-8")
    for text, code in ((page, 0), (page.replace("rejected", "accepted", 1), 1), (None, 1)):
        if text is None:
            (tmp_path / "docs" / "planted_bugs.md").unlink()
        else:
            (tmp_path / "docs" / "planted_bugs.md").write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stderr
        assert ("stale" in done.stdout) == bool(code)


# --- the template of docs/new_exercise.md ------------------------------------------------------------------------


def test_the_template_for_new_exercises_passes_all_gates(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "new_exercise.md").read_text(encoding="utf-8")
    solution, definition = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    namespace: dict = {}
    exec(definition, namespace)
    exercise = namespace["EXERCISE"]
    path = tmp_path / "solutions" / exercise.file
    path.parent.mkdir(parents=True)
    path.write_text(solution)
    write_stubs(tmp_path)
    assert form_breaches(exercise) == []
    assert stub_breaches(exercise, tmp_path / "exercises") == []
    assert solution_breaches(exercise, tmp_path / "solutions") == []
    assert [breach for bug in exercise.bugs for breach in bug_breaches(exercise, bug)] == []
    assert [breach for variant in exercise.harmless for breach in harmless_breaches(exercise, variant)] == []
    assert stale_stubs(tmp_path) == []
    assert exercise.number not in EXERCISES
