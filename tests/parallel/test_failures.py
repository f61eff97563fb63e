"""Whole engines that fail: an error within seconds that names the rank, and nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from helpers import greedy, make_llm, random_prompts, tiny_config, write_checkpoint

from nanovllm.errors import ConfigError, NanoVLLMError, RankError
from parallel.faults import Fault
from parallel.leftovers import State, wait_until_gone, worker_pids

HEADS: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8}
STEP_SECONDS = 1.5  # the deadline of a step in these tests


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = State()
    yield
    before.assert_restored()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tp") / "tiny", tiny_config(**HEADS))


# Every kind and every phase at least once; scripts/fault_loop.py runs all of their combinations.
@pytest.mark.parametrize(
    ("phase", "kind", "overlap"),
    [
        ("start", "raise", False),
        ("connect", "kill", False),
        ("prefill", "kill", False),
        ("decode", "raise", False),
        ("decode", "kill", True),
        ("decode", "stop", True),
        ("exit", "raise", False),
    ],
)
def test_a_failing_rank_is_named_and_everything_ends(checkpoint: Path, phase: str, kind: str, overlap: bool) -> None:
    began = time.monotonic()
    llm = None
    with pytest.raises(RankError, match="rank 1") as caught:  # noqa: PT012
        limits = {"rank_timeout": STEP_SECONDS, "setup": (Fault(1, phase, kind),), "overlap": overlap}
        llm = make_llm(checkpoint, tensor_parallel_size=2, **limits)
        began = time.monotonic()
        llm.generate(random_prompts([5, 9]), greedy(4), use_tqdm=False)
        llm.exit()
    assert time.monotonic() - began < (30 if phase in ("start", "connect") else 10)
    assert caught.value.rank == 1
    assert worker_pids() == set()
    assert not torch.is_inference_mode_enabled()
    if kind == "raise":
        assert f"ValueError: planted in {phase}" in str(caught.value)
        assert "faults.py" in caught.value.worker_traceback
    else:
        assert {"kill": "was killed by SIGKILL", "stop": "stopped or frozen"}[kind] in str(caught.value)
    if llm is not None:
        with pytest.raises(NanoVLLMError, match="this engine is closed: build a new one"):
            llm.generate([[1]], greedy(1), use_tqdm=False)
        llm.exit()


def test_setup_that_a_worker_could_not_import_is_refused(checkpoint: Path) -> None:
    function = type("F", (), {"__module__": "__main__", "__call__": lambda self, executor: None})()
    with pytest.raises(ConfigError, match="move it into a module"):
        make_llm(checkpoint, tensor_parallel_size=2, setup=(function,))


def test_time_that_rank_0_spends_elsewhere_is_not_held_against_the_ranks_and_its_own_error_is_its_own(
    checkpoint: Path,
) -> None:
    with make_llm(checkpoint, tensor_parallel_size=2, rank_timeout=STEP_SECONDS) as llm:

        def in_a_debugger(phase: str) -> None:
            if phase == "forward":
                time.sleep(STEP_SECONDS + 0.5)
                llm.model_runner.on_phase = None

        llm.model_runner.on_phase = in_a_debugger
        (expected,) = llm.generate(random_prompts([7]), greedy(3), use_tqdm=False)

        def broken_sampler(phase: str) -> None:
            if phase == "sample":
                raise LookupError("in rank 0's sampler, after the last collective")

        llm.model_runner.on_phase = broken_sampler
        with pytest.raises(LookupError, match="after the last collective"):
            llm.generate(random_prompts([7]), greedy(3), use_tqdm=False)
        llm.model_runner.on_phase = None  # the ranks are still in step, so the engine goes on
        assert llm.generate(random_prompts([7]), greedy(3), use_tqdm=False)[0].token_ids == expected.token_ids

        def broken_middle(phase: str) -> None:
            if phase == "forward":
                raise LookupError("while the others are in the model")

        llm.model_runner.on_phase = broken_middle
        with pytest.raises(LookupError, match="while the others"):
            llm.generate(random_prompts([7]), greedy(3), use_tqdm=False)
        with pytest.raises(NanoVLLMError, match="this engine is closed"):
            llm.generate(random_prompts([7]), greedy(3), use_tqdm=False)


def test_ctrl_c_stops_between_steps_and_the_engine_goes_on(checkpoint: Path) -> None:
    with make_llm(checkpoint, tensor_parallel_size=2) as llm:
        (expected,) = llm.generate(random_prompts([7]), greedy(3), use_tqdm=False)
        workers = [p.pid for p in llm.ranks.group.processes]

        def press() -> None:
            for pid in [*workers, os.getpid()]:  # as a terminal does, to the whole group
                os.kill(pid, signal.SIGINT)

        timer = threading.Timer(0.3, press)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            llm.generate(random_prompts([5] * 16), greedy(500), use_tqdm=False)
        assert llm.is_finished()
        (again,) = llm.generate(random_prompts([7]), greedy(3), use_tqdm=False)
        assert again.token_ids == expected.token_ids


def test_a_killed_program_leaves_nothing_though_its_rank_is_inside_a_step(checkpoint: Path) -> None:
    source = f"""
    import threading, os, sys
    from nanovllm import LLM, SamplingParams
    llm = LLM({str(checkpoint)!r}, tensor_parallel_size=2, device="cpu", num_kvcache_blocks=9, max_model_len=512)
    print(llm.ranks.group.processes[0].pid, llm.ranks.group._channel.segment.name, flush=True)
    while True:
        llm.generate([[1, 2, 3]] * 4, SamplingParams(temperature=0, max_tokens=400, ignore_eos=True), use_tqdm=False)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        pid, segment = program.stdout.readline().split()
        time.sleep(0.3)
        program.kill()
    assert wait_until_gone([int(pid)], 5) == []
    assert not Path("/dev/shm", segment).exists()


CELL = """
import psutil
from nanovllm import LLM, SamplingParams
llm = LLM({folder!r}, tensor_parallel_size=2, device="cpu", num_kvcache_blocks=9, max_model_len=64)
out = llm.generate([[1, 2, 3]], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True), use_tqdm=False)
workers = [c.pid for c in psutil.Process().children() if "spawn_main" in " ".join(c.cmdline())]
print(out[0].token_ids, len(workers))
"""


def start_kernel() -> tuple[Any, Any]:
    """(manager, client) of a notebook kernel; a second one where the first never answers, as some of ipykernel 7 do."""
    manager_module = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    try:
        return manager_module.start_new_kernel(startup_timeout=40)
    except RuntimeError:
        return manager_module.start_new_kernel(startup_timeout=40)


def test_a_notebook_cell_run_twice_and_a_kernel_restart(checkpoint: Path) -> None:
    manager, client = start_kernel()
    try:
        printed = []
        for _ in range(2):
            client.execute_interactive(
                CELL.format(folder=str(checkpoint)),
                timeout=90,
                output_hook=lambda m: printed.append(m["content"].get("text", m["content"].get("traceback"))),
            )
        streams = [text for text in printed if text]
        assert len(streams) == 2, streams
        assert streams[0] == streams[1]  # the same tokens, and one worker: the first engine's is gone
        assert streams[0].rstrip().endswith(" 1")
        kernel = psutil.Process(manager.provisioner.pid)
        workers = [c.pid for c in kernel.children() if "spawn_main" in " ".join(c.cmdline())]
        assert len(workers) == 1
        manager.restart_kernel(now=True)
        assert wait_until_gone(workers, 5) == []
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
