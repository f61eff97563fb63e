"""A recorded run: compact records, rebuilt on demand, saved and loaded as JSON lines."""

import gzip
import json
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nanovllm.trace.codec import decode_array
from nanovllm.trace.record import Note, Record, Tensors
from nanovllm.trace.state import State, decode_state

FORMAT = 1
ARRAYS = ("input_ids", "positions", "slot_mapping", "context_lens", "cu_seqlens_q", "cu_seqlens_k", "sampled")
_KEYFRAME = 32  # steps between states that stay in memory once they were rebuilt
_CACHED = 64  # records kept ready


class Trace:
    """Records of consecutive steps. `trace[i]` rebuilds step i; iteration goes forward.

    header: the limits and names of the engine that was watched. lines: one compact JSON object a step.
    token_ids: prompt and completion of every request, by id. labels: the text of each token id, as far as known.
    """

    def __init__(self, header: dict[str, Any]) -> None:
        self.header = header
        self.lines: list[dict[str, Any]] = []
        self.token_ids: dict[int, list[int]] = {}
        self.num_prompt_tokens: dict[int, int] = {}
        self.labels: dict[int, str] = {}
        self._keyframes: dict[int, _Cursor] = {}
        self._ready: OrderedDict[int, Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> Record:
        if not -len(self) <= index < len(self):
            raise IndexError(f"the trace has {len(self)} steps; there is no step {index}")
        index %= len(self)
        if index not in self._ready:
            self._rebuild(index)
        self._ready.move_to_end(index)
        return self._ready[index]

    def __iter__(self) -> Iterator[Record]:
        return (self[i] for i in range(len(self)))

    @property
    def limits(self) -> dict[str, int]:
        """Budgets and sizes: block_size, num_blocks, max_num_seqs, max_num_batched_tokens."""
        return self.header["limits"]

    @property
    def request_ids(self) -> list[int]:
        """Every request that was seen, in order."""
        return sorted(self.token_ids)

    def append(self, line: dict[str, Any]) -> None:
        """Add a step's compact record (what `Recorder` makes) and note its new tokens."""
        self._learn_tokens(line)
        self.lines.append(line)

    def _learn_tokens(self, line: dict[str, Any]) -> None:
        self.num_prompt_tokens.update(dict(line.get("ar", ())))
        for name, tokens in line.get("new", {}).items():
            seq_id = int(name)
            self.token_ids.setdefault(seq_id, []).extend(tokens)

    def label(self, token_id: int) -> str:
        """The text of a token, or its number when no tokenizer was there."""
        return self.labels.get(token_id, str(token_id))

    # --- rebuilding -------------------------------------------------------------------------------------------------

    def _rebuild(self, index: int) -> None:
        """Decode forward from the nearest state at hand up to step `index`."""
        start = max((k for k in self._keyframes if k <= index), default=None)
        cursor = self._keyframes[start] if start is not None else _Cursor(self.limits["block_size"])
        near = max((k for k, r in self._ready.items() if (start or 0) <= k < index and r.tensors), default=None)
        if near is not None:
            cursor = _Cursor.after(self._ready[near])
            start = near + 1
        for i in range(start or 0, index + 1):
            if i % _KEYFRAME == 0:
                self._keyframes.setdefault(i, cursor)
            record = cursor.decode(self.lines[i], self.limits, self.labels)
            cursor = _Cursor.after(record, cursor.tensors)
            self._ready[i] = record
            self._ready.move_to_end(i)
            while len(self._ready) > _CACHED:
                self._ready.popitem(last=False)

    # --- files ------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write JSON lines (gzipped when the name ends in .gz): the header, then a line a step."""
        path = Path(path)
        header = {"nanovllm_trace": FORMAT, **self.header, "labels": self.labels}
        with gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else path.open("w", encoding="utf-8") as f:
            for line in (header, *self.lines):
                f.write(json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Read what `save` wrote. Raises ValueError, naming the file, for anything else."""
        path = Path(path)
        try:
            with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as f:
                header, *lines = (json.loads(line) for line in f if line.strip())
        except FileNotFoundError:
            raise ValueError(f"there is no trace {path}: `Trace.save` and `nanovllm trace --jsonl` write one") from None
        except (ValueError, OSError) as e:
            raise ValueError(f"{path} is not a trace of nanovllm ({e}): `Trace.save` writes one") from e
        if not isinstance(header, dict) or header.pop("nanovllm_trace", None) != FORMAT:
            raise ValueError(f"{path} is not a trace of format {FORMAT}: record it again with this version")
        labels = {int(k): v for k, v in header.pop("labels", {}).items()}
        trace = cls(header)
        trace.labels = labels
        for line in lines:
            trace.append(line)
        return trace


class _Cursor:
    """What the next line is encoded against: the state after the step before, and the newest step's tensors."""

    def __init__(self, block_size: int, state: State | None = None, tensors: Tensors | None = None) -> None:
        self.block_size = block_size
        self.state = state or State()
        self.tensors = tensors

    @classmethod
    def after(cls, record: Record, older: Tensors | None = None) -> "_Cursor":
        return cls(record.block_size, record.after, record.tensors or older)

    def decode(self, line: dict[str, Any], limits: dict[str, int], labels: dict[int, str]) -> Record:
        before = decode_state(self.state, line.get("b", {}))
        scheduled = decode_state(before, line.get("s", {}))
        after = decode_state(scheduled, line.get("a", {}))
        return Record(
            step=line["i"],
            kind=line["k"],
            start=line["t"],
            phases=dict(line["ph"]),
            before=before,
            scheduled=scheduled,
            after=after,
            arrivals=[seq_id for seq_id, _ in line.get("ar", ())],
            decisions=[Note(*note) for note in line.get("d", [])],
            tensors=self._decode_tensors(line["x"], scheduled) if "x" in line else None,
            changed_slots=line.get("ch"),
            collectives=list(line.get("col", [])),
            limits=limits,
            labels=labels,
        )

    def _decode_tensors(self, x: dict[str, Any], scheduled: State) -> Tensors:
        old = self.tensors
        fed_back = x.get("input_ids") == "sampled"  # the ids that the step before sampled, in the same order
        known = {name: x[name] for name in ARRAYS if name in x and not (fed_back and name == "input_ids")}
        arrays = {name: decode_array(getattr(old, name) if old else None, known.get(name)) for name in ARRAYS}
        if fed_back and old is not None:
            arrays["input_ids"] = list(old.sampled or ())
        tables = x.get("block_tables")
        if isinstance(tables, int):  # that many columns, equal to the scheduler's own block tables
            tables = expected_tables(scheduled, x["rows"], arrays["context_lens"] or [], tables, self.block_size)
        elif isinstance(tables, dict):  # the rows that differ from the step before
            before = old.block_tables if old is not None else None
            tables = [tables.get(str(i), row) for i, row in enumerate(before or [])]
        return Tensors(
            rows=x["rows"],
            block_tables=tables,
            sampled_rows=x.get("sampled_rows", x["rows"]),
            graph_bucket=x.get("bucket"),
            **arrays,  # type: ignore[arg-type]
        )


def expected_tables(
    scheduled: State, rows: list[int], context_lens: list[int], width: int, block_size: int
) -> list[list[int]]:
    """The scheduler's block tables of `rows` as batch preparation lays them out: zeros past the end of each."""
    expected = []
    for seq_id, length in zip(rows, context_lens, strict=False):
        table = scheduled.tables.get(seq_id, [])[: -(-length // block_size)]
        expected.append((table + [0] * width)[:width])
    return expected
