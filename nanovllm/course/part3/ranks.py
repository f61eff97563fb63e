"""Several ranks in one process, one after the other, and a checkpoint in memory: for checks of tensor parallelism.

A rank runs until it needs the other ranks' tensors. When all of them stand at their collective it is answered, and
they run again from the start with that answer at hand. So there are no threads, nothing can hang, and ranks that would
wait for each other for ever are told so.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nanovllm.errors import CheckpointError, CollectiveError
from nanovllm.qwen3.parallel import TensorParallelGroup
from nanovllm.qwen3.weights import Shard

MOST_COLLECTIVES = 8


class _WaitsForOthers(BaseException):
    """The rank stands at a collective whose answer is not known yet."""


class SimulatedGroup(TensorParallelGroup):
    """The group of one simulated rank. answers: what its first collectives return."""

    def __init__(self, rank: int, size: int, answers: list[Any]) -> None:
        super().__init__(rank, size)
        self._answers = answers
        self.given: list[tuple[str, str, Tensor]] = []  # kind, where, this rank's tensor

    def all_reduce(self, x: Tensor, where: str) -> Tensor:
        """See the base class."""
        return self._collective("all_reduce", x, where)

    def gather(self, x: Tensor, where: str) -> list[Tensor] | None:
        """See the base class."""
        return self._collective("gather", x, where)

    def _collective(self, kind: str, x: Tensor, where: str) -> Any:
        self.given.append((kind, where, x.clone()))
        if len(self.given) > len(self._answers):
            raise _WaitsForOthers
        return self._answers[len(self.given) - 1]


def on_ranks(size: int, work: Callable[[TensorParallelGroup], Any]) -> tuple[list[Any], list[list[Any]]]:
    """(work(group) of each rank, in rank order; the collectives as [kind, where, shape of a rank's tensor]).

    Raises CollectiveError when the ranks do not meet in the same collectives.
    """
    answers: list[list[Any]] = [[] for _ in range(size)]
    for _ in range(MOST_COLLECTIVES + 1):
        groups = [SimulatedGroup(rank, size, answers[rank]) for rank in range(size)]
        results: dict[int, Any] = {}
        for group in groups:
            try:
                results[group.rank] = work(group)
            except _WaitsForOthers:
                continue
        if len(results) == size:
            seen = [[kind, where, list(x.shape)] for kind, where, x in groups[0].given]
            return [results[rank] for rank in range(size)], seen
        if results:
            ready, waits = min(results), next(rank for rank in range(size) if rank not in results)
            raise CollectiveError(f"rank {waits} waits in {_at(groups[waits])} for rank {ready}, which never comes")
        for rank, answer in enumerate(_answer([group.given[-1] for group in groups])):
            answers[rank].append(answer)
    raise CollectiveError(f"more than {MOST_COLLECTIVES} collectives: is there one in a loop?")


def _at(group: SimulatedGroup) -> str:
    kind, where, _ = group.given[-1]
    return f"{kind} {where!r}"


def _answer(given: list[tuple[str, str, Tensor]]) -> list[Any]:
    """What each rank gets back. Raises CollectiveError when they did not ask for the same."""
    asked = {(kind, where, tuple(x.shape)) for kind, where, x in given}
    if len(asked) > 1:
        raise CollectiveError(f"the ranks do not ask for the same: {sorted(asked)}")
    tensors = [x for _, _, x in given]
    if given[0][0] == "gather":
        return [tensors, *[None] * (len(given) - 1)]
    return [torch.stack(tensors).sum(dim=0) for _ in given]


class MemoryReader:
    """Stands in for a WeightReader: tensors by name, in memory. numbers_read: how many were asked for."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self.numbers_read = 0
        self.bytes_read = 0

    def fill(
        self, parameter: Tensor, name: str, into: tuple[int, int] | None = None, shard: Shard | None = None
    ) -> None:
        """See WeightReader.fill."""
        target = parameter if into is None else parameter[into[0] : into[0] + into[1]]
        if name not in self._tensors:
            raise CheckpointError(f"there is no tensor {name!r}; there are {', '.join(self._tensors)}")
        tensor = self._tensors[name]
        if shard is not None:
            if tensor.shape[shard.dim] != shard.total:
                raise CheckpointError(
                    f"{name} has {tensor.shape[shard.dim]} entries along dimension {shard.dim}, not {shard.total}"
                )
            tensor = tensor.narrow(shard.dim, shard.first, shard.length)
        if tensor.shape != target.shape:
            raise CheckpointError(
                f"{name}: a part of shape {list(tensor.shape)} was read for rows of shape {list(target.shape)}"
            )
        target.copy_(tensor)
        self.numbers_read += tensor.numel()
        self.bytes_read += tensor.nbytes

    def finish(self, ignored: frozenset[str] = frozenset()) -> None:
        """Nothing to close."""
