"""The `LLM` that `from nanovllm import LLM` gives: the engine's, and the way to run it on functions of your own."""

from collections.abc import Mapping
from typing import Any

from nanovllm.engine.llm import LLM as EngineLLM


class LLM(EngineLLM):
    """Offline generation; see `nanovllm.engine.llm.LLM`, to which this adds one option.

    swap: pieces of the engine to replace in every rank, as `nanovllm.course.swap` takes them:

        llm = LLM("qwen3-tiny", tensor_parallel_size=2, swap={"1.3": "exercises", "RMSNorm.forward": my_forward})
        llm.generate(["count: 1 2 3"])
        print(llm.swap_calls())  # {"BlockManager.allocate": [1, 0], ...}: calls of each piece, by rank

    Without it nothing of the course is imported. With it the object is a `nanovllm.course.swapped_llm.SwappedLLM`.
    """

    def __new__(cls, model: str, *, swap: Mapping[str, Any] | None = None, **options: Any) -> "LLM":
        """Choose the class."""
        if not swap or cls is not LLM:
            return super().__new__(cls)
        from nanovllm.course.swapped_llm import SwappedLLM

        return super().__new__(SwappedLLM)

    def __init__(self, model: str, *, swap: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(model, **options)
