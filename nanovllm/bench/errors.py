"""The refusals of the benchmarks."""

from nanovllm.errors import NanoVLLMError


class BenchError(NanoVLLMError, ValueError):
    """A benchmark cannot run, or a file is no result of one; the message says why and what to do."""
