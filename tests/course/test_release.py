"""Hand-outs: no solution in them, and with --closed-book no engine's own version either; it runs on the learner's."""

import ast
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

from nanovllm.cli.main import main
from nanovllm.course.classroom.closed_book import YOURS, close_book
from nanovllm.course.classroom.links import unlink_missing
from nanovllm.course.classroom.release import release, wheel_command
from nanovllm.course.errors import CourseError, ExerciseNotDone
from nanovllm.course.exercise import Seam
from nanovllm.course.load import find_file
from nanovllm.course.numeric.checkpoint import ANSWERS, PROMPTS
from nanovllm.course.originals import original
from nanovllm.course.registry import EXERCISES, select
from nanovllm.course.stubs import stub_of
from tests.notebooks.links import broken, links_of, text_of

ROOT = Path(__file__).resolve().parents[2]
RUN = f"""
from nanovllm import LLM, SamplingParams
greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
limits = dict(kvcache_block_size=4, num_kvcache_blocks=11, max_num_batched_tokens=12, max_model_len=32)
with LLM("qwen3-tiny", device="cpu", skip_tokenizer_init=True, **limits) as llm:
    print([o.token_ids for o in llm.generate({[list(p) for p in PROMPTS]}, greedy, use_tqdm=False)])
"""


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("closed") / "hand-out"
    assert main(["class", "release", str(folder), "--closed-book"]) == 0
    return folder


def run(folder: Path, *argv: str) -> subprocess.CompletedProcess:
    """Run Python in the hand-out, on its own package and nothing of the checkout's."""
    environment = os.environ | {"PYTHONPATH": str(folder), "NANOVLLM_DATA_DIR": str(folder / "data")}
    return subprocess.run(
        [sys.executable, *argv], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )


def with_solutions(closed: Path, target: Path) -> Path:
    shutil.copytree(closed, target)
    for exercise in EXERCISES.values():
        shutil.copy(ROOT / "solutions" / exercise.file, target / "exercises" / exercise.file)
    return target


def test_a_hand_out_has_stubs_and_no_solution(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = tmp_path / "out"
    assert main(["class", "release", str(folder), "1", "3.1"]) == 0
    said = capsys.readouterr().out
    assert "hand-out of 9 exercises" in said
    assert said.endswith(f"put it in: pip wheel --no-deps -w {folder} {ROOT}\n")
    files = sorted(p.relative_to(folder / "exercises").as_posix() for p in (folder / "exercises").rglob("*.py"))
    assert files == sorted(e.file for e in [*select("1"), EXERCISES["3.1"]])
    for file in files:
        assert (folder / "exercises" / file).read_text() == stub_of((ROOT / "solutions" / file).read_text())
    assert not (folder / "solutions").exists()
    assert not (folder / "nanovllm").exists()
    readme = (folder / "README.md").read_text()
    assert "| 3.1 |" in readme
    assert "closed-book" not in readme
    assert "nanovllm grade              #" in readme


def test_every_link_of_a_hand_out_leads_somewhere_in_it(closed: Path, tmp_path: Path) -> None:
    """Pictures and the glossary are there; what is not is named as text, and the README says where it is."""
    release(tmp_path / "open", select("1"))
    assert "nanovllm grade 1            #" in (tmp_path / "open" / "README.md").read_text()
    for folder in (closed, tmp_path / "open"):
        assert len(list((folder / "notebooks").glob("*.ipynb"))) == len(list((ROOT / "notebooks").glob("*.ipynb")))
        texts = [path for kind in ("*.md", "*.ipynb") for path in folder.rglob(kind)]
        assert {path.name for path in texts} > {"README.md", "glossary.md", "00_start_here.ipynb"}
        assert {str(path.relative_to(folder)): list(broken(path)) for path in texts if [*broken(path)]} == {}
        targets = [(path, unquote(link).partition("#")[0]) for path in texts for link in links_of(path)]
        assert not [t for p, t in targets if ":" not in t and not (p.parent / t).resolve().is_relative_to(folder)]
    assert {page.name for page in (closed / "docs").iterdir()}.isdisjoint({"planted_bugs.md", "instructors.md"})
    step, named = "[`step`](../nanovllm/engine/llm_engine.py)", "`step` (`nanovllm/engine/llm_engine.py`)"
    for folder, said, unsaid in ((closed, step, named), (tmp_path / "open", named, step)):
        book = text_of(folder / "notebooks" / "00_start_here.ipynb")
        assert (said in book, unsaid in book) == (True, False)
        assert ("nanovllm.__path__" in (folder / "README.md").read_text()) == (folder != closed)


def test_only_dead_links_become_text_and_code_is_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "out"
    (root / "notebooks").mkdir(parents=True)
    (root / "docs").mkdir()
    (root / "docs" / "there.md").write_text("# A\n")
    (tmp_path / "outside.md").write_text("")
    lines = [
        ("[there](../docs/there.md#a), [web](https://x.org/y.md), [above](#above)", None),
        ("[gpu.md](../docs/gpu.md#x)", "`docs/gpu.md`"),
        ("[the `f` of [1]](../nanovllm/f.py)", "the `f` of [1] (`nanovllm/f.py`)"),
        ("![a plot](p.svg)", "a plot (`notebooks/p.svg`)"),
        ("[up](../../outside.md)", "up (`../outside.md`)"),
        ("`values[0](gone.md)`", None),
        ("```python\nvalues[0](gone.md)\n```", None),
    ]
    old = "\n\n".join(line for line, _ in lines)
    new = "\n\n".join(becomes or line for line, becomes in lines)
    page, book, same = (root / "notebooks" / name for name in ("a.md", "b.ipynb", "c.ipynb"))
    page.write_text(old)
    code = {"cell_type": "code", "source": ["values[0](gone.md)"]}
    book.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": old.splitlines(keepends=True)}, code]}))
    same.write_text('{"cells":   []}')
    unlink_missing(root)
    assert page.read_text() == new
    markdown, left = json.loads(book.read_text())["cells"]
    assert ("".join(markdown["source"]), left) == (new, code)
    assert same.read_text() == '{"cells":   []}'


def install_as_its_readme_says(folder: Path, home: Path) -> Path:
    """The Python of a new environment in which the install line of the README has run, without the dependencies."""
    (line,) = re.findall(r"^pip install .*$", (folder / "README.md").read_text(), re.M)
    command = shlex.split(line, comments=True)[2:]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / "bin" / "python"
    borrowed = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))  # the build backend
    for site_packages in home.glob("lib/python*/site-packages"):
        (site_packages / "borrowed.pth").write_text("\n".join(borrowed))
    offline = ["--quiet", "--no-deps", "--no-index", *(["--no-build-isolation"] if "-e" in command else [])]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *offline]
    done = subprocess.run([*pip, *command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return python


def where_is_nanovllm(python: Path, cwd: Path) -> Path:
    code = "import nanovllm; print(nanovllm.__file__)"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([python, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True)
    return Path(done.stdout.strip() or done.stderr)


def test_an_open_hand_out_is_installed_as_its_readme_says(tmp_path: Path) -> None:
    """The command that `release` names makes the very wheel that the README installs."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    for name in ("nanovllm", "solutions"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    folder = tmp_path / "out"
    release(folder, select("1"), root=checkout)
    command = shlex.split(wheel_command(folder, checkout))
    offline = [sys.executable, "-m", *command, "--quiet", "--no-build-isolation", "--no-index"]
    done = subprocess.run(offline, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    python = install_as_its_readme_says(folder, tmp_path / "venv")
    assert where_is_nanovllm(python, folder).is_relative_to(tmp_path / "venv")


def test_a_closed_hand_out_is_installed_as_its_readme_says(closed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(closed, folder)
    python = install_as_its_readme_says(folder, tmp_path / "venv")
    assert where_is_nanovllm(python, tmp_path) == folder / "nanovllm" / "__init__.py"


@pytest.mark.parametrize(
    ("prepare", "options", "said"),
    [
        (lambda folder: folder.mkdir() or (folder / "x").write_text(""), [], "is there already and not empty"),
        (lambda folder: folder.write_text(""), [], "is there already and not empty"),
        (lambda folder: None, ["7"], "there is no exercise '7'"),
    ],
)
def test_refusals_write_nothing(tmp_path: Path, prepare, options: list[str], said: str, capsys) -> None:
    prepare(tmp_path / "out")
    before = sorted(tmp_path.rglob("*"))
    assert main(["class", "release", str(tmp_path / "out"), *options]) == 2
    assert said in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_an_installed_package_has_nothing_to_release(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="run this in a checkout"):
        release(tmp_path / "out", select("1"), root=tmp_path)


def test_a_seam_that_is_no_function_is_refused_and_nothing_is_left(tmp_path: Path, monkeypatch) -> None:
    from dataclasses import replace

    seam = Seam("nanovllm.scheduler.block_manager", "BlockManager", "(num_blocks, block_size)", is_class=True)
    exercise = replace(EXERCISES["1.1"], pieces=(("manager", seam),))
    with pytest.raises(CourseError, match="is no function: it cannot be taken out"):
        release(tmp_path / "out", [exercise], closed_book=True)
    assert list(tmp_path.iterdir()) == []


def test_a_notebook_of_a_hand_out_finds_the_exercises_beside_it(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "out"
    assert main(["class", "release", str(folder), "1.2"]) == 0
    (folder / "notebooks").mkdir(exist_ok=True)
    monkeypatch.chdir(folder / "notebooks")
    found = find_file(EXERCISES["1.2"], "exercises").resolve()
    assert found == (folder / "exercises" / EXERCISES["1.2"].file).resolve()
    assert find_file(EXERCISES["1.3"], "exercises").resolve() == ROOT / "exercises" / EXERCISES["1.3"].file


# --- closed book -------------------------------------------------------------------------------------------------


def body_lines(function: object) -> list[str]:
    """The lines of a function's body that say something, without its docstring."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body  # type: ignore[arg-type]
    assert isinstance(node, ast.FunctionDef)
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    lines = inspect.getsource(function).splitlines()[body[0].lineno - 1 : node.end_lineno]  # type: ignore[arg-type]
    return [line.strip() for line in lines if len(line.strip()) > 20 and not line.strip().startswith("#")]


def test_nothing_is_left_of_the_pieces(closed: Path) -> None:
    package = ROOT / "nanovllm"
    here = Counter(line.strip() for p in package.rglob("*.py") for line in p.read_text().splitlines())
    there = {line.strip() for p in (closed / "nanovllm").rglob("*.py") for line in p.read_text().splitlines()}
    looked_at = 0
    for exercise in EXERCISES.values():
        for name, seam in exercise.pieces:
            own = [line for line in body_lines(original(seam)) if here[line] == 1]
            looked_at += len(own)
            assert not there & set(own), f"{exercise.name}: {name} is still there"
    assert looked_at > 200
    quoted = [v for e in EXERCISES.values() for v in (*e.bugs, *e.harmless)]
    texts = "\n".join(p.read_text() for p in (closed / "nanovllm" / "course").rglob("*.py"))
    assert not [v.about for v in quoted if f'"{v.about}"' in texts]


def test_with_the_stubs_the_engine_stops_and_names_the_exercise(closed: Path) -> None:
    done = run(closed, "-c", RUN)
    assert done.returncode == 1
    assert "ExerciseNotDone: exercise " in done.stderr.splitlines()[-1]
    shutil.rmtree(closed / "exercises" / "part3")
    for exercise in select("3"):
        assert not (closed / "exercises" / exercise.file).exists()
    done = run(
        closed, "-c", "import nanovllm.qwen3.ops as o, torch\no.TorchOps().rms_norm(torch.ones(2), torch.ones(2), 0)"
    )
    assert "exercise 3.1 rms_norm is not done yet: there is no part3/ex01_rms_norm.py" in done.stderr
    for exercise in select("3"):
        path = closed / "exercises" / exercise.file
        path.parent.mkdir(exist_ok=True)
        path.write_text(stub_of((ROOT / "solutions" / exercise.file).read_text()))


def test_it_runs_on_the_learners_functions_alone(closed: Path, tmp_path: Path) -> None:
    folder = with_solutions(closed, tmp_path / "done")
    done = run(folder, "-c", RUN)
    assert done.stdout.strip() == str([list(answer) for answer in ANSWERS]), done.stderr[-2000:]
    broken = folder / "exercises" / EXERCISES["1.3"].file
    text = broken.read_text()
    broken.write_text(text + "\n\ndef allocate(manager, seq, plan=None):\n    raise RuntimeError('mine ran')\n")
    assert "mine ran" in run(folder, "-c", RUN).stderr


def test_learners_can_grade_themselves_in_it(closed: Path, tmp_path: Path) -> None:
    folder = with_solutions(closed, tmp_path / "done")
    done = run(folder, "-m", "nanovllm", "grade", "--seconds", "60")
    points = sum(exercise.points for exercise in EXERCISES.values())
    assert f"{points} of {points} points in this run" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]
    (folder / "exercises" / EXERCISES["1.2"].file).write_text("def chained_hash(previous, token_ids):\n    return 1\n")
    assert "not yet" in run(folder, "-m", "nanovllm", "grade", "1.2").stdout
    assert "is not part of this hand-out" in run(folder, "-m", "nanovllm", "hint", "1.2", "--show-me").stderr


def test_what_only_removed_code_used_goes_too(tmp_path: Path) -> None:
    close_book(tmp_path / "nanovllm", list(EXERCISES.values()), ROOT / "nanovllm")
    left = (tmp_path / "nanovllm" / "paged_kv" / "kernels" / "store.py").read_text()
    assert "@triton.jit" in (ROOT / "nanovllm" / "paged_kv" / "kernels" / "store.py").read_text()
    assert "@triton.jit" not in left
    assert "def store_kv" in left


def test_a_changed_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOVLLM_EXERCISES", str(tmp_path))
    module: dict = {"__file__": str(tmp_path / "nanovllm" / "yours.py")}
    exec(YOURS, module)
    module["LOOK_AGAIN"] = 0.0
    (tmp_path / "ex.py").write_text("def f():\n    return 1\n")
    assert module["yours"]("9.9 f", "ex.py", "f")() == 1
    (tmp_path / "ex.py").write_text("def f():\n    return 22\n")
    os.utime(tmp_path / "ex.py", ns=(1, 1))
    assert module["yours"]("9.9 f", "ex.py", "f")() == 22
    with pytest.raises(ExerciseNotDone, match=r"9\.9 f is not done yet: ex\.py has no function g"):
        module["yours"]("9.9 f", "ex.py", "g")
    (tmp_path / "ex.py").unlink()
    with pytest.raises(ExerciseNotDone, match=r"there is no ex\.py in"):
        module["yours"]("9.9 f", "ex.py", "f")
