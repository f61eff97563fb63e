"""The prefix cache as a forest: each published block hangs on the block before it, and hits are marked."""

from nanovllm.trace.record import Record
from nanovllm.viz.graph import picture, quoted
from nanovllm.viz.svg import FULL, label
from nanovllm.viz.theme import HUES, hue_of, neutral
from nanovllm.viz.view import View, ids

_MAX_NODES = 60


class HashChain(View):
    """Published blocks after the step, linked by their chained hashes; the hits of this step stand out."""

    title = "Prefix cache"

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self.state = record.after
        self.nodes = {b: self.state.published[b] for b in sorted(self.state.published)}
        by_content = {entry[1]: block for block, entry in self.nodes.items()}
        self.parents = {
            b: by_content.get(entry[2]) if entry[2] is not None else None for b, entry in self.nodes.items()
        }
        self.hits: dict[int, list[int]] = {}
        for seq_id, blocks in record.hits().items():
            for block in blocks:
                self.hits.setdefault(block, []).append(seq_id)

    @property
    def heading(self) -> str:
        """The title, with the size of the cache."""
        found = sum(len(blocks) for blocks in self.record.hits().values())
        return f"Prefix cache after {self.record.when}: {len(self.nodes)} published blocks, {found} hits in this step"

    def text(self) -> str:
        """A line a block: what it hangs on, its hash, its tokens, its owners, who hit it."""
        owners = self.state.owners()
        lines = []
        for block, (block_hash, _, parent_content, findable, tokens) in self.nodes.items():
            parent = self.parents[block]
            after = f"after block {parent}" if parent is not None else "first" if parent_content is None else "after ?"
            who = f"owners {ids(owners[block])}" if block in owners else "free"
            words = "".join(self.token(t) for t in tokens)
            hit = f", hit by {ids(self.hits[block])}" if block in self.hits else ""
            lost = "" if findable else ", not findable"
            lines.append(f"block {block}: {after}, hash {block_hash:016x}, {words!r}, {who}{hit}{lost}")
        return "\n".join(lines) or "nothing is published"

    def dot(self) -> str:
        """The forest in DOT. Requests are named in classes (q3 is request 3), for highlighting."""
        lines = [
            'digraph prefix_cache { rankdir=LR; bgcolor="transparent"; nodesep=0.12; ranksep=0.28; pad=0.02;',
            f'node [shape=box, style="rounded,filled", fontsize=9, height=0.3, margin="0.06,0.03", '
            f'fontcolor="{neutral("ink")}"]; edge [arrowsize=0.5, color="{neutral("muted")}", class="nv-plain"];',
        ]
        shown = list(self.nodes)[:_MAX_NODES]
        for block in shown:
            lines.append(f"b{block} [{self._node(block)}];")
        for block in shown:
            parent = self.parents[block]
            if parent in shown:
                hit = ', penwidth=2.4, class="nv-hit"' if block in self.hits else ""
                lines.append(f"b{parent} -> b{block} [weight=3{hit}];")
        return "\n".join([*lines, "}"])

    def _node(self, block: int) -> str:
        owners = self.state.owners().get(block, [])
        words = "".join(self.token(t) for t in self.nodes[block][4])
        words = words if len(words) <= 14 else words[:13] + "…"
        badge = f" ×{len(owners)}" if len(owners) > 1 else ""
        look = f"label={quoted(f'{block}{badge}  {words}')}"
        classes = [f"q{o}" for o in [*owners, *self.hits.get(block, [])]]
        if owners:
            hue = hue_of(owners[0])
            classes += [f"nv-g{hue}"]
            look += f', fillcolor="{HUES[hue].fill}33", color="{HUES[hue].light}"'
        else:
            classes.append("nv-gfree")
            look += f', fillcolor="{neutral("soft")}", color="{neutral("muted")}", style="rounded,filled,dashed"'
        if block in self.hits:
            classes.append("nv-hit")
            look += f', penwidth=2.4, color="{neutral("mark")}"'
        return look + f', class="{" ".join(dict.fromkeys(classes))}"'

    def draw(self) -> tuple[float, float, str]:
        """The forest by Graphviz, left to right."""
        if not self.nodes:
            return FULL, 90, label(16, 60, "nothing is published yet: no block is full", "muted")
        height, body = picture(self.dot(), self.text(), FULL)
        note = "solid: owned · dashed: free, still findable · bold: hit in this step"
        if len(self.nodes) > _MAX_NODES:
            note = f"{_MAX_NODES} of {len(self.nodes)} shown · " + note
        return FULL, max(90.0, height), body + label(FULL - 16, 26, note, "muted", 11, "end")
