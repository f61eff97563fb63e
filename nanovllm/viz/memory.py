"""A GPU's memory as one bar: weights, what a step needs, graphs, KV blocks, and what stays free."""

from nanovllm.paged_kv.cache import KVCacheSpec
from nanovllm.paged_kv.memory import SAFETY_BYTES, MemoryBudget
from nanovllm.viz.svg import FULL, box, label, request_box, request_label
from nanovllm.viz.theme import HUES
from nanovllm.viz.view import View

_MIB = 2**20
_BAR_Y, _BAR_H = 48, 44


class MemoryMap(View):
    """Where the bytes of a card go. `budget` was measured on a GPU, or made up for a card that is not there."""

    title = "GPU memory"

    def __init__(self, budget: MemoryBudget, spec: KVCacheSpec) -> None:
        self.budget = budget
        self.spec = spec
        self.num_blocks = max(0, budget.for_cache) // spec.bytes_per_block

    @property
    def heading(self) -> str:
        """The title, with the number of blocks."""
        return f"{self.budget.total / _MIB:,.0f} MiB of GPU memory: room for {self.num_blocks:,} KV blocks"

    def parts(self) -> list[tuple[str, int]]:
        """(what, bytes), adding up to the whole card. Only whole blocks are allocated, so a part of one may be left."""
        b = self.budget
        used_by_others = max(0, b.total - b.free - b.held)
        blocks = self.num_blocks * self.spec.bytes_per_block
        rest = b.total - used_by_others - b.held - b.peak - b.graphs - blocks
        parts = [("weights", b.held), ("a step's peak", b.peak), ("graphs", b.graphs)]
        parts += [(f"{self.num_blocks:,} KV blocks", blocks), ("others", used_by_others), ("not used", rest)]
        return [(name, size) for name, size in parts if size > 0]

    def text(self) -> str:
        """A line a part, in MiB and percent of the card."""
        lines = [
            f"{name:>16} {size / _MIB:>9,.0f} MiB {size / self.budget.total:>6.1%}"
            for name, size in [*self.parts(), ("the card", self.budget.total)]
        ]
        share = int(self.budget.total * self.budget.utilization) / _MIB
        kept = f"{share:,.0f} MiB may be used ({self.budget.utilization:.0%}); {SAFETY_BYTES // _MIB} MiB are kept free"
        size = f"one block: {self.spec.bytes_per_block / _MIB:,.3f} MiB for {self.spec.block_size} tokens"
        return "\n".join([*lines, kept, size])

    def draw(self) -> tuple[float, float, str]:
        """One bar in proportion, its parts named below."""
        body, x, room = "", 16.0, FULL - 32
        places = []
        for index, (name, size) in enumerate(self.parts()):
            width = room * size / self.budget.total
            words = f"{name}: {size / _MIB:,.0f} MiB"
            if name in ("others", "not used"):
                body += box(x, _BAR_Y, width, _BAR_H, "soft", "line", rx=2, words=words)
            else:
                body += request_box(index, x, _BAR_Y, max(1.0, width), _BAR_H, 2, words=words)
                body += self._ticks(index, x, width) if "KV" in name else ""
            places.append((index, name, size))
            x += width
        edge = 16 + room * self.budget.utilization
        body += box(edge - 1, _BAR_Y - 6, 2, _BAR_H + 12, "ink", rx=0, words="gpu_memory_utilization")
        body += label(edge - 6, _BAR_Y - 8, f"{self.budget.utilization:.0%}", "muted", 11, "end")
        step = room / len(places)
        for place, (index, name, size) in enumerate(places):
            left = 16 + place * step
            plain = name in ("others", "not used")
            swatch = box(left, 112, 12, 12, "soft", "line") if plain else request_box(index, left, 112, 12, 12)
            body += swatch + label(left + 18, 122, f"{name}: {size / _MIB:,.0f} MiB", "ink", 11.5)
        return FULL, 144, body

    def _ticks(self, index: int, x: float, width: float) -> str:
        """A line between two blocks where they can be told apart, else their number."""
        pitch = width / max(1, self.num_blocks)
        if pitch < 5:
            return request_label(index, x + width / 2, _BAR_Y + 27, f"{self.num_blocks:,}", 12) if width > 60 else ""
        edge = HUES[index % len(HUES)].on
        return "".join(
            f'<path d="M{x + i * pitch:.1f} {_BAR_Y}v{_BAR_H}" stroke="{edge}" stroke-opacity="0.4"/>'
            for i in range(1, self.num_blocks)
        )
