"""Starting, calling, failing and ending worker processes, with an executor that needs no torch."""

import gc
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

from nanovllm.engine.rank_failures import RankTimeouts
from nanovllm.engine.ranks import RankGroup
from nanovllm.errors import NanoVLLMError, RankError
from parallel.leftovers import State, wait_until_gone
from parallel.light_ranks import LightExecutor

TESTS = Path(__file__).parents[1]
PATIENT = RankTimeouts(20, 20, 20)
SHORT = RankTimeouts(20, 0.5, 0.5)


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = State()
    yield
    before.assert_restored()


def group_of(size: int, fault: tuple[int, str, str] | None = None, timeouts: RankTimeouts = PATIENT) -> RankGroup:
    return RankGroup(size, LightExecutor, (fault,), timeouts=timeouts)


# --- calls ----------------------------------------------------------------------------------------------------------


def test_every_rank_answers_in_order_and_a_single_rank_spawns_nothing() -> None:
    for size in (1, 2, 4):
        group = group_of(size)
        assert group.every("echo", [1, "two"]) == [(rank, [1, "two"]) for rank in range(size)]
        assert len(group.processes) == size - 1
        group.close()
        assert group.local.closed >= 1
        with pytest.raises(NanoVLLMError, match="build a new one"):
            group.every("echo", 1)
        group.close()


def test_calls_and_results_larger_than_a_segment() -> None:
    group = group_of(3)
    call = os.urandom(3 * 2**20 + 11)
    assert [value for _, value in group.every("echo", call)] == [call] * 3
    assert group.every("sized", 2**20 + 1) == [bytes([rank]) * (2**20 + 1) for rank in range(3)]
    assert group.traffic.num_chunks > group.traffic.num_messages
    group.close()


def test_steps_are_answered_later_and_none_is_lost() -> None:
    group = group_of(2)
    results = [group.step(i, lambda i=i: i * i) for i in range(200)]
    assert results == [i * i for i in range(200)]
    assert group.every("num_steps") == [0, 200]
    group.close()


def test_what_cannot_be_pickled_is_refused_before_anything_is_spawned() -> None:
    before = State()
    with pytest.raises(Exception, match=r"pickle|local object"):
        RankGroup(2, LightExecutor, (lambda: None,))
    before.assert_restored(0)


def test_two_groups_side_by_side() -> None:
    first, second = group_of(2), group_of(3)
    for i in range(5):
        assert len(first.every("echo", i)) == 2
        assert second.every("echo", i)[2] == (2, i)
    first.close()
    assert second.every("echo", "still") == [(rank, "still") for rank in range(3)]
    second.close()


def test_files_do_not_pile_up() -> None:
    from parallel.leftovers import num_files

    group_of(2).close()
    before = num_files()
    for _ in range(3):
        group_of(2).close()
    assert num_files() <= before


# --- failures -------------------------------------------------------------------------------------------------------


def drive(fault: tuple[int, str, str], timeouts: RankTimeouts) -> None:
    """A short life: start, call, steps, end. Whatever fails raises here."""
    group = group_of(3, fault, timeouts)
    group.every("echo", "prefill")
    for i in range(3):
        group.step(i, lambda: None)
    group.close()


@pytest.mark.parametrize("kind", ["raise", "kill", "stop", "hang", "system_exit"])
@pytest.mark.parametrize("phase", ["create", "echo", "run_step", "exit"])
def test_a_failure_in_any_phase_names_the_rank_within_seconds(phase: str, kind: str) -> None:
    timeouts = RankTimeouts(1.5, 0.5, 0.5) if kind in ("stop", "hang") else PATIENT
    began = time.monotonic()
    with pytest.raises(RankError, match="rank 2") as caught:
        drive((2, phase, kind), timeouts)
    assert time.monotonic() - began < 8
    assert caught.value.rank == 2
    if kind == "raise":
        assert f"ValueError: planted in {phase}" in str(caught.value)
        assert "_maybe_fail" in caught.value.worker_traceback
    if kind == "kill":
        assert "SIGKILL" in str(caught.value)
    if kind == "stop":
        assert "stopped or frozen" in str(caught.value)


def test_a_result_that_cannot_be_pickled_is_an_error_of_that_rank() -> None:
    group = group_of(2)
    with pytest.raises(RankError, match="rank 1 raised"):
        group.every("unpicklable")


def test_a_death_between_calls_shows_in_the_next_one_and_ends_the_others_at_once() -> None:
    group = group_of(4)
    pids = [p.pid for p in group.processes]
    os.kill(pids[1], signal.SIGKILL)
    assert wait_until_gone(pids) == []
    with pytest.raises(RankError, match="rank 2 was killed by SIGKILL"):
        group.every("echo", 1)
    group.close()


class Rank0Fails(LightExecutor):
    def echo(self, value: Any) -> Any:
        if self.seat.rank == 0:
            raise LookupError("only here")
        if value == "slow":
            time.sleep(30)
        return super().echo(value)

    def nap(self, seconds: float) -> None:
        if self.seat.rank:
            time.sleep(seconds)


def test_an_error_of_rank_0_alone_is_raised_as_it_is_and_the_ranks_stay_if_they_are_in_step() -> None:
    group = RankGroup(2, Rank0Fails, timeouts=PATIENT)
    with pytest.raises(LookupError, match="only here"):
        group.every("echo", 1)
    assert group.every("num_steps") == [0, 0]
    with pytest.raises(LookupError, match="only here"):
        group.every("echo", "slow")
    assert group.is_closed


def test_an_interrupt_inside_a_step_ends_the_ranks() -> None:
    group = RankGroup(2, Rank0Fails, timeouts=PATIENT)

    def interrupted() -> None:
        raise KeyboardInterrupt

    group.step(0, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        group.step(1, interrupted)
    assert group.every("num_steps") == [0, 2]  # the workers had finished: nothing was lost
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        group.every("nap", 30)
    assert group.is_closed


def test_workers_ignore_an_interrupt_of_the_whole_process_group() -> None:
    group = group_of(2)
    for process in group.processes:
        os.kill(process.pid, signal.SIGINT)
    time.sleep(0.2)
    assert group.every("echo", 1) == [(0, 1), (1, 1)]
    group.close()


# --- ends that nobody asked for -------------------------------------------------------------------------------------


def test_a_forgotten_group_ends_its_processes() -> None:
    group = group_of(3)
    pids = [p.pid for p in group.processes]
    del group
    gc.collect()
    assert wait_until_gone(pids) == []


PRELUDE = f"""
import os, signal, sys, time
sys.path.insert(0, {str(TESTS)!r})
from parallel.light_ranks import LightExecutor
from nanovllm.engine.ranks import RankGroup
group = RankGroup(3, LightExecutor)
assert group.every("echo", 1) == [(0, 1), (1, 1), (2, 1)]
print(*[p.pid for p in group.processes], group._channel.segment.name, flush=True)
"""


def run_program(end: str, how: str, tmp_path: Path) -> tuple[subprocess.CompletedProcess[str], list[int], str]:
    """Run a program without a `__main__` guard that starts ranks and then does `end`; what it printed of them."""
    source = PRELUDE + textwrap.dedent(end)
    script = tmp_path / "unguarded.py"
    script.write_text(source)
    command = {"script": [str(script)], "-c": ["-c", source], "stdin": ["-"]}[how]
    done = subprocess.run(
        [sys.executable, *command],
        input=source if how == "stdin" else None,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    *pids, segment = done.stdout.split()
    return done, [int(pid) for pid in pids], segment


@pytest.mark.parametrize("how", ["script", "-c", "stdin"])
def test_it_starts_from_any_kind_of_program_and_the_end_of_the_interpreter_ends_the_ranks(
    how: str, tmp_path: Path
) -> None:
    done, pids, segment = run_program("", how, tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""  # no traceback, and no word of leaked segments or semaphores
    assert wait_until_gone(pids, 5) == []
    assert not Path("/dev/shm", segment).exists()


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("raise RuntimeError('unhandled')", 1),
        ("os.kill(group.processes[0].pid, signal.SIGSTOP)", 0),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("os._exit(7)", 7),
        ("sys.exit(4)", 4),
    ],
    ids=["exception", "stopped worker", "kill -9", "terminated", "os._exit", "sys.exit"],
)
def test_however_rank_0_ends_nothing_stays(end: str, status: int, tmp_path: Path) -> None:
    done, pids, segment = run_program(end, "script", tmp_path)
    assert done.returncode == status
    assert wait_until_gone(pids, 5) == []
    assert not Path("/dev/shm", segment).exists()


def test_a_forked_copy_of_the_program_does_not_end_the_ranks(tmp_path: Path) -> None:
    end = """
    import multiprocessing
    forked = multiprocessing.get_context("fork").Process(target=globals().pop, args=("group",))
    forked.start()
    forked.join()
    assert forked.exitcode == 0
    assert group.every("echo", 2) == [(0, 2), (1, 2), (2, 2)]
    group.close()
    """
    done, pids, _ = run_program(end, "script", tmp_path)
    assert done.returncode == 0, done.stderr
    assert wait_until_gone(pids, 5) == []


def test_ctrl_c_while_the_ranks_start(tmp_path: Path) -> None:
    mark = f"ranks-{os.getpid()}-{time.monotonic_ns()}"
    source = f"""
    import os, signal, sys, threading
    sys.path.insert(0, {str(TESTS)!r})
    from parallel.light_ranks import LightExecutor
    from nanovllm.engine.ranks import RankGroup
    threading.Timer({{delay}}, lambda: os.killpg(0, signal.SIGINT)).start()  # as a terminal does
    RankGroup(3, LightExecutor, ((1, "create", "hang"),))
    """
    for delay in (0.02, 0.5):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(source).format(delay=delay)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            start_new_session=True,
            env=os.environ | {"RANKS_TEST_MARK": mark},
        )
        assert done.returncode != 0
        assert done.stderr.count("Traceback") == 1, done.stderr  # rank 0's; the workers say nothing
        assert "KeyboardInterrupt" in done.stderr
        assert wait_until_gone(processes_marked(mark), 5) == []


def processes_marked(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("RANKS_TEST_MARK") == mark:
                found.append(process.pid)
        except psutil.Error:
            pass
    return found
