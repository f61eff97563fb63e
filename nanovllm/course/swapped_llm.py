"""An `LLM` that runs on a learner's pieces, in every rank: `LLM(..., swap={...})`."""

from collections.abc import Mapping
from functools import wraps
from typing import Any

from nanovllm.course.exercise import Seam
from nanovllm.course.rank_swap import RankSwap, calls_here
from nanovllm.course.swap import Implementation
from nanovllm.llm import LLM

Swaps = Mapping[str | Seam, Implementation]


def _on_swapped(name: str) -> Any:
    """The method of that name, with the pieces in force while it runs."""

    @wraps(getattr(LLM, name))
    def inside(self: "SwappedLLM", *args: Any, **kwargs: Any) -> Any:
        with self.rank_swap.active():  # looked up inside: the method itself may be swapped
            return getattr(super(SwappedLLM, self), name)(*args, **kwargs)

    return inside


class SwappedLLM(LLM):
    """What `LLM(..., swap={...})` is. Rank 0's pieces are in force while a method of this engine runs, and only then:
    another engine of the process is not concerned.
    """

    def __init__(self, model: str, *, swap: Swaps, prepare: Any = (), **options: Any) -> None:
        self.rank_swap = RankSwap(swap)
        self._last_calls: dict[str, list[int]] | None = None
        with self.rank_swap.active():
            super().__init__(model, prepare=(self.rank_swap, *prepare), **options)

    add_request = _on_swapped("add_request")
    check_request = _on_swapped("check_request")
    abort = _on_swapped("abort")
    is_finished = _on_swapped("is_finished")
    step = _on_swapped("step")
    book = _on_swapped("book")
    generate = _on_swapped("generate")
    chat = _on_swapped("chat")

    def swap_calls(self) -> dict[str, list[int]]:
        """Calls of each piece so far, by rank: {"BlockManager.allocate": [3, 0]}. After `exit`, those until then."""
        if self._last_calls is not None:
            return self._last_calls
        by_rank = self.ranks.call(calls_here)
        return {name: [calls[name] for calls in by_rank] for name in self.rank_swap.calls}

    def exit(self) -> None:
        """Read the counts of all ranks, then close as every engine does."""
        if not self._closed and not self.ranks.is_closed:
            self._last_calls = self.swap_calls()
        super().exit()

    close = exit
