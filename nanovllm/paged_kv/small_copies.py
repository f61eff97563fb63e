"""Copies of a few words to and from the device that the host does not wait for."""

import importlib.util

import torch
from torch import Tensor

HAS_KERNEL = importlib.util.find_spec("triton") is not None


def copy_words(source: Tensor, target: Tensor) -> None:
    """target[:n] = source [n], both int64; on a GPU or in pinned memory, or both on a CPU.

    By a kernel that reaches into pinned memory itself: a copy engine takes longer to begin than a few words take.
    """
    if HAS_KERNEL and (source.is_cuda or target.is_cuda):
        from nanovllm.paged_kv.kernels import copies

        copies.copy_words(source, target)
    else:
        target[: source.numel()].copy_(source, non_blocking=True)


def copy_fed(source: Tensor, target: Tensor, rows: Tensor, sampled: Tensor, leaving: Tensor | None = None) -> None:
    """As `copy_words`, but target[i] = sampled[rows[i]] where rows [m] int64 (beside source) is not -1.

    leaving: memory of the host for all of `sampled` [n] int64, which is copied there on the way; or None.
    """
    if HAS_KERNEL and target.is_cuda:
        from nanovllm.paged_kv.kernels import copies

        copies.copy_fed(source, target, rows, sampled, leaving)
        return
    copy_words(source, target)
    put_fed(rows.to(target.device), sampled, target[: rows.numel()])
    if leaving is not None:
        copy_words(sampled, leaving)


def put_fed(rows: Tensor, sampled: Tensor, target: Tensor) -> None:
    """target[i] = sampled[rows[i]] where rows is not -1; all on one device, rows and target [m] int64."""
    torch.where(rows >= 0, sampled.index_select(0, rows.clamp(min=0)), target, out=target)


def event_behind(tensor: Tensor) -> torch.cuda.Event | None:
    """An event behind all that the tensor's GPU was given so far; None on a CPU, which has done it."""
    if not tensor.is_cuda:
        return None
    event = torch.cuda.Event()
    event.record()
    return event
