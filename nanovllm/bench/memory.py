"""The peak of a rank's memory. The functions run on every rank, through `llm.ranks.call`."""

import sys
from pathlib import Path
from typing import Any

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # what Linux takes as: forget the largest resident size


def reset_peak(executor: Any) -> None:
    """Start a new measurement on this rank. Does nothing where the system cannot (then peaks only grow)."""
    if executor.plan.device_type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(executor.rank)
        return
    try:
        CLEAR.write_text(RESET_PEAK)
    except OSError:
        return


def peak_bytes(executor: Any) -> int:
    """Bytes at the peak: allocated on the rank's GPU, or resident in the rank's process on a CPU."""
    if executor.plan.device_type == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated(executor.rank))
    return resident_peak()


def resident_peak() -> int:
    """Largest resident size of this process in bytes; 0 where the system does not tell."""
    if STATUS.exists():
        lines = [line for line in STATUS.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM")]
        if lines:
            return int(lines[0].split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
