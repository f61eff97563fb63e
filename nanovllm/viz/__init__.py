"""Draws trace records: every view has a text form and a picture, and the stepper puts them together.

Read in this order: `theme.py` and `svg.py` (the visual language), `view.py` (what a view is), the views (`queues.py`,
`timeline.py`, `blocks.py`, `slots.py`, `batch.py`, `chain.py`, `ranks.py`, `times.py`, `answers.py`), then `panels.py`,
`widget.py` (the stepper of a notebook) and `page.py` (the same as one HTML file).
"""

from nanovllm.viz.answers import Answers
from nanovllm.viz.batch import AttentionMask, PackedBatch
from nanovllm.viz.blocks import BlockPool, BlockTables
from nanovllm.viz.chain import HashChain
from nanovllm.viz.page import page_html, save_page
from nanovllm.viz.queues import Budgets, Deques
from nanovllm.viz.ranks import TensorParallelLayer
from nanovllm.viz.slots import ChangedSlots, SlotMapping
from nanovllm.viz.timeline import Timeline
from nanovllm.viz.times import Phases, Throughput
from nanovllm.viz.view import View

__all__ = [
    "Answers",
    "AttentionMask",
    "BlockPool",
    "BlockTables",
    "Budgets",
    "ChangedSlots",
    "Deques",
    "HashChain",
    "PackedBatch",
    "Phases",
    "SlotMapping",
    "TensorParallelLayer",
    "Throughput",
    "Timeline",
    "View",
    "page_html",
    "save_page",
]
