"""nanovllm: a small LLM inference engine for Qwen3 that you can watch, and the course that runs on it.

    from nanovllm import LLM, SamplingParams

    llm = LLM("qwen3-tiny")
    print(llm.generate(["count: 5 6 7 8"], SamplingParams(temperature=0))[0].text)

The four parts are the four packages: `scheduler`, `paged_kv`, `qwen3`, `engine`. Names are imported on first use, so
that `import nanovllm.scheduler` needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nanovllm.engine.outputs import RequestOutput
    from nanovllm.llm import LLM
    from nanovllm.sampling_params import SamplingParams

__all__ = ["LLM", "RequestOutput", "SamplingParams", "__version__"]

_LAZY = {
    "LLM": "nanovllm.llm",
    "RequestOutput": "nanovllm.engine.outputs",
    "SamplingParams": "nanovllm.sampling_params",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'nanovllm' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
