"""What happened: one record a step, taken from the live objects and the tensors on the device.

    with Recorder(llm) as recorder:
        llm.generate(prompts)
    for sentence in explain(recorder.trace[0]):
        print(sentence)

Read in this order: `record.py` (what a step's record holds), `state.py` (the copy of the live state), `recorder.py`
(how an engine is watched), `trace.py` (many steps, stored as changes), `stepper.py` (step by hand, forward and back),
`words.py` (a step explained), `chrome.py` (for Perfetto). Names are imported on first use, so that the command line
can describe `nanovllm trace` without loading torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanovllm.trace.chrome import chrome_trace, save_chrome_trace
    from nanovllm.trace.live import peek
    from nanovllm.trace.record import Event, EventKind, Note, Record, Tensors, difference
    from nanovllm.trace.recorder import Recorder
    from nanovllm.trace.state import Published, State, capture
    from nanovllm.trace.stepper import Stepper
    from nanovllm.trace.trace import Trace
    from nanovllm.trace.words import explain

__all__ = [
    "Event",
    "EventKind",
    "Note",
    "Published",
    "Record",
    "Recorder",
    "State",
    "Stepper",
    "Tensors",
    "Trace",
    "capture",
    "chrome_trace",
    "difference",
    "explain",
    "peek",
    "save_chrome_trace",
]

_HOMES = {
    "chrome": ("chrome_trace", "save_chrome_trace"),
    "live": ("peek",),
    "record": ("Event", "EventKind", "Note", "Record", "Tensors", "difference"),
    "recorder": ("Recorder",),
    "state": ("Published", "State", "capture"),
    "stepper": ("Stepper",),
    "trace": ("Trace",),
    "words": ("explain",),
}


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'nanovllm.trace' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"nanovllm.trace.{home}"), name)


def __dir__() -> list[str]:
    return __all__
