"""One decoder layer over the tensor-parallel ranks, with the collectives that the step really ran."""

from collections import Counter
from typing import Any

from nanovllm.trace.trace import Trace
from nanovllm.viz.graph import picture, quoted
from nanovllm.viz.svg import FULL, label
from nanovllm.viz.theme import neutral
from nanovllm.viz.view import View

_MAX_RANKS = 4


class TensorParallelLayer(View):
    """Which part of a layer each rank holds, where the ranks wait for each other, and what travelled in this step."""

    title = "Tensor-parallel layer"

    def __init__(self, trace: Trace, index: int = -1) -> None:
        super().__init__(trace[index])
        self.size: int = trace.header.get("tensor_parallel_size", 1)
        self.model: dict[str, int] = trace.header["model"]

    @property
    def heading(self) -> str:
        """The title, with what was communicated."""
        calls = self.record.collectives
        moved = sum(c["num_bytes"] for c in calls)
        ranks = f"{self.size} rank{'s' * (self.size > 1)}"
        return f"One of {self.model['num_layers']} layers on {ranks}: {len(calls)} collectives, {moved:,} bytes a rank"

    def _layer_calls(self, part: str) -> dict[str, Any] | None:
        """The collective of layer 0 whose name ends in `part`, if the step ran one."""
        found = [c for c in self.record.collectives if c["where"].startswith("layers.0.") and c["where"].endswith(part)]
        return found[0] if found else None

    def text(self) -> str:
        """The ranks' shares, and the step's collectives grouped by kind and layer part."""
        m = self.model
        lines = [f"{self.size} ranks, each with {m['num_heads'] // self.size} of {m['num_heads']} query heads"]
        if self.size == 1:
            return lines[0].replace("1 ranks, each", "1 rank") + "\nno collectives: one rank has everything"
        counts: Counter[tuple[str, str, tuple[int, ...], int]] = Counter()
        for call in self.record.collectives:
            part = ".".join(p for p in call["where"].split(".") if p != "layers" and not p.isdigit())
            counts[call["kind"], part, tuple(call["shape"]), call["num_bytes"]] += 1
        for (kind, part, shape, num_bytes), n in counts.items():
            lines.append(f"{n} x {kind} at {part}, shape {list(shape)}, {num_bytes} bytes each")
        return "\n".join(lines if counts else [*lines, "no collectives recorded in this step"])

    def dot(self) -> str:
        """The layer in DOT: one lane a rank, one box across for each collective."""
        ink, muted = neutral("ink"), neutral("muted")
        lines = [
            'digraph layer { rankdir=LR; bgcolor="transparent"; nodesep=0.18; ranksep=0.3; pad=0.02;',
            f'node [shape=box, style="rounded,filled", fillcolor="{neutral("soft")}", color="{muted}", fontsize=9, '
            f'fontcolor="{ink}", height=0.36, margin="0.08,0.04", class="nv-plain"];',
            f'edge [arrowsize=0.5, color="{muted}", class="nv-plain"];',
        ]
        shown = range(min(self.size, _MAX_RANKS))
        m, n = self.model, self.size
        heads, kv = m["num_heads"] // n, max(1, m["num_kv_heads"] // n)
        inner = m["intermediate_size"] // n
        for r in shown:
            lines += [
                f"q{r} [label={quoted(f'rank {r}: qkv_proj, heads {r * heads}–{(r + 1) * heads - 1}')}];",
                f"a{r} [label={quoted(f'attention: {heads} q, {kv} kv heads')}];",
                f"o{r} [label={quoted('o_proj: partial sum')}];",
                f"u{r} [label={quoted('gate_up_proj: ' + str(inner) + ' features')}];",
                f"d{r} [label={quoted('down_proj: partial sum')}];",
            ]
        lines += [self._box("x", "norm: input on every rank", None), *self._collectives(n)]
        for r in shown:
            lines += [f"x -> q{r} -> a{r} -> o{r} -> s1;", f"s1 -> u{r} -> d{r} -> s2;"]
        return "\n".join([*lines, "}"])

    def _collectives(self, size: int) -> list[str]:
        if size == 1:
            return [self._box("s1", "add to residual", None), self._box("s2", "add to residual", None)]
        return [self._box(f"s{i}", "all_reduce", self._layer_calls(p)) for i, p in ((1, "o_proj"), (2, "down_proj"))]

    def _box(self, name: str, words: str, call: dict[str, Any] | None) -> str:
        strong = ""
        if words == "all_reduce":
            shape = f"\\n{list(call['shape'])} = {call['num_bytes']:,} B" if call else "\\nnot recorded"
            strong = f', penwidth=2.2, color="{neutral("mark")}", class="nv-plain nv-hit"'
            return f'{name} [label="{words}{shape}"{strong}];'
        return f"{name} [label={quoted(words)}{strong}];"

    def draw(self) -> tuple[float, float, str]:
        """The layer by Graphviz, and the rest of the step's collectives in a line."""
        height, body = picture(self.dot(), self.text(), FULL)
        others = [c for c in self.record.collectives if not c["where"].startswith("layers.")]
        words = " · ".join(f"{c['kind']} at {c['where']} {c['shape']}" for c in others)
        if self.size > _MAX_RANKS:
            words = f"ranks 0 to {_MAX_RANKS - 1} of {self.size} drawn · {words}"
        return FULL, height + 18, body + label(16, height + 4, words, "muted", 11)
