"""The wheel a user gets: it holds every module and every asset, and works outside the checkout.

The distribution is built from a copy (a stale build/ folder of the checkout cannot leak in) the way it is published:
source archive first, wheel from that. It is installed into a throw-away environment which borrows this one's
libraries through a .pth file, so that no torch is installed again.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "nanovllm"

IMPORT_ALL = """
import importlib, json, pkgutil, nanovllm
# The one module that needs what no machine without a GPU can install.
skipped = ["nanovllm.paged_kv.backends.flash_attn_backend"]
found = [m.name for m in pkgutil.walk_packages(nanovllm.__path__, "nanovllm.")]
names = [name for name in found if not name.endswith("__main__") and name not in skipped]
origins = {name: importlib.import_module(name).__file__ for name in ["nanovllm", *names]}
print(json.dumps({"version": nanovllm.__version__, "origins": origins}))
"""

FIND_CHECKPOINT = """
import json, importlib.resources
assets = importlib.resources.files("nanovllm") / "assets"
from transformers import AutoConfig, AutoTokenizer
from safetensors import safe_open
found = {}
for folder in assets.iterdir():
    if (folder / "config.json").is_file():
        with safe_open(str(folder / "model.safetensors"), framework="numpy") as weights:
            tensors = len(weights.keys())
        config = AutoConfig.from_pretrained(str(folder))
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
        found[folder.name] = [config.model_type, tensors, len(tokenizer), config.vocab_size]
print(json.dumps(found))
"""


def run(*command: str | Path, cwd: Path, seconds: int = 240) -> str:
    """Run a command away from the checkout and return what it printed, or fail with all that it said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"{command} exited {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the source archive from a copy of the sources, and the wheel from that archive."""
    pytest.importorskip("build", reason="the packaging tests need the dev extra")
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(SOURCE, copy / "nanovllm", ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--no-isolation", ".", cwd=copy)
    (built,) = (copy / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an environment of its own and return that environment's folder."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home.parent)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index")
    run(*pip, wheel, cwd=home.parent)
    site_packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=home).strip())
    # Appended after the environment's own folder, and without running the .pth files there: an editable install of
    # this checkout does not come along.
    borrowed = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    (site_packages / "borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")
    return home


def test_wheel_holds_every_module_and_asset(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    files = (path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    wanted = {path.relative_to(ROOT).as_posix() for path in files}
    missing = sorted(wanted - packed)
    assert not missing, f"in the checkout but not in the wheel: {missing}"
    strangers = sorted(name for name in packed if not name.startswith(("nanovllm/", "nanovllm-")))
    assert not strangers, f"the wheel installs things outside its package: {strangers}"


def test_every_module_imports_from_the_wheel(installed: Path) -> None:
    report = json.loads(run(installed / "bin" / "python", "-c", IMPORT_ALL, cwd=installed))
    assert report["version"] == project()["version"]
    outside = {name: origin for name, origin in report["origins"].items() if not Path(origin).is_relative_to(installed)}
    assert not outside, f"imported from somewhere else: {outside}"
    assert len(report["origins"]) == len(
        [p for p in SOURCE.rglob("*.py") if p.name not in ("__main__.py", "flash_attn_backend.py")]
    )


def test_the_checkpoint_is_found_in_the_wheel(installed: Path) -> None:
    found = json.loads(run(installed / "bin" / "python", "-c", FIND_CHECKPOINT, cwd=installed))
    assert found, "no folder under nanovllm/assets holds a config.json"
    for name, (model_type, num_tensors, tokens, vocab_size) in found.items():
        assert model_type == "qwen3", name
        assert num_tensors > 0, name
        assert tokens <= vocab_size, f"{name}: {tokens} tokens in the tokenizer, {vocab_size} rows of logits"


@pytest.mark.skipif(not (SOURCE / "cli").is_dir(), reason="this checkout has no command line yet")
def test_the_console_script_runs_from_the_wheel(installed: Path) -> None:
    printed = run(installed / "bin" / "nanovllm", "--help", cwd=installed)
    for command in ("generate", "demo", "info"):
        assert command in printed


def test_constraints_pin_every_requirement() -> None:
    from packaging.requirements import Requirement

    pins = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            pins[name] = version
    extras = project()["optional-dependencies"]
    wanted = [*project()["dependencies"], *extras["notebooks"], *extras["dev"]]
    for requirement in map(Requirement, wanted):
        if requirement.name == "nanovllm":
            continue
        assert requirement.name in pins, f"constraints.txt pins no {requirement.name}"
        assert requirement.specifier.contains(pins[requirement.name]), f"{requirement}, pinned {pins[requirement.name]}"


def test_flash_attn_is_never_a_plain_requirement() -> None:
    extras = project()["optional-dependencies"]
    others = [*project()["dependencies"], *(line for name in extras if name != "gpu" for line in extras[name])]
    assert not [line for line in others if line.startswith("flash")]
    assert [line for line in extras["gpu"] if line.startswith("flash-attn")]
