"""Before anything is recorded or measured: what the first steps launch is run side by side, so that it compiles sooner.

Triton compiles a kernel when it is first launched, for half a second each, mostly outside of Python's lock.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import torch

from nanovllm.paged_kv.cuda_graphs import wait_for
from nanovllm.paged_kv.model_runner import ModelRunner
from nanovllm.paged_kv.prefill_graphs import SMALLEST


def compile_ahead(
    runner: ModelRunner, num_tokens: int, max_num_seqs: int, max_model_len: int, prefill_graph_tokens: int
) -> None:
    """Compile what the first steps launch, side by side. Needs a pool, and one rank: collectives would mix.

    Steps to be recorded run as padding: decode, and the smallest and the largest prefill. `warm_up` runs the others, a
    short prefill and one of num_tokens tokens.
    """
    decode = runner.unrecorded_decode(max_num_seqs, max_model_len)
    lanes = [decode.lane(sizes) for sizes in compile_lanes(max_num_seqs)]
    if prefill_graph_tokens:
        prefill = runner.unrecorded_prefills(prefill_graph_tokens, max_model_len)
        lanes.append(prefill.lane(sorted({min(SMALLEST, prefill_graph_tokens), prefill_graph_tokens})))

    def meanwhile() -> None:
        decode.buffers.compile_copies()
        runner.warm_up(num_tokens, max_num_seqs, max_model_len)
        runner.warm_up(min(SMALLEST, num_tokens), max_num_seqs, max_model_len)

    side_by_side(lanes, meanwhile, runner.device)


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
