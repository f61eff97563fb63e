"""Where the checkout's exercises and solutions lie; checks of kernels need Triton's interpreter."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ("2.5", "2.8")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Their checks run kernels on CPU tensors; a process that sees a GPU has no interpreter. Grading never sees one."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    for item in items:
        values = item.callspec.params.values() if hasattr(item, "callspec") else ()
        numbers = [value if isinstance(value, str) else getattr(value, "number", "") for value in values]
        if set(map(str, numbers)) & set(KERNELS):
            item.add_marker(pytest.mark.skip(reason="needs TRITON_INTERPRET=1, which stands only where no GPU is seen"))


@pytest.fixture(autouse=True)
def own_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test touches the progress of the person who runs it."""
    monkeypatch.setenv("NANOVLLM_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def solutions() -> Path:
    return ROOT / "solutions"


@pytest.fixture
def exercises() -> Path:
    return ROOT / "exercises"
