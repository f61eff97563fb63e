"""nanovllm.course.notebook by itself: whose functions run, what a prediction says, what a missing piece says."""

import shutil
from pathlib import Path

import pytest

from nanovllm.course import CourseError, ExerciseNotDone, notebook
from nanovllm.course.lessons_part1 import ByHand, longest_gap, token_steps
from nanovllm.course.notebook import predict, ready, your
from nanovllm.errors import RequestError
from scripts.notebooks import ROOT


@pytest.fixture(autouse=True)
def nobody_elses_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NANOVLLM_IMPL", raising=False)
    monkeypatch.setenv("NANOVLLM_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A learner's folder: `can_append` of exercise 1.5 is written (and counts), `append` is not."""
    shutil.copytree(ROOT / "exercises", tmp_path / "exercises")
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "exercises" / "part1" / "ex05_append.py"
    text = file.read_text()
    start = text.index("    raise ExerciseNotDone")
    end = text.index("\n\n\n", start)
    mine = "    return seq.num_tokens <= len(seq.block_table) * manager.block_size or manager.num_free_blocks > 0"
    file.write_text(text[:start] + mine + text[end:])
    return file


def grow() -> list[list[int]]:
    """The block tables of a request that grows over the edge of a block."""
    hand = ByHand(num_blocks=4, block_size=4)
    hand.add([1, 2, 3], max_tokens=4)
    while not hand.scheduler.is_finished():
        hand.step()
    return [record.scheduled.tables[0] for record in hand.trace]


GROWN = [[0], [0], [0, 1], [0, 1]]


def test_what_is_done_runs_and_the_rest_is_the_engines(half_done: Path) -> None:
    assert notebook.done_names(half_done) == {"can_append"}
    with your("1.5") as calls:
        assert grow() == GROWN
    assert calls == {"BlockManager.can_append": 3, "BlockManager.append": 3}


def test_a_wrong_function_of_the_learner_shows(half_done: Path) -> None:
    half_done.write_text(half_done.read_text().replace("num_free_blocks > 0", "num_free_blocks > 99"))
    with your("1.5"):
        assert grow() != GROWN


@pytest.mark.parametrize("impl", ["reference", "solutions"])
def test_a_chosen_implementation(impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOVLLM_IMPL", impl)
    with your("1.5"):
        assert grow() == GROWN


def test_an_unfinished_exercise_says_its_name(half_done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOVLLM_IMPL", "exercises")
    with pytest.raises(ExerciseNotDone, match=r"exercise 1\.5 append is not done yet: "), your("1.5"):
        grow()
    assert grow() == GROWN  # the engine's own functions are back


def test_a_block_that_uses_nothing_of_the_exercise_is_an_error() -> None:
    with pytest.raises(CourseError, match=r"nothing called a function of exercise 1\.5"), your("1.5"):
        pass


def test_ready_says_the_same_everywhere(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    ready()
    assert capsys.readouterr().out == "nanovllm is ready.\n"
    monkeypatch.setattr(notebook, "NEEDED", ("torch", "no_such_module"))
    with pytest.raises(RuntimeError, match=r"no_such_module is not installed here: pip install"):
        ready()


def test_a_prediction_asks_and_answers_from_the_state_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    state = [1]
    guess = predict("How many in `state`?", lambda: len(state), choices=[1, 2])
    assert guess.text() == "Predict first: How many in `state`?\n  one of: 1 | 2"
    assert "<code>state</code>" in guess.html()
    assert "2" not in guess.html().partition("One of")[0].partition("</style>")[2]  # the answer is not given away
    state.append(2)
    guess.reveal()
    guess.said = "1"
    guess.reveal()
    assert capsys.readouterr().out == "answer: 2\nanswer: 2 (you said 1)\n"


def test_the_widget_of_a_prediction() -> None:
    known: dict[str, int] = {}
    box = predict("How many?", lambda: known["n"]).box()
    entry, button = box.children[1].children
    shown = box.children[2]
    button.click()
    assert "Write your prediction down first" in shown.value
    entry.value = "3"
    button.click()
    assert "run the next cell" in shown.value
    known["n"] = 3
    button.click()
    assert "answer: 3 (you said 3, right)" in shown.value


def test_by_hand_refuses_and_counts_like_the_engine() -> None:
    hand = ByHand(num_blocks=2, block_size=4)
    with pytest.raises(RequestError, match="needs up to 4 KV blocks"):
        hand.add([1] * 9)
    busy = ByHand(num_blocks=12, block_size=4, max_num_batched_tokens=8)
    for length in (5, 6):
        busy.add(list(range(length)), max_tokens=3)
    while not busy.scheduler.is_finished():
        busy.step()
    assert token_steps(busy.trace, 0) == [0, 2, 3]
    assert (longest_gap(busy.trace, 0), longest_gap(busy.trace, 1)) == (2, 1)
