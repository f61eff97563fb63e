"""Without ipywidgets the stepper says what to install."""

import importlib
import sys

import pytest


def test_the_stepper_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.delitem(sys.modules, "nanovllm.viz.widget", raising=False)
    with pytest.raises(ModuleNotFoundError, match=r'needs ipywidgets: pip install "nanovllm\[notebooks\]"'):
        importlib.import_module("nanovllm.viz.widget")
