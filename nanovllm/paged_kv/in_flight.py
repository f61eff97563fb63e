"""A step that has been launched and whose tokens nobody has read yet."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nanovllm.paged_kv.small_copies import copy_words, event_behind, put_fed
from nanovllm.scheduler.sequence import ScheduledSlice


class PendingTokens:
    """The tokens that a launched step samples. `result` waits for them; until then the host is free.

    sampled: [n] int64 on the device, None when this rank or step samples nothing. It is valid only until the next step
    is launched. That one may read it first, as its input, and then sends it to the host with the same copy; otherwise
    `send` must be called before.
    """

    def __init__(self, slices: Seq[ScheduledSlice], sampled: Tensor | None) -> None:
        self.sampled = sampled
        self._slices = slices
        self._host = sampled
        self._arrived: torch.cuda.Event | None = None
        self._is_sent = sampled is None or not self.leaves_device(sampled)
        if sampled is not None and not self._is_sent:
            self._host = torch.empty(sampled.shape, dtype=sampled.dtype, pin_memory=sampled.is_cuda)

    @staticmethod
    def leaves_device(sampled: Tensor) -> bool:
        """True where the host cannot read the ids as they are."""
        return sampled.is_cuda

    @property
    def leaving(self) -> Tensor | None:
        """The host's memory for the ids, [n] int64, that whoever copies them must fill; None if they are on the way."""
        return None if self._is_sent else self._host

    def was_sent(self, arrived: torch.cuda.Event | None) -> None:
        """The ids are on their way. arrived: recorded behind the copy; None where that has been done already."""
        self._is_sent, self._arrived = True, arrived

    @torch.inference_mode()
    def send(self) -> None:
        """Start copying the ids to the host, unless they are on their way."""
        if self.leaving is None or self.sampled is None:
            return
        copy_words(self.sampled, self.leaving)
        self.was_sent(event_behind(self.sampled))

    def has_arrived(self) -> bool:
        """True once the tokens are in the host's memory, to which a kernel writes them: keep it until then."""
        return self._is_sent and (self._arrived is None or self._arrived.query())

    def result(self) -> list[int | None]:
        """A token id for each sequence whose last known token was in the step, None for the others."""
        if self._host is None:
            return [None] * len(self._slices)
        self.send()
        if self._arrived is not None:
            self._arrived.synchronize()
        token_ids: list[int | None] = self._host.tolist()
        if len(token_ids) == len(self._slices):
            return token_ids
        ids = iter(token_ids)
        return [next(ids) if s.needs_token else None for s in self._slices]


@dataclass(frozen=True, slots=True)
class Feed:
    """Where a step's input tokens come from when they are still on the device: rows of an earlier step's samples.

    pending: None on a rank that samples nothing and is sent the ids by rank 0.
    rows: [B] int64; -1 for a sequence whose input token the host knows.
    """

    pending: PendingTokens | None
    rows: np.ndarray | None

    @property
    def sampled(self) -> Tensor | None:
        """[n] int64: the earlier step's samples on the device; None where the ids come from rank 0."""
        return None if self.pending is None else self.pending.sampled

    def gather(self, input_ids: Tensor) -> None:
        """Write the ids that were sampled into `input_ids` [B] int64, on the rank that has them; the others stay."""
        if self.sampled is None:
            return
        assert self.rows is not None
        put_fed(torch.from_numpy(self.rows).to(input_ids.device, non_blocking=True), self.sampled, input_ids)


# On ranks other than 0: the input ids come from rank 0.
SENT_BY_RANK_0 = Feed(None, None)
