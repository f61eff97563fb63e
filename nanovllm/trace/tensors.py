"""The step's tensors, read back from the device and stored compactly. What is stored is always what the device held."""

from typing import Any

import numpy as np
from torch import Tensor

from nanovllm.paged_kv.model_runner import ModelRunner
from nanovllm.trace.codec import encode_array
from nanovllm.trace.state import State
from nanovllm.trace.trace import ARRAYS, expected_tables


def host(tensor: Tensor | None) -> np.ndarray | None:
    """A device tensor as a host array (a wait on a GPU)."""
    return None if tensor is None else tensor.detach().cpu().numpy()


class TensorReader:
    """Reads `runner.last_batch` and `last_sampled` and encodes them against the step before."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._old: dict[str, np.ndarray] = {}
        self._old_tables: list[list[int]] | None = None  # of the step before

    def read(self, runner: ModelRunner, rows: list[int], scheduled: State) -> dict[str, Any]:
        """The compact tensors of the step that just ran. rows: the sequence of each batch row."""
        batch = runner.last_batch
        assert batch is not None, "a step with rows has run, so its batch is there"
        context = batch.context
        new = {
            "input_ids": host(batch.input_ids),
            "positions": host(batch.positions),
            "slot_mapping": host(context.slot_mapping),
            "context_lens": host(context.context_lens),
            "cu_seqlens_q": host(context.cu_seqlens_q),
            "cu_seqlens_k": host(context.cu_seqlens_k),
            "sampled": host(runner.last_sampled),
        }
        line: dict[str, Any] = {"rows": rows}
        for name in ARRAYS:
            if new[name] is not None:
                line[name] = encode_array(self._old.get(name), new[name])
        fed, sampled = new["input_ids"], self._old.get("sampled")
        if fed is not None and sampled is not None and np.array_equal(fed, sampled):
            line["input_ids"] = "sampled"
        wanted = host(context.last_token_rows)
        if wanted is not None:
            bounds = new["cu_seqlens_q"]
            ends = {int(end) - 1: seq_id for seq_id, end in zip(rows, bounds[1:], strict=True)}  # type: ignore[index]
            line["sampled_rows"] = [ends[int(row)] for row in wanted]
        line |= self._tables(host(context.block_tables), new["context_lens"], rows, scheduled)
        if runner.last_graph_size is not None:
            line["bucket"] = runner.last_graph_size
        self._old = {name: array for name, array in new.items() if array is not None}
        return line

    def _tables(
        self, tables: np.ndarray | None, context_lens: np.ndarray | None, rows: list[int], scheduled: State
    ) -> dict[str, Any]:
        """The width alone where the device tensor equals the scheduler's block tables; else the rows that changed.

        A CUDA graph's buffer is as wide as the longest possible sequence and keeps old entries past each end.
        """
        old, self._old_tables = self._old_tables, None if tables is None else tables.tolist()
        found = self._old_tables
        if tables is None or context_lens is None or found is None:
            return {}
        width = tables.shape[1]
        if found == expected_tables(scheduled, rows, context_lens.tolist(), width, self.block_size):
            return {"block_tables": width}
        if old is not None and len(old) == len(found) and len(old[0]) == width:
            changed = {str(i): row for i, row in enumerate(found) if row != old[i]}
            if 2 * len(changed) < len(found):
                return {"block_tables": changed}
        return {"block_tables": found}
