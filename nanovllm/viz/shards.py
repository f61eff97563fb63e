"""Which part of each checkpoint tensor the ranks read: rows for column-parallel layers, columns for row-parallel."""

from dataclasses import dataclass

from nanovllm.viz.svg import FULL, box, label, of_request, request_box, request_label
from nanovllm.viz.view import View


@dataclass(frozen=True, slots=True)
class Read:
    """One read of one rank, as its weight reader saw it.

    name, shape: of the checkpoint tensor. dim, first, length: the part that was read; dim None means all of it.
    into: (first row, rows) of the parameter that was filled, None for all of it. num_bytes: taken from disk.
    """

    rank: int
    name: str
    shape: tuple[int, ...]
    dim: int | None
    first: int
    length: int
    into: tuple[int, int] | None
    num_bytes: int

    def part(self) -> str:
        """The part in words."""
        if self.dim is None:
            return "all"
        return f"{'rows' if self.dim == 0 else 'columns'} {self.first}..{self.first + self.length - 1}"


class ShardMap(View):
    """Each tensor as a rectangle in proportion, cut where the ranks' parts meet; one colour a rank."""

    title = "Who reads what"

    def __init__(self, reads: list[Read], title: str | None = None) -> None:
        self.reads = reads
        self.names = list(dict.fromkeys(read.name for read in reads))
        self.ranks = sorted({read.rank for read in reads})
        self._heading = title or self.title

    @property
    def heading(self) -> str:
        """The title, with the bytes of each rank."""
        each = [self.bytes_of(rank) for rank in self.ranks]
        sizes = ", ".join(f"rank {rank}: {size:,} B" for rank, size in zip(self.ranks, each, strict=True))
        if len(set(each)) == 1:
            sizes = f"each of {len(each)} ranks: {each[0]:,} bytes"
        return f"{self._heading} ({sizes})"

    def bytes_of(self, rank: int) -> int:
        """Bytes that `rank` read of these tensors."""
        return sum(read.num_bytes for read in self.reads if read.rank == rank)

    def short(self, name: str) -> str:
        """A tensor's name without what all names share."""
        return name.removeprefix("model.").removesuffix(".weight")

    def text(self) -> str:
        """A line a tensor and rank."""
        lines = []
        for name in self.names:
            for read in (r for r in self.reads if r.name == name):
                rows = f", into rows {read.into[0]}..{sum(read.into) - 1}" if read.into is not None else ""
                lines.append(
                    f"{self.short(name):<36} {list(read.shape)!s:>11} rank {read.rank}: {read.part()}{rows}, "
                    f"{read.num_bytes:,} bytes"
                )
        return "\n".join(lines)

    def draw(self) -> tuple[float, float, str]:
        """The tensors in a row, lowest edge aligned; wraps where the width is used up."""
        largest = max(max(read.shape) for read in self.reads)
        scale = 150 / largest
        x, top, body, tallest = 24.0, 62.0, "", 0.0
        for name in self.names:
            reads = [read for read in self.reads if read.name == name]
            shape = reads[0].shape
            wide, tall = _size(shape, scale)
            words = ".".join(self.short(name).split(".")[-2:]).removeprefix("self_attn.")
            words = words.lstrip("0123456789.")
            room = max(wide, 7.2 * len(words))
            if x + room > FULL - 16:
                x, top, tallest = 24.0, top + tallest + 58, 0.0
            body += label(x, top - 14, words, "ink", 11.5, bold=True)
            body += label(x, top - 1, "×".join(map(str, shape)), "muted", 10.5)
            body += self._tensor(reads, x, top + 6, wide, tall)
            x += room + 20
            tallest = max(tallest, tall)
        return FULL, top + tallest + 52, body + self._legend(top + tallest + 36)

    def _tensor(self, reads: list[Read], x: float, y: float, wide: float, tall: float) -> str:
        shape = reads[0].shape
        body = box(x - 1, y - 1, wide + 2, tall + 2, "soft", "line", rx=2)
        for read in reads:
            words = f"rank {read.rank}: {read.part()}, {read.num_bytes:,} bytes"
            # Ranks that read the same part (a shared KV head, a whole vector) stand side by side in it.
            sharing = [other for other in reads if (other.dim, other.first) == (read.dim, read.first)]
            part = wide / len(sharing)
            if read.dim != 1:
                top = y + tall * read.first / shape[0]
                at = (x + sharing.index(read) * part, top, part, tall * read.length / shape[0])
            else:
                at = (x + wide * read.first / shape[1], y, wide * read.length / shape[1], tall)
            left, up, w, h = at
            shown = request_label(read.rank, left + w / 2, up + h / 2 + 4, read.rank, 11) if h > 13 and w > 9 else ""
            body += of_request(read.rank, request_box(read.rank, left, up, w, h, 1, words=words), shown)
        return body

    def _legend(self, y: float) -> str:
        body, x = "", 24.0
        for rank in self.ranks:
            body += request_box(rank, x, y - 10, 12, 12) + label(x + 18, y, f"rank {rank}", "ink", 11.5)
            x += 78
        words = "stacked: by rows · side by side: by columns"
        if any(read.dim is None for read in self.reads):
            words += " · vectors: every rank reads all of them"
        return body + label(x + 8, y, words, "muted", 11)


def _size(shape: tuple[int, ...], scale: float) -> tuple[float, float]:
    """Width and height of a tensor's rectangle; a vector is a flat bar."""
    if len(shape) == 1:
        return max(40.0, shape[0] * scale), 16.0
    return max(26.0, shape[1] * scale), max(16.0, shape[0] * scale)
