"""Fixtures of several areas; a conftest.py takes the ones that it needs by importing them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import write_checkpoint


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products are faster on one thread, and their sums come in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer checkpoint with a byte tokenizer: most of what it says is no valid UTF-8."""
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "tiny", tokenizer=True)
