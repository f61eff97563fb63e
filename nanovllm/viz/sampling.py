"""The odds of the next token: probabilities as bars, what top-k and top-p cut, and how often each was drawn."""

from collections.abc import Sequence as Seq

from torch import Tensor

from nanovllm.viz.svg import HALF, box, clip, label, request_box, visible
from nanovllm.viz.view import View

_ROW = 21


class Odds(View):
    """One row of probabilities, likeliest first. probs: [vocab_size]; 0 where a token was cut.

    names: the text of each token id. full: the probabilities before anything was cut, drawn pale behind.
    counts: how often each token was drawn. limit: rows shown.
    """

    title = "Odds of the next token"

    def __init__(
        self,
        probs: Tensor,
        names: Seq[str] | None = None,
        full: Tensor | None = None,
        counts: Tensor | None = None,
        limit: int = 8,
        title: str | None = None,
    ) -> None:
        self.probs = probs.double().cpu()
        self.full = self.probs if full is None else full.double().cpu()
        self.counts = None if counts is None else counts.cpu()
        self.names = names
        self.shown = self.full.argsort(descending=True, stable=True)[:limit].tolist()
        self._heading = title or self.title

    @property
    def heading(self) -> str:
        """The title, with the number of tokens that can be drawn."""
        return f"{self._heading}: {int((self.probs > 0).sum()):,} of {len(self.probs):,} tokens can be drawn"

    def name(self, token_id: int) -> str:
        """The text of a token, blanks shown, or its number."""
        return visible(self.names[token_id]) if self.names is not None else str(token_id)

    def text(self) -> str:
        """A line a token: its probability in percent without decimals, and how often it was drawn."""
        lines = []
        for token in self.shown:
            p = self.probs[token].item()
            how = f"{p:>5.0%} {'#' * round(p * 40)}" if p > 0 else "  cut"
            if self.counts is not None:
                how = f"{how:<47} drawn {int(self.counts[token])} times"
            lines.append(f"{self.name(token):>10} {how}".rstrip())
        return "\n".join(lines)

    def draw(self) -> tuple[float, float, str]:
        """A bar a token; a mark where the counts fall."""
        left, room, body = 110.0, HALF - 290.0, ""
        highest = max(self.full[self.shown].max().item(), self.probs[self.shown].max().item(), 1e-9)
        total = None if self.counts is None else max(1, int(self.counts.sum()))
        for row, token in enumerate(self.shown):
            y = 46 + row * _ROW
            p, before = self.probs[token].item(), self.full[token].item()
            body += label(left - 8, y + 13, clip(self.name(token), 90, mono=True), "ink", 12, "end", mono=True)
            body += box(left, y, max(1.0, room * before / highest), 16, "soft", "line", rx=2)
            if p > 0:
                body += request_box(0, left, y, max(1.0, room * p / highest), 16, 2, words=f"{p:.1%}")
            words = f"{p:.1%}" if p > 0 else "cut"
            if total is not None and self.counts is not None:
                share = int(self.counts[token]) / total
                body += box(left + room * share / highest - 1, y - 2, 2.5, 20, "ink", rx=0)
                words += f" · drawn {share:.1%}"
            body += label(HALF - 16, y + 13, words, "muted", 11.5, "end")
        return HALF, 56 + len(self.shown) * _ROW, body
