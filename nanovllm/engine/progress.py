"""The progress bar of generate(), with prefill and decode rates."""

import time

from tqdm.auto import tqdm

from nanovllm.engine.outputs import StepOutput


class GenerationProgress:
    """Counts finished requests; beside them the newest step's prefill and decode rate in tokens/s."""

    def __init__(self, num_requests: int, enabled: bool) -> None:
        self._bar = tqdm(total=num_requests, desc="Generating", unit="req", dynamic_ncols=True) if enabled else None
        self._last = time.perf_counter()
        self._rates = {"Prefill": 0.0, "Decode": 0.0}

    def update(self, step: StepOutput) -> None:
        """Book one step."""
        if self._bar is None:
            return
        now = time.perf_counter()
        self._rates["Prefill" if step.is_prefill else "Decode"] = step.num_tokens / max(now - self._last, 1e-9)
        self._last = now
        self._bar.set_postfix({name: f"{rate:,.0f}tok/s" for name, rate in self._rates.items()}, refresh=False)
        self._bar.update(len(step.finished))

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()
