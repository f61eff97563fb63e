"""Step control without any widget: by hand, to the next event, and back through what was recorded."""

from typing import Any

from nanovllm.trace.record import Event, EventKind, Record
from nanovllm.trace.recorder import Recorder
from nanovllm.trace.trace import Trace


class Stepper:
    """A place in a trace. Past its end a live engine takes a step; a recorded run simply stops there.

    position: index of the step that is shown, None before the first. Use `Stepper.live(engine)` to drive an engine and
    `Stepper(trace)` to walk through a recording.
    """

    def __init__(self, trace: Trace, recorder: Recorder | None = None) -> None:
        self.trace = trace
        self.recorder = recorder
        self.position: int | None = None

    @classmethod
    def live(cls, engine: Any, watch_cache: bool = True) -> "Stepper":
        """Watch `engine` from now on; `close()` lets it go."""
        recorder = Recorder(engine, watch_cache=watch_cache).attach()
        return cls(recorder.trace, recorder)

    @property
    def record(self) -> Record | None:
        """The step at the current position."""
        return None if self.position is None else self.trace[self.position]

    @property
    def at_end(self) -> bool:
        """True when `forward` would change nothing: the recording's last step, and no live request left."""
        if self.position is not None and self.position < len(self.trace) - 1:
            return False
        if self.position is None and len(self.trace):
            return False
        return self.recorder is None or self.recorder.engine.is_finished()

    def forward(self) -> Record | None:
        """The next recorded step, or, at the end of the recording, a new step of the live engine."""
        following = 0 if self.position is None else self.position + 1
        if following >= len(self.trace):
            if self.at_end:
                return self.record
            assert self.recorder is not None, "a stepper that is not at its end has a live engine"
            self.recorder.engine.step()
            self.recorder.learn_labels()
        self.position = following
        return self.record

    def back(self) -> Record | None:
        """The step before; stays at the first."""
        if self.position:
            self.position -= 1
        return self.record

    def seek(self, index: int) -> Record:
        """Go to a recorded step. Raises IndexError when there is none."""
        record = self.trace[index]
        self.position = index % len(self.trace)
        return record

    def run_to(self, kind: EventKind | str, max_steps: int = 10_000) -> Event | None:
        """Go forward to the next step in which an event of `kind` happens; None, at the end, when none does."""
        wanted = EventKind(kind)
        for _ in range(max_steps):
            if self.at_end:
                return None
            record = self.forward()
            found = [e for e in record.events() if e.kind is wanted] if record else []
            if found:
                return found[0]
        return None

    def back_to(self, kind: EventKind | str) -> Event | None:
        """Go back to the nearest earlier step with an event of `kind`; stay when there is none."""
        wanted = EventKind(kind)
        for index in range((self.position or 0) - 1, -1, -1):
            found = [e for e in self.trace[index].events() if e.kind is wanted]
            if found:
                self.position = index
                return found[0]
        return None

    def close(self) -> None:
        """Stop watching a live engine."""
        if self.recorder is not None:
            self.recorder.detach()
