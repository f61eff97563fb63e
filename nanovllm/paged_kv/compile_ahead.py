"""Before anything is recorded or measured: what the first steps launch is run side by side, so that it compiles sooner.

Triton compiles a kernel when it is first launched, for half a second each, mostly outside of Python's lock.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import torch

from nanovllm.paged_kv.cuda_graphs import wait_for


def compile_lanes(max_num_seqs: int) -> list[list[int]]:
    """Batch sizes that together need every decode kernel, in lanes that share few: from few rows to many."""
    lanes = [[1], [4, 8], [16, 32], [64, 128, 256, max_num_seqs]]
    return [sorted({min(size, max_num_seqs) for size in lane}) for lane in lanes]


def side_by_side(lanes: list[Callable[[], Any]], meanwhile: Callable[[], Any], device: torch.device) -> None:
    """Run each of the lanes in a thread of its own, with `device` as the current one, and `meanwhile` in this one.

    A lane's error is left to whatever runs the same kernels next, which meets it again and reports it. Few lanes: a
    thread that multiplies matrices takes a handle of the library, whose workspace stays on the device for the next
    thread. All take theirs before any lane begins, so that each engine of a process needs the same number of them.
    """
    ready = Barrier(len(lanes))

    @torch.inference_mode()
    def run(lane: Callable[[], Any]) -> None:
        try:
            if device.type == "cuda":
                torch.cuda.set_device(device)  # of this thread
                torch.cuda.current_blas_handle()
        except BaseException:
            ready.abort()  # or the others would wait for ever
            raise
        ready.wait()
        lane()

    with ThreadPoolExecutor(len(lanes)) as pool:
        running = [pool.submit(run, lane) for lane in lanes]
        meanwhile()
        for future in running:
            future.exception()
    wait_for(device)
