"""Part 1, the scheduler: which request runs next. Pure Python, no torch.

Read in this order: `sequence.py` (one request), `block_manager.py` (who owns which KV block), `scheduler.py` (the two
deques and the decisions), `ahead.py` (the next step while the last one runs).
"""

from nanovllm.scheduler.ahead import StepInFlight, mark_in_flight, schedule_ahead, slices_ahead, undo
from nanovllm.scheduler.block_manager import Block, BlockManager
from nanovllm.scheduler.decisions import Decision, DecisionKind
from nanovllm.scheduler.scheduler import Schedule, Scheduler
from nanovllm.scheduler.sequence import FinishReason, ScheduledSlice, Sequence, SequenceStatus

__all__ = [
    "Block",
    "BlockManager",
    "Decision",
    "DecisionKind",
    "FinishReason",
    "Schedule",
    "ScheduledSlice",
    "Scheduler",
    "Sequence",
    "SequenceStatus",
    "StepInFlight",
    "mark_in_flight",
    "schedule_ahead",
    "slices_ahead",
    "undo",
]
