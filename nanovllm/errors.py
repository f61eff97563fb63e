"""The exceptions of the engine: each one's message is a sentence that says what was wrong and what to do."""


class NanoVLLMError(Exception):
    """Base class of every error that the engine raises on purpose."""


class ConfigError(NanoVLLMError, ValueError):
    """A limit or option of the engine is missing, unknown, of the wrong type or out of range."""


class RequestError(NanoVLLMError, ValueError):
    """A request (prompt or sampling parameters) was refused; nothing was queued."""


class CheckpointError(NanoVLLMError, ValueError):
    """A checkpoint is missing, truncated, of another architecture, or does not match its own config."""


class MemoryBudgetError(NanoVLLMError, RuntimeError):
    """The KV cache that was asked for does not fit; the message says what would."""


class BackendError(NanoVLLMError, RuntimeError):
    """An attention backend cannot run on this machine or with these settings; the message names the others."""
