"""What Colab has and this environment has not: ipywidgets 7, and notebooks outside of a checkout."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets
import pytest

from nanovllm.course.notebook import card, predict
from nanovllm.trace.workload import arrivals, record_run, small_llm, task_prompts
from nanovllm.viz.bundle import live_form
from nanovllm.viz.widget import StepperWidget
from scripts.notebooks import FIRST_CELL, FOLDER, ROOT, WIDGET, read


def stepper() -> StepperWidget:
    with small_llm() as llm:
        return StepperWidget(record_run(llm, arrivals(task_prompts())[:1]))


SHOWN: dict[str, Callable[[], Any]] = {
    "stepper": stepper,
    "predict": lambda: predict("How many?", 3),
    "predict with choices": lambda: predict("How many?", 3, choices=[2, 3]),
    "card": lambda: card("1.1"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_widgets_show_under_ipywidgets_7(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its widgets have no method that makes their MIME bundle."""
    monkeypatch.delattr(ipywidgets.Widget, "_repr_mimebundle_")
    bundle = SHOWN[name]()._repr_mimebundle_()
    assert bundle.keys() == {WIDGET, "text/plain", "text/html"}
    reference = f"IPY_MODEL_{bundle[WIDGET]['model_id']}"
    assert isinstance(ipywidgets.widget_serialization["from_json"](reference, None), ipywidgets.VBox)


def test_the_form_is_that_of_ipywidgets_8() -> None:
    box = ipywidgets.VBox([])
    assert live_form(box)[WIDGET] == box._repr_mimebundle_()[WIDGET]


NOT_INSTALLED = """\
import importlib.util
import sys
import tomllib
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "nanovllm" else find_spec(name)
"""


def first_cell(folder: Path, source: str | None) -> subprocess.CompletedProcess[str]:
    """Run the first cell as a script in `folder`: it does not find nanovllm, and pip's call is printed."""
    cell = FIRST_CELL.replace('%pip install {options} "{source}"', 'print("pip install", options, source)')
    assert cell != FIRST_CELL
    environment = {k: v for k, v in os.environ.items() if k != "NANOVLLM_SOURCE"}
    if source:
        environment["NANOVLLM_SOURCE"] = source
    command = [sys.executable, "-c", NOT_INSTALLED + cell]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_first_cell_installs_the_checkout_or_the_source(tmp_path: Path) -> None:
    folder = tmp_path / "content"
    folder.mkdir()
    assert "set NANOVLLM_SOURCE to what pip should install" in first_cell(folder, None).stderr
    wheel = "nanovllm[notebooks] @ file:///w.whl"
    assert first_cell(folder, wheel).stdout == f"pip install --quiet {wheel}\nnanovllm is ready.\n"
    (tmp_path / "pyproject.toml").touch()
    assert first_cell(folder, wheel).stdout == f"pip install --quiet -e {tmp_path}[notebooks]\nnanovllm is ready.\n"


def packages_of(extra: str) -> set[str]:
    """What pip installs for nanovllm[extra] by name, extras that it names in turn included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: set[str] = set()
    for requirement in [*project["dependencies"], *project["optional-dependencies"][extra]]:
        inner = re.match(r"nanovllm\[(\w+)\]", requirement)
        found |= packages_of(inner[1]) if inner else set(re.findall(r"^[\w-]+", requirement))
    return found


def imports_of(path: Path) -> set[str]:
    """Dotted names of the modules that a notebook's cells import."""
    names: set[str] = set()
    for cell in read(path).cells:
        if cell.cell_type == "code" and cell.source != FIRST_CELL:
            for node in ast.walk(ast.parse(cell.source)):
                names |= {a.name for a in node.names} if isinstance(node, ast.Import) else set()
                names |= {str(node.module)} if isinstance(node, ast.ImportFrom) else set()
    return names


def test_the_notebooks_extra_has_what_the_notebooks_import() -> None:
    names = set().union(*map(imports_of, FOLDER.glob("*.ipynb")))
    wanted = {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) - {"nanovllm"}
    assert wanted >= {"torch", "httpx"}
    assert wanted <= packages_of("notebooks")
    assert any(name.startswith("nanovllm.serve.") for name in names)
    assert packages_of("serve") <= packages_of("notebooks")
