"""A copy of the package in which the engine's own version of some pieces is absent: it runs on the learner's.

In the copy each piece keeps its signature and docstring, and its body becomes a call of the learner's function. What
only the removed bodies used (helpers, kernels beside them) goes too, as do planted bugs and harmless variants, which
quote them. The checks stay, so that learners can grade themselves; where they work an answer out, they do it by an
independent and slower way. Closed book is a rule, not a lock: the package is public.
"""

import ast
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from nanovllm.course.errors import CourseError
from nanovllm.course.exercise import Exercise, Seam
from nanovllm.course.originals import original

YOURS = '''\
"""The pieces of the engine that are yours to write: each call goes to your file in `exercises/`."""

import os
import time
from pathlib import Path
from typing import Any

LOOK_AGAIN = 0.5  # s until a file is asked for changes again
_loaded: dict[str, tuple[float, int, dict[str, Any]]] = {}  # file -> looked at, changed, what it defines


def yours(exercise: str, file: str, name: str) -> Any:
    """Your function `name` for `exercise` ("1.3 allocate"), from `file`, read again soon after that has changed.

    The folder is $NANOVLLM_EXERCISES, or exercises/ in the working folder, or the one beside this package.
    """
    from nanovllm.course.errors import ExerciseNotDone

    if file not in _loaded or time.monotonic() - _loaded[file][0] > LOOK_AGAIN:
        _load(exercise, file, name)
    if name not in _loaded[file][2]:
        raise ExerciseNotDone(exercise, f"{file} has no function {name}: the engine needs it to go on")
    return _loaded[file][2][name]


def _load(exercise: str, file: str, name: str) -> None:
    from nanovllm.course.errors import ExerciseNotDone

    beside = Path(__file__).resolve().parents[1] / "exercises"
    folders = [Path(os.environ.get("NANOVLLM_EXERCISES", "exercises")), beside]
    path = next((folder / file for folder in folders if (folder / file).is_file()), None)
    if path is None:
        raise ExerciseNotDone(exercise, f"there is no {file} in {folders[0]}/: the engine needs your {name} to go on")
    changed = path.stat().st_mtime_ns
    known = _loaded.get(file)
    if known is None or known[1] != changed:
        namespace: dict[str, Any] = {"__name__": f"learner_{path.stem}", "__file__": str(path)}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)
        known = (0.0, changed, namespace)
    _loaded[file] = (time.monotonic(), *known[1:])
'''
_IGNORED = shutil.ignore_patterns("__pycache__")


@dataclass(frozen=True, slots=True)
class _Cut:
    """Lines first..last (from 1) of a module become `lines`."""

    first: int
    last: int
    lines: tuple[str, ...] = ()


def close_book(target: Path, exercises: list[Exercise], package: Path) -> None:
    """Write the copy of `package` to the new folder `target`. Raises CourseError for a seam that is no function."""
    shutil.copytree(package, target, ignore=_IGNORED)
    (target / "yours.py").write_text(YOURS, encoding="utf-8")
    removed: dict[Path, str] = {}
    for exercise in exercises:
        for name, seam in exercise.pieces:
            path = _module(target, original(seam).__module__)
            text = path.read_text(encoding="utf-8")
            cut = _take_out(text, exercise, name, seam)
            removed[path] = removed.get(path, "") + "\n".join(text.splitlines()[cut.first - 1 : cut.last])
            path.write_text(_apply(text, [cut]), encoding="utf-8")
    _drop_orphans(target, removed)
    for path in sorted((target / "course").glob("part*/ex*.py")):
        path.write_text(_without_variants(path.read_text(encoding="utf-8")), encoding="utf-8")


def _module(target: Path, name: str) -> Path:
    parts = name.split(".")[1:]
    path = target.joinpath(*parts).with_suffix(".py")
    return path if path.is_file() else target.joinpath(*parts) / "__init__.py"


def _apply(text: str, cuts: list[_Cut]) -> str:
    lines = text.splitlines()
    for cut in sorted(cuts, key=lambda c: -c.first):
        lines[cut.first - 1 : cut.last] = cut.lines
    return "\n".join(lines) + "\n"


def _take_out(text: str, exercise: Exercise, name: str, seam: Seam) -> _Cut:
    """The body of the seam's function, docstring apart, becomes a call of the learner's."""
    function = _find(ast.parse(text), original(seam).__qualname__.split("."))
    if not isinstance(function, ast.FunctionDef):
        raise CourseError(f"{seam.name} of exercise {exercise.number} is no function: it cannot be taken out")
    arguments = function.args
    passed = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    passed += [f"*{arguments.vararg.arg}"] if arguments.vararg else []
    passed += [f"{a.arg}={a.arg}" for a in arguments.kwonlyargs]
    passed += [f"**{arguments.kwarg.arg}"] if arguments.kwarg else []
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    first = body[0].lineno if body else function.body[-1].end_lineno or 0
    pad = " " * (function.col_offset + 4)
    lines = (
        f"{pad}from nanovllm.yours import yours",
        "",
        f'{pad}return yours("{exercise.name}", "{exercise.file}", "{name}")({", ".join(passed)})',
    )
    return _Cut(first, function.end_lineno or first, lines)


def _find(tree: ast.AST, names: list[str]) -> ast.AST | None:
    for name in names:
        children = [n for n in ast.iter_child_nodes(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
        found = next((child for child in children if child.name == name), None)
        if found is None:
            return None
        tree = found
    return tree


def _drop_orphans(target: Path, removed: dict[Path, str]) -> None:
    """Remove functions and methods that nothing but removed code named, until there are no more."""
    uses = Counter(word for path in target.rglob("*.py") for word in _words(path.read_text(encoding="utf-8")))
    again = True
    while again:
        again = False
        for path in removed:
            text = path.read_text(encoding="utf-8")
            for node in _definitions(ast.parse(text)):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                own = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
                words = Counter(_words(own))
                if uses[node.name] == words[node.name] and node.name in _words(removed[path]):
                    uses -= words
                    removed[path] += f"\n{own}"
                    path.write_text(_apply(text, [_Cut(first, node.end_lineno or first)]), encoding="utf-8")
                    again = True
                    break


def _words(text: str) -> list[str]:
    return re.findall(r"\b\w+\b", text)


def _definitions(tree: ast.Module) -> list[ast.FunctionDef]:
    methods = [m for c in tree.body if isinstance(c, ast.ClassDef) for m in c.body]
    functions = [f for f in (*tree.body, *methods) if isinstance(f, ast.FunctionDef)]
    return [f for f in functions if not f.name.startswith("__")]


def _without_variants(text: str) -> str:
    """The module of an exercise with `bugs=()` and `harmless=()`, and without the constants that only those used."""
    cuts = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.keyword) and node.arg in ("bugs", "harmless"):
            pad = " " * node.col_offset
            cuts.append(_Cut(node.lineno, node.value.end_lineno or node.lineno, (f"{pad}{node.arg}=(),",)))
    return _without_unused(_apply(text, cuts))


def _without_unused(text: str) -> str:
    for node in ast.parse(text).body:
        names = [t.id for t in node.targets if isinstance(t, ast.Name)] if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.FunctionDef):
            names = [node.name]
        if names and names[0].startswith("_") and len(re.findall(rf"\b{names[0]}\b", text)) == 1:
            return _without_unused(_apply(text, [_Cut(node.lineno, node.end_lineno or node.lineno)]))
    return text
