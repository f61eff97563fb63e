"""Every limit of the server in one dataclass; each is refused with a sentence when it is wrong."""

from dataclasses import dataclass
from typing import Any

from nanovllm.checks import check_float, check_int
from nanovllm.errors import ConfigError


@dataclass(slots=True)
class ServeSettings:
    """Limits and options of the server; those of the engine are in `EngineConfig`.

    host, port: where it listens; the default is reachable from this machine only. Port 0 takes a free one.
    model_name: what clients call the model; None takes the engine's.
    api_key: what clients must send as a bearer token; None asks for none.
    max_queue: requests that may wait besides those that run (max_num_seqs); the next one gets 429.
    retry_after: seconds, told to a client that got 429 or 503.
    max_body_bytes: size of a request's body.
    request_timeout: seconds a request may take from arrival to its last token; a request may ask for less.
    drain_timeout: seconds that running requests get to finish after SIGTERM.
    max_prefill_steps, max_prefill_tokens: the starvation bound, see serve/policy.py; 0 steps is the plain scheduler.

    Raises ConfigError for a value of the wrong type or out of range.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model_name: str | None = None
    api_key: str | None = None
    max_queue: int = 256
    retry_after: int = 1
    max_body_bytes: int = 4 * 2**20
    request_timeout: float = 600.0
    drain_timeout: float = 60.0
    max_prefill_steps: int = 2
    max_prefill_tokens: int | None = None

    def __post_init__(self) -> None:
        self.port = check_int("port", self.port, 0, 65535, ConfigError)
        for name, low in (("max_queue", 0), ("retry_after", 1), ("max_body_bytes", 1), ("max_prefill_steps", 0)):
            setattr(self, name, check_int(name, getattr(self, name), low, error=ConfigError))
        if self.max_prefill_tokens is not None:
            self.max_prefill_tokens = check_int("max_prefill_tokens", self.max_prefill_tokens, 1, error=ConfigError)
        for name in ("request_timeout", "drain_timeout"):
            setattr(self, name, check_float(name, getattr(self, name), 0.0, 86400.0, ConfigError, open_low=True))
        check_text("host", self.host, "name 0.0.0.0 or :: to be reachable from everywhere")
        for name, way_out in (("model_name", "for the checkpoint's own"), ("api_key", "for none")):
            if getattr(self, name) is not None:
                check_text(name, getattr(self, name), f"give it at least one character, or leave it out {way_out}")


def check_text(name: str, value: Any, way_out: str) -> None:
    """Raise ConfigError for what is no text, or an empty one, which as a host would mean every address."""
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a text, not {value!r} ({type(value).__name__})")
    if not value:
        raise ConfigError(f"{name} is empty: {way_out}")
