"""Device tensors at addresses that never move, filled by one copy a step: what a recorded step reads."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from nanovllm.paged_kv.small_copies import copy_words, event_behind

Column = tuple[str, type[np.generic], tuple[int, ...]]  # name, dtype, shape


class FixedInputs:
    """Views into one device buffer, in the order of `columns`, and the same views of pinned host memory.

    There are two pinned buffers, used in turn: one may still be under way to the device while the next step is written.
    """

    def __init__(self, columns: Iterable[Column], device: torch.device) -> None:
        layout, offset = [], 0
        for name, dtype, shape in columns:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            layout.append((name, dtype, shape, slice(offset, offset + size)))
            offset += -(-size // 16) * 16  # kernels are compiled for pointers that are multiples of 16
        pinned = device.type == "cuda"
        self._hosts = [torch.zeros(offset, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        self._views: list[dict[str, np.ndarray]] = [{}, {}]
        self._sent: list[torch.cuda.Event | None] = [None, None]
        self._turn = 0
        self._device = torch.zeros(offset, dtype=torch.uint8, device=device)
        # The same as 8-byte words, which is how they are copied.
        self._host_words = [host.view(torch.int64) for host in self._hosts]
        self._device_words = self._device.view(torch.int64)
        self.device: dict[str, Tensor] = {}
        for name, dtype, shape, part in layout:
            for host, views in zip(self._hosts, self._views, strict=True):
                views[name] = host.numpy()[part].view(dtype).reshape(shape)
            torch_dtype = torch.from_numpy(np.empty(0, dtype)).dtype
            self.device[name] = self._device[part].view(torch_dtype).view(shape)

    def next_host(self) -> dict[str, np.ndarray]:
        """The views of the pinned buffer that is free; an earlier step's values are still in them."""
        self._turn = 1 - self._turn
        sent = self._sent[self._turn]
        if sent is not None:
            sent.synchronize()
        return self._views[self._turn]

    def send(self, num_bytes: int | None = None) -> None:
        """Copy what was written to the device, or only its first `num_bytes`; the host does not wait."""
        copy_words(self._written(num_bytes), self._device_words)
        self._was_sent()

    def _written(self, num_bytes: int | None = None) -> Tensor:
        """The first words of the pinned buffer that `next_host` gave out."""
        words = self._host_words[self._turn]
        return words if num_bytes is None else words[: -(-num_bytes // 8)]

    def _was_sent(self) -> torch.cuda.Event | None:
        """Remember when the pinned buffer may be written again: behind the copy, at the event that this returns."""
        self._sent[self._turn] = event = event_behind(self._device)
        return event
