"""The shape of the package, checked on its source: which part may import which, and how long things may grow.

    engine -> qwen3 -> paged_kv -> scheduler        (a part imports only itself and what stands to its right)

Every import counts, wherever it stands: in a function, under `TYPE_CHECKING`, or as `import_module("...")`. Each rule
has a test that plants a breach in a temporary tree and expects it to be reported.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nanovllm

PACKAGE = Path(nanovllm.__file__).parent

LAYERS = ("scheduler", "paged_kv", "qwen3", "engine")  # lowest first
OBSERVERS = ("trace", "viz", "bench", "serve", "course")  # they look at the engine; it does not know them
POLICY = ("nanovllm.scheduler.scheduler", "nanovllm.scheduler.block_manager")
KNOWS_NO_POLICY = ("paged_kv", "qwen3")
TENSOR_LIBRARIES = ("torch", "triton", "flash_attn", "transformers", "safetensors")

MAX_MODULE_LINES = 300
MAX_FUNCTION_LINES = 60  # without the docstring: explaining is not what makes a function long


# --- reading the source ------------------------------------------------------------------------------------------


class SourceTree:
    """The modules of one package folder, by dotted name."""

    def __init__(self, package: Path) -> None:
        self.modules: dict[str, ast.Module] = {}
        self.paths: dict[str, Path] = {}
        self.packages: set[str] = set()
        for path in sorted(package.rglob("*.py")):
            parts = ("nanovllm", *path.relative_to(package).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts = parts[:-1]
                self.packages.add(".".join(parts))
            name = ".".join(parts)
            self.modules[name] = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
            self.paths[name] = path

    def imports(self, module: str) -> Iterator[tuple[int, str]]:
        """Yield (line, dotted name) for every import in `module`, each name traced to the module that defines it."""
        for node in ast.walk(self.modules[module]):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name
            elif isinstance(node, ast.ImportFrom):
                base = self._absolute(module, node)
                for alias in node.names:
                    yield node.lineno, self._defining_module(base, alias.name)
            elif isinstance(node, ast.Call) and _called_name(node) in ("import_module", "__import__") and node.args:
                target = node.args[0]
                if isinstance(target, ast.Constant) and isinstance(target.value, str):
                    yield node.lineno, target.value

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        """Return the module that `from <...> import` names, with leading dots resolved."""
        if node.level == 0:
            return node.module or ""
        package = module.split(".") if module in self.packages else module.split(".")[:-1]
        package = package[: len(package) - (node.level - 1)]
        return ".".join([*package, *([node.module] if node.module else [])])

    def _defining_module(self, base: str, name: str, hops: int = 8) -> str:
        """Follow `from base import name` through re-exports in `__init__.py` to where `name` comes from."""
        if f"{base}.{name}" in self.modules:
            return f"{base}.{name}"
        if base not in self.packages or hops == 0:
            return base
        for node in ast.walk(self.modules[base]):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._defining_module(self._absolute(base, node), alias.name, hops - 1)
        return base


def _called_name(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _part(module: str) -> str:
    """Return the top-level part of a dotted name: "nanovllm.engine.llm" -> "engine"."""
    return module.split(".")[1] if module.startswith("nanovllm.") else ""


# --- the rules ---------------------------------------------------------------------------------------------------


def arrow_breaches(package: Path) -> list[str]:
    """Return one sentence for each import under `package` that points the wrong way."""
    tree = SourceTree(package)
    breaches = []
    for module in tree.modules:
        for line, target in tree.imports(module):
            reason = _breach(_part(module), target, tree)
            if reason:
                where = tree.paths[module].relative_to(package.parent)
                breaches.append(f"{where}:{line}: imports {target}: {reason}")
    return breaches


def _breach(part: str, target: str, tree: SourceTree) -> str | None:
    """Return why a module of `part` may not import `target`, or None where it may."""
    if part not in LAYERS:
        return None
    allowed = LAYERS[: LAYERS.index(part) + 1]
    too_high = sorted(_parts_behind(target, tree) - set(allowed))
    if too_high:
        return f"{part} may know {', '.join(allowed)}, not {', '.join(too_high)}"
    if part in KNOWS_NO_POLICY and target.startswith(POLICY):
        return f"{part} knows the scheduler's data, not its policy"
    if part == "scheduler" and target.split(".")[0] in TENSOR_LIBRARIES:
        return "the scheduler knows no tensors"
    return None


def _parts_behind(target: str, tree: SourceTree, seen: frozenset[str] = frozenset()) -> set[str]:
    """Return the layers and observers that importing `target` leads to.

    A module at the top of the package (config.py, errors.py) belongs to no part and may be imported by all, so it is
    looked through: it must not be a way around the arrows.
    """
    if _part(target) in LAYERS + OBSERVERS:
        return {_part(target)}
    if target not in tree.modules or target == "nanovllm" or target in seen:
        return set()
    found = (_parts_behind(name, tree, seen | {target}) for _, name in tree.imports(target))
    return set().union(*found)


def size_breaches(package: Path) -> list[str]:
    """Return one sentence for each module and function under `package` that is too long."""
    breaches = []
    for path in sorted(package.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        where = path.relative_to(package.parent)
        lines = len(source.splitlines())
        if lines > MAX_MODULE_LINES:
            breaches.append(f"{where}: {lines} lines, at most {MAX_MODULE_LINES}: is it still one idea?")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = _code_lines(node)
                if lines > MAX_FUNCTION_LINES:
                    breaches.append(
                        f"{where}:{node.lineno}: {node.name} has {lines} lines, at most {MAX_FUNCTION_LINES}: "
                        "is it doing two jobs?"
                    )
    return breaches


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body. A signature of one parameter a line is layout, and a docstring is no code."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or function.lineno) - body[0].lineno + 1 if body else 0


# --- the package as it is ----------------------------------------------------------------------------------------


def test_imports_follow_the_arrows() -> None:
    breaches = arrow_breaches(PACKAGE)
    assert not breaches, "imports against the arrows:\n" + "\n".join(breaches)


def test_modules_and_functions_stay_small() -> None:
    breaches = size_breaches(PACKAGE)
    assert not breaches, "too long:\n" + "\n".join(breaches)


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    missing = sorted(str(folder) for folder in folders if not (folder / "__init__.py").exists())
    assert not missing, f"no __init__.py, so the wheel would leave them out: {missing}"


def test_scheduler_imports_without_torch() -> None:
    code = f"import sys, nanovllm.scheduler\nprint([name for name in {TENSOR_LIBRARIES!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]", f"import nanovllm.scheduler brought in {done.stdout.strip()}"


# --- planted breaches --------------------------------------------------------------------------------------------


@pytest.fixture
def plant(tmp_path: Path):
    """Write a small package in the shape of the real one, with the given files changed or added."""

    def write(**files: str) -> Path:
        package = tmp_path / "nanovllm"
        tree = {
            "__init__.py": "from nanovllm.engine.llm import LLM\n__version__ = '0'\n",
            "config.py": "import torch\n",
            "scheduler/__init__.py": "from .scheduler import Scheduler\nfrom .sequence import Sequence\n",
            "scheduler/scheduler.py": "from nanovllm.scheduler.sequence import Sequence\nclass Scheduler: ...\n",
            "scheduler/block_manager.py": "class BlockManager: ...\n",
            "scheduler/sequence.py": "class Sequence: ...\n",
            "paged_kv/__init__.py": "",
            "paged_kv/batch.py": "import torch\nfrom nanovllm.scheduler import Sequence\n",
            "qwen3/__init__.py": "",
            "qwen3/model.py": "import torch\nfrom nanovllm.paged_kv.batch import batch\n",
            "engine/__init__.py": "",
            "engine/llm.py": "from nanovllm.scheduler import Scheduler\nfrom nanovllm.qwen3 import model\n",
            "trace/__init__.py": "from nanovllm.engine.llm import LLM\n",
            "viz/__init__.py": "from nanovllm import trace\n",
            "course/__init__.py": "from nanovllm.engine import llm\n",
        }
        tree.update({name.replace("__", "/") + ".py": source for name, source in files.items()})
        for name, source in tree.items():
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            (package / name).write_text(source, encoding="utf-8")
        return package

    return write


def test_a_tree_in_order_has_no_breach(plant) -> None:
    package = plant(
        engine__version="from nanovllm import __version__\nfrom nanovllm import config\nimport nanovllm.config\n",
        qwen3__data="from nanovllm.scheduler.sequence import Sequence\n",
    )
    assert arrow_breaches(package) == []
    assert size_breaches(package) == []


@pytest.mark.parametrize(
    ("where", "source", "named"),
    [
        ("scheduler__extra", "from nanovllm.paged_kv.batch import batch", "not paged_kv"),
        ("scheduler__extra", "import torch", "no tensors"),
        ("scheduler__extra", "import torch.nn as nn", "no tensors"),
        ("scheduler__extra", "from torch.nn import functional", "no tensors"),
        ("paged_kv__extra", "import nanovllm.qwen3.model", "not qwen3"),
        ("paged_kv__extra", "from nanovllm import qwen3", "not qwen3"),
        ("paged_kv__extra", "from ..qwen3 import model", "not qwen3"),
        ("paged_kv__extra", "from .. import qwen3", "not qwen3"),
        ("paged_kv__extra", "from nanovllm.scheduler.block_manager import BlockManager", "not its policy"),
        ("qwen3__extra", "from nanovllm.scheduler import scheduler", "not its policy"),
        ("qwen3__extra", "from nanovllm.scheduler import Scheduler", "not its policy"),
        ("qwen3__extra", "from nanovllm.engine.llm import LLM", "not engine"),
        ("qwen3__extra", "from nanovllm import LLM", "not engine"),
        ("engine__extra", "from nanovllm.course import swap", "not course"),
        ("engine__extra", "from nanovllm import viz", "not viz"),
        ("engine__extra", "from nanovllm.trace import Tracer", "not trace"),
        ("engine__extra", "import nanovllm.bench", "not bench"),
        ("engine__extra", "import nanovllm.serve", "not serve"),
        ("engine__extra", "def late():\n    from nanovllm.viz import draw", "not viz"),
        ("engine__extra", "if TYPE_CHECKING:\n    from nanovllm.trace import Record", "not trace"),
        ("engine__extra", "importlib.import_module('nanovllm.course')", "not course"),
        ("engine__deep__extra", "from ...viz import draw", "not viz"),
    ],
)
def test_a_planted_import_is_reported(plant, where: str, source: str, named: str) -> None:
    breaches = arrow_breaches(plant(**{where: source}))
    path = where.replace("__", "/") + ".py"
    assert len(breaches) == 1, breaches
    assert breaches[0].startswith(f"nanovllm/{path}:"), breaches
    assert named in breaches[0], breaches


def test_a_top_level_module_is_no_way_around(plant) -> None:
    package = plant(
        helper="from nanovllm.other import thing\n",
        other="from nanovllm.helper import x\nfrom nanovllm.engine.llm import LLM\n",
        scheduler__extra="from nanovllm.helper import thing\n",
    )
    breaches = arrow_breaches(package)
    assert len(breaches) == 1, breaches
    assert "scheduler/extra.py:1: imports nanovllm.helper" in breaches[0]
    assert "not engine" in breaches[0]


def test_a_long_module_and_a_long_function_are_reported(plant) -> None:
    body = "".join(f"    x = {i}\n" for i in range(MAX_FUNCTION_LINES + 1))
    package = plant(
        engine__long_module="x = 1\n" * (MAX_MODULE_LINES + 1),
        engine__long_function=f"def many():\n{body}",
        engine__long_method=f"class C:\n    async def many(self):\n{body.replace('    x', '        x')}",
        engine__explained=f'def few():\n    """{"why" + chr(10) * MAX_FUNCTION_LINES}"""\n    return 1\n',
    )
    breaches = size_breaches(package)
    assert len(breaches) == 3, breaches
    assert "long_function.py:1: many has 61 lines, at most 60" in breaches[0]
    assert "long_method.py:2: many has 61 lines" in breaches[1]
    assert "long_module.py: 301 lines, at most 300" in breaches[2]
