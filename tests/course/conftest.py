"""Where the checkout's exercises and solutions lie."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


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
