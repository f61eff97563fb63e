"""The diagrams of the documentation and the notebooks: Python sources, SVG drawings. `python -m diagrams` rebuilds.

Read in this order: `draw.py` (what they share), then a source beside its picture in `svg/`.
"""

from pathlib import Path

from diagrams.architecture import architecture
from diagrams.bench_matrix import bench_matrix
from diagrams.draw import Diagram
from diagrams.memory import memory_map, prefix_chain, slot_mapping
from diagrams.parallel import control_channel, tensor_parallel_layer, topology
from diagrams.states import block_life, sequence_states
from diagrams.steps import decode_step, prefill_step, startup

SOURCES = (
    architecture,
    startup,
    prefill_step,
    decode_step,
    sequence_states,
    block_life,
    prefix_chain,
    slot_mapping,
    memory_map,
    tensor_parallel_layer,
    control_channel,
    topology,
    bench_matrix,
)
FOLDER = Path(__file__).resolve().parent / "svg"


def all_diagrams() -> list[Diagram]:
    """Every diagram, built anew."""
    return [source() for source in SOURCES]
