"""Which Python a notebook runs in: this environment's own, whoever else has registered a kernel named python3."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nbformat.sign import NotebookNotary

from scripts import notebooks
from scripts.notebooks import ROOT

ASK = """
from scripts.notebooks import own_kernel_first
own_kernel_first()
from jupyter_client.kernelspec import KernelSpecManager
print(KernelSpecManager().get_kernel_spec("python3").resource_dir)
"""


@pytest.mark.parametrize("variable", ["JUPYTER_PATH", "JUPYTER_DATA_DIR"])
def test_another_kernel_of_that_name_does_not_win(variable: str, tmp_path: Path) -> None:
    other = tmp_path / "kernels" / "python3"
    other.mkdir(parents=True)
    spec = {"argv": ["/no/such/python", "-m", "ipykernel_launcher"], "display_name": "other", "language": "python"}
    (other / "kernel.json").write_text(json.dumps(spec))
    environment = os.environ | {variable: str(tmp_path), "JUPYTER_PREFER_ENV_PATH": "0"}
    found = subprocess.run(
        [sys.executable, "-c", ASK], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert Path(found.stdout.strip()).is_relative_to(sys.prefix)
    without = ASK.replace("own_kernel_first()\nfrom", "from")
    lost = subprocess.run(
        [sys.executable, "-c", without], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert lost.stdout.strip() == str(other), "the other kernel was no danger: this test proves nothing"


def test_make_lab_opens_the_first_notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[list[str]] = []
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path))  # where signatures of trusted notebooks are kept
    monkeypatch.setattr(
        subprocess, "run", lambda command, cwd: started.append(command) or subprocess.CompletedProcess(command, 0)
    )
    assert notebooks.lab(["--no-browser"]) == 0
    [command] = started
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in command
    assert f"--ServerApp.root_dir={ROOT}" in command
    assert command[-1] == "--no-browser"
    assert os.environ["JUPYTER_PATH"].split(os.pathsep)[0] == str(Path(sys.prefix) / "share" / "jupyter")
    notary = NotebookNotary(data_dir=str(tmp_path))
    assert notary.check_signature(notebooks.read(notebooks.FOLDER / "00_start_here.ipynb"))
    assert any(line.startswith("lab:") for line in (ROOT / "Makefile").read_text().splitlines())
