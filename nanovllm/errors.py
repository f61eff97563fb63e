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


class CollectiveError(NanoVLLMError, RuntimeError):
    """A collective broke off because another rank is gone; what happened to that rank is the error to look for."""


class RankError(NanoVLLMError, RuntimeError):
    """A rank failed to start, raised, was killed or hung; the engine has been closed and its processes ended.

    rank: which one. worker_traceback: its traceback as text, empty when it left none (killed, stopped).
    """

    def __init__(self, message: str, rank: int, worker_traceback: str = "") -> None:
        super().__init__(f"{message}\n\ntraceback of rank {rank}:\n{worker_traceback}" if worker_traceback else message)
        self.rank = rank
        self.worker_traceback = worker_traceback
