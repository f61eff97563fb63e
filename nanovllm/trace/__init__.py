"""What happened: one record a step, taken from the live objects and the tensors on the device.

Read in this order: `record.py` (what a step's record holds), `state.py` (the copy of the live state), `recorder.py`
(how an engine is watched), `trace.py` (many steps, stored as changes), `stepper.py` (step by hand, forward and back),
`explain.py` (a step in words), `chrome.py` (for Perfetto).
"""

from nanovllm.trace.chrome import chrome_trace, save_chrome_trace
from nanovllm.trace.explain import explain
from nanovllm.trace.live import peek
from nanovllm.trace.record import Event, EventKind, Note, Record, Tensors, difference
from nanovllm.trace.recorder import Recorder
from nanovllm.trace.state import Published, State, capture
from nanovllm.trace.stepper import Stepper
from nanovllm.trace.trace import Trace

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
