"""Times and counts of one request, and the formulas of the figures made from them."""

from dataclasses import dataclass


@dataclass(slots=True)
class RequestMetrics:
    """Times are seconds of time.perf_counter(); counts are tokens unless named otherwise.

    num_prefix_tokens: prompt tokens found in the prefix cache. num_recomputed_tokens: computed again after preemption.
    """

    arrival_time: float
    first_token_time: float | None = None
    finish_time: float | None = None
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_prefix_tokens: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0

    @property
    def ttft(self) -> float | None:
        """Time to first token, s: first_token_time - arrival_time."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def e2e_latency(self) -> float | None:
        """End-to-end latency, s: finish_time - arrival_time."""
        return None if self.finish_time is None else self.finish_time - self.arrival_time

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, s: (finish_time - first_token_time) / (completion tokens - 1)."""
        if self.first_token_time is None or self.finish_time is None or self.num_completion_tokens < 2:
            return None
        return (self.finish_time - self.first_token_time) / (self.num_completion_tokens - 1)
