"""CUDA graphs for decode: record a step's few hundred kernel launches once a batch size, then replay them in one call.

A graph replays the same kernels on the same addresses, so its inputs live in buffers that never move (`DecodeBuffers`),
and a batch is padded to the next recorded size. A padded row stores nothing (slot -1), sees no key (context length 0)
and is sampled greedily from whatever comes out; nobody reads it.
"""

import warnings
from bisect import bisect_left
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from nanovllm.paged_kv.batch import HostBatch
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.paged_kv.fixed_inputs import Column, FixedInputs
from nanovllm.paged_kv.in_flight import Feed
from nanovllm.paged_kv.small_copies import copy_fed, copy_words

Buffers = TypeVar("Buffers", bound=FixedInputs)


def graph_batch_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, 8, every multiple of 16, and always the largest allowed batch; ascending."""
    sizes = {1, 2, 4, 8, *range(16, max_num_seqs + 1, 16), max_num_seqs}
    return sorted(s for s in sizes if s <= max_num_seqs)


def write_padded(host: dict[str, np.ndarray], batch: HostBatch, size: int) -> None:
    """Write the B sequences of a decode batch into the first rows of `host`, and make padding of rows B .. size - 1.

    host: the buffers by name, [max_num_seqs] each and block_tables [max_num_seqs, max_blocks]; an earlier step's rows
    are still in them.
    """
    assert batch.block_tables is not None
    num_seqs, width = batch.block_tables.shape
    real, padding = slice(0, num_seqs), slice(num_seqs, size)
    host["input_ids"][real], host["input_ids"][padding] = batch.input_ids, 0
    host["positions"][real], host["positions"][padding] = batch.positions, 0
    host["slot_mapping"][real], host["slot_mapping"][padding] = batch.slot_mapping, -1
    host["context_lens"][real], host["context_lens"][padding] = batch.context_lens, 0
    host["block_tables"][real, :width], host["block_tables"][padding] = batch.block_tables, 0


class DecodeBuffers(FixedInputs):
    """The inputs of the recorded decode steps.

    [max_num_seqs] each: input_ids, positions, slot_mapping, rows (int64), keys [.., 2] (int64), temperature (fp32),
    context_lens, order (int32); and block_tables [max_num_seqs, max_blocks] (int32) last, so that a small batch copies
    a short prefix of the buffer. rows: where each input id stands among an earlier step's samples, or -1; only the copy
    itself reads it, and takes the ids to be the first words of the buffer.
    """

    def __init__(self, max_num_seqs: int, max_blocks: int, device: torch.device) -> None:
        self.max_blocks = max_blocks
        row: dict[str, type[np.generic]] = {
            "input_ids": np.int64,
            "positions": np.int64,
            "slot_mapping": np.int64,
            "rows": np.int64,
            "temperature": np.float32,
            "context_lens": np.int32,
            "order": np.int32,
        }
        columns: list[Column] = [(name, dtype, (max_num_seqs,)) for name, dtype in row.items()]
        columns.append(("keys", np.int64, (max_num_seqs, 2)))
        columns.append(("block_tables", np.int32, (max_num_seqs, max_blocks)))
        super().__init__(columns, device)
        self._header = int(self.device["block_tables"].storage_offset()) * 4

    def fill(
        self,
        batch: HostBatch,
        temperature: np.ndarray | None,
        keys: np.ndarray | None,
        feed: Feed | None,
        size: int,
    ) -> None:
        """Copy `batch` in, padded to `size` rows. temperature and keys are None where nothing is sampled.

        feed: where input ids come from that the host does not know yet. They go to the host with the same copy.
        """
        host, real = self.next_host(), slice(0, len(batch.input_ids))
        write_padded(host, batch, size)
        host["order"][:size] = np.argsort(-host["context_lens"][:size], kind="stable")  # longest first
        host["temperature"][:size] = 0
        if temperature is not None:
            host["temperature"][real] = temperature
            host["keys"][real] = keys
        num_bytes = self._header + 4 * size * self.max_blocks
        if feed is None or feed.sampled is None:
            self.send(num_bytes)
            return
        host["rows"][real] = feed.rows
        words, first = self._written(num_bytes), self.device["rows"].storage_offset()
        rows = words[first : first + len(batch.input_ids)]
        assert feed.pending is not None
        leaving = feed.pending.leaving
        copy_fed(words, self._device_words, rows, feed.sampled, leaving)
        event = self._was_sent()
        if leaving is not None:
            feed.pending.was_sent(event)

    def compile_copies(self) -> None:
        """Compile what `fill` launches, so that the first step need not. It copies one word; nobody reads it."""
        with torch.cuda.device(self._device.device) if self._device.is_cuda else nullcontext():
            copy_words(self._written(8), self._device_words)
            copy_fed(self._written(8), self._device_words, self.device["rows"][:1], self.device["input_ids"])

    def context(self, size: int, max_seqlen_k: int) -> ForwardContext:
        """The metadata of the first `size` rows."""
        d = self.device
        tables = d["block_tables"][:size]
        return ForwardContext(
            False,
            d["slot_mapping"][:size],
            d["context_lens"][:size],
            tables,
            max_seqlen_k=max_seqlen_k,
            order=d["order"][:size],
        )


def record(function: Callable[[], Any], pool: Any) -> tuple[Any, Any]:
    """A CUDA graph of the kernels that `function` launches, and what it returned: tensors that each replay overwrites.

    pool: memory of an earlier graph to share, or None.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        output = function()
    return graph, output


def wait_for(device: torch.device) -> None:
    """Wait until the device has done what it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class RecordedSteps(Generic[Buffers]):
    """Steps of one kind, recorded in several sizes and replayed on the buffers.

    body: (input_ids, positions, context) -> hidden [size, hidden_size].
    head: (hidden, context, temperature, keys) -> sampled ids [B], or None on ranks that do not sample. It is recorded
    apart from the body, because rows with top-k or top-p are sampled outside of it.
    """

    kind: str  # for the warning when recording fails

    def __init__(
        self,
        body: Callable[[Tensor, Tensor, ForwardContext], Tensor],
        head: Callable[[Tensor, ForwardContext, Tensor, Tensor], Tensor | None],
        buffers: Buffers,
        max_model_len: int,
    ) -> None:
        self.buffers = buffers
        self.sizes: list[int] = []  # recorded, ascending
        self._body, self._head, self.max_model_len = body, head, max_model_len
        self._graphs: dict[int, tuple[Any, Any]] = {}
        self._hidden: dict[int, Tensor] = {}
        self._sampled: dict[int, Tensor | None] = {}
        self._pool: Any = None

    def _inputs(self, size: int) -> tuple[Tensor, Tensor, ForwardContext]:
        """What the body of that size reads."""
        raise NotImplementedError

    def _draws(self, size: int) -> tuple[Tensor, Tensor]:
        """temperature and keys of the rows that are sampled."""
        raise NotImplementedError

    def _fill_with_padding(self) -> None:
        """Let every row be padding: it stores nothing and reads no keys."""
        raise NotImplementedError

    def lane(self, sizes: list[int]) -> Callable[[], None]:
        """Steps of the given sizes, one after the other, for `side_by_side` to run. Nothing is stored."""
        self._fill_with_padding()

        def run() -> None:
            for size in sizes:
                inputs = self._inputs(size)
                self._head(self._body(*inputs), inputs[2], *self._draws(size))

        return run

    def capture(self, sizes: list[int]) -> bool:
        """Record the given sizes. If it fails nothing stays recorded, a warning says so; returns success."""
        try:
            # Largest first: the smaller graphs then reuse its memory.
            for size in sorted(sizes, reverse=True):
                self._capture_one(size)
        except Exception as e:
            self.clear()
            message = (
                f"CUDA graph capture failed ({type(e).__name__}: {e}); {self.kind} without graphs, which is slower"
            )
            warnings.warn(message, RuntimeWarning, stacklevel=2)
            return False
        self.sizes = sorted(self._graphs)
        return True

    def _capture_one(self, size: int) -> None:
        def body() -> Tensor:
            return self._body(*self._inputs(size))

        def head() -> Tensor | None:
            return self._head(self._hidden[size], self._inputs(size)[2], *self._draws(size))

        self._fill_with_padding()
        self._hidden[size] = body()  # compiles kernels and sets up libraries, which capture does not allow
        head()
        wait_for(self.buffers.device["input_ids"].device)
        body_graph, self._hidden[size] = record(body, self._pool)
        self._pool = self._pool or body_graph.pool()
        head_graph, self._sampled[size] = record(head, self._pool)
        self._graphs[size] = body_graph, head_graph

    def padded_size(self, num_seqs: int) -> int:
        """The smallest recorded size that holds `num_seqs` rows."""
        return self.sizes[bisect_left(self.sizes, num_seqs)]

    def run_body(self, size: int) -> Tensor:
        """Replay the body on the buffers' rows; hidden [size, hidden_size], valid until the next replay."""
        self._graphs[size][0].replay()
        return self._hidden[size]

    def run_head(self, size: int) -> Tensor | None:
        """Replay logits and sampling on the body's hidden states; ids [size], None on ranks that do not sample."""
        self._graphs[size][1].replay()
        return self._sampled[size]

    def clear(self) -> None:
        """Forget every graph and its memory."""
        self._graphs.clear()
        self._hidden.clear()
        self._sampled.clear()
        self._pool, self.sizes = None, []
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


class DecodeGraphs(RecordedSteps[DecodeBuffers]):
    """The recorded decode steps of one runner; a size counts sequences, each of which is sampled."""

    kind = "decoding"

    def _inputs(self, size: int) -> tuple[Tensor, Tensor, ForwardContext]:
        d = self.buffers.device
        return d["input_ids"][:size], d["positions"][:size], self.buffers.context(size, self.max_model_len)

    def _draws(self, size: int) -> tuple[Tensor, Tensor]:
        return self.buffers.device["temperature"][:size], self.buffers.device["keys"][:size]

    def _fill_with_padding(self) -> None:
        self.buffers.device["slot_mapping"].fill_(-1)
        for name in ("context_lens", "positions", "input_ids"):
            self.buffers.device[name].fill_(0)
        order = self.buffers.device["order"]
        order.copy_(torch.arange(len(order)))
