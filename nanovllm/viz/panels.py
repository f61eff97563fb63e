"""The views of a step put together: the same panels in the notebook's stepper and in the page."""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from nanovllm.trace.trace import Trace
from nanovllm.trace.words import explain
from nanovllm.viz.answers import Answers
from nanovllm.viz.batch import AttentionMask, PackedBatch
from nanovllm.viz.blocks import BlockPool, BlockTables
from nanovllm.viz.chain import HashChain
from nanovllm.viz.queues import Budgets, Deques
from nanovllm.viz.ranks import TensorParallelLayer
from nanovllm.viz.slots import ChangedSlots, SlotMapping
from nanovllm.viz.timeline import Timeline
from nanovllm.viz.times import Phases, Throughput
from nanovllm.viz.view import View


@dataclass(frozen=True, slots=True)
class Panel:
    """A view's place: its name, whether it takes the whole width, and how it is made for step `index`.

    make(trace, index, pick): pick is the request that the reader chose, or None.
    """

    name: str
    wide: bool
    make: Callable[[Trace, int, int | None], View]
    follows_pick: bool = False  # it shows one request of the batch: the picked one


def _mask(trace: Trace, index: int, pick: int | None) -> View:
    record = trace[index]
    inside = record.tensors is not None and pick in record.tensors.rows
    return AttentionMask(record, pick if inside else None)


PANELS = (
    Panel("deques", False, lambda trace, i, pick: Deques(trace[i])),
    Panel("timeline", False, lambda trace, i, pick: Timeline(trace, i)),
    Panel("answers", True, lambda trace, i, pick: Answers(trace, i)),
    Panel("slot mapping", True, lambda trace, i, pick: SlotMapping(trace[i])),
    Panel("block pool", False, lambda trace, i, pick: BlockPool(trace[i])),
    Panel("changed slots", False, lambda trace, i, pick: ChangedSlots(trace[i])),
    Panel("block tables", True, lambda trace, i, pick: BlockTables(trace[i])),
    Panel("packed batch", False, lambda trace, i, pick: PackedBatch(trace[i])),
    Panel("attention mask", False, _mask, follows_pick=True),
    Panel("budgets", False, lambda trace, i, pick: Budgets(trace[i])),
    Panel("throughput", False, lambda trace, i, pick: Throughput(trace, i)),
    Panel("phases", True, lambda trace, i, pick: Phases(trace[i])),
    Panel("ranks", True, lambda trace, i, pick: TensorParallelLayer(trace, i)),
    Panel("prefix cache", True, lambda trace, i, pick: HashChain(trace[i])),
)


def chosen(names: list[str] | None, trace: Trace) -> list[Panel]:
    """The panels with these names, in their usual order; None takes all that have something to show."""
    known = [panel.name for panel in PANELS]
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ValueError(f"there is no panel {unknown[0]!r}; the panels are {', '.join(known)}")
    if names is not None:
        return [panel for panel in PANELS if panel.name in names]
    one_rank = trace.header.get("tensor_parallel_size", 1) == 1
    return [panel for panel in PANELS if not (panel.name == "ranks" and one_rank)]


def words_html(trace: Trace, index: int) -> str:
    """What just happened, as a list of sentences."""
    first, *others = explain(trace[index])
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in others)
    return f'<p class="nv-first">{escape(first)}</p><ul>{items}</ul>'


def kinds_html(trace: Trace, index: int) -> str:
    """The step's number and kind as a badge."""
    record = trace[index]
    badge = f'<span class="nv-kind nv-kind-{record.kind}">{record.kind}</span>'
    return f"<b>step {record.step}</b> of {len(trace) - 1} {badge}"


def highlight_css(scope: str, pick: int | None) -> str:
    """The rule that dims what belongs to other requests inside `scope`."""
    return "" if pick is None else f'{scope} [data-r]:not([data-r~="{pick}"]){{opacity:.13}}'


GRID_CSS = """
.nv-grid{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:14px;padding-bottom:2px}
.nv-grid>.nv-wide{grid-column:1/-1}.nv-grid svg{width:100%;height:auto;display:block}
@media (max-width:860px){.nv-grid{grid-template-columns:minmax(0,1fr)}}
.nv-words{font:14px/1.5 system-ui,sans-serif;color:var(--nv-ink);background:var(--nv-card);
border:1px solid var(--nv-line);border-radius:8px;padding:10px 16px;height:146px;overflow-y:auto;box-sizing:border-box}
.nv-words .nv-first{margin:0 0 4px;font-weight:600}.nv-words ul{margin:0;padding-left:18px}.nv-words li{margin:0}
.nv-kind{display:inline-block;padding:0 9px;border-radius:9px;font-size:12px;line-height:19px;font-weight:600;
border:1.5px solid var(--nv-ink);color:var(--nv-ink)}
.nv-kind-prefill{background:var(--nv-ink);color:var(--nv-card)}
"""
