"""Stubs from solutions: `python -m nanovllm.course.stubs` writes `exercises/` so that the two cannot drift.

In a solution, the lines between `# solution: begin` and `# solution: end` are left out of the stub, and a line
`# stub: TEXT` becomes TEXT. A first line tells linters where imports are unused. All else is
the same.
"""

import argparse
import ast
import sys
from pathlib import Path

from nanovllm.course.errors import CourseError

HEAD = "# ruff: noqa: F401 (imports that you may need)"
BEGIN, END, STUB = "# solution: begin", "# solution: end", "# stub: "


def stub_of(solution: str) -> str:
    """The text of the stub. Raises CourseError when the marks do not pair up."""
    lines: list[str] = []
    begun: int | None = None
    for number, line in enumerate(solution.splitlines(), 1):
        mark = line.strip()
        if mark in (BEGIN, END):
            if (mark == BEGIN) != (begun is None):
                raise CourseError(f"line {number}: {mark!r} has no counterpart")
            begun = number if mark == BEGIN else None
        elif begun is None:
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(indent + mark.removeprefix(STUB) if mark.startswith(STUB) else line)
    if begun is not None:
        raise CourseError(f"line {begun}: {BEGIN!r} has no counterpart")
    stub = "\n".join(lines) + "\n"
    return f"{HEAD}\n{stub}" if _has_unused_imports(stub) else stub


def _has_unused_imports(source: str) -> bool:
    nodes = list(ast.walk(ast.parse(source)))
    imported = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return not imported <= {node.id for node in nodes if isinstance(node, ast.Name)}


def stale_stubs(root: Path) -> list[str]:
    """Paths below `exercises/` that are missing, differ from what the solutions say, or have no solution."""
    wanted = {
        path.relative_to(root / "solutions").as_posix(): stub_of(path.read_text(encoding="utf-8"))
        for path in sorted((root / "solutions").rglob("ex*.py"))
    }
    found = {
        path.relative_to(root / "exercises").as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((root / "exercises").rglob("ex*.py"))
    }
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def write_stubs(root: Path, target: Path | None = None) -> list[Path]:
    """Write the stub of every solution below `root` into `target` (default: its `exercises/`); returns the paths."""
    written = []
    for path in sorted((root / "solutions").rglob("ex*.py")):
        stub = (target or root / "exercises") / path.relative_to(root / "solutions")
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text(stub_of(path.read_text(encoding="utf-8")), encoding="utf-8")
        written.append(stub)
    return written


def main() -> int:
    """Write the stubs, or with --check say which ones are stale (exit code 1)."""
    parser = argparse.ArgumentParser(prog="python -m nanovllm.course.stubs", description=__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="folder that holds solutions/ (default: here)")
    parser.add_argument("--to", type=Path, help="write them there instead of ROOT/exercises")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a stub is stale")
    args = parser.parse_args()
    if args.check:
        stale = stale_stubs(args.root)
        sys.stdout.write("".join(f"stale: exercises/{name}\n" for name in stale))
        return 1 if stale else 0
    written = write_stubs(args.root, args.to)
    sys.stdout.write(f"wrote {len(written)} stubs\n")
    return 0 if written else 1


if __name__ == "__main__":
    sys.exit(main())
