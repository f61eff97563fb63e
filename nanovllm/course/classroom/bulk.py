"""Grade a whole class: on this machine's cores, or on the workers of a Dask scheduler, with the same results."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from nanovllm.course.classroom.journal import Journal
from nanovllm.course.classroom.submissions import NO_FILE, Submission
from nanovllm.course.classroom.task import Row, Task, grade_task
from nanovllm.course.errors import CourseError
from nanovllm.course.exercise import Exercise
from nanovllm.course.judge import void
from nanovllm.course.process import ENVIRONMENT, Limits

CLASS_LIMITS = Limits(seconds=60.0)  # checks are limited by their time on a core; this ends what waits for ever
_DIE_WITH_PARENT = 1  # prctl

Rows = dict[str, dict[str, Row]]  # submission -> exercise number -> grade
Graded = Iterator[tuple[Task, Row]]
Run = Callable[[list[Task]], Graded]


def grade_class(
    submissions: list[Submission],
    exercises: list[Exercise],
    folder: Path,
    journal: Journal,
    run: Run,
    seed: int = 0,
    limits: Limits = CLASS_LIMITS,
    on_grade: Callable[[int, int], None] = lambda done, total: None,
) -> Rows:
    """The grades of all `exercises` of all `submissions`, in their order. What the journal has is not graded again.

    run: grades tasks and yields each with its grade, in any order: `on_cores(n)` or `on_dask(address)`.
    on_grade: called with how many are graded and how many there are.
    """
    rows: Rows = {submission.name: {} for submission in submissions}
    todo: list[Task] = []
    for submission in submissions:
        for exercise in exercises:
            try:
                text = submission.text_of(exercise)
            except CourseError as error:
                rows[submission.name][exercise.number] = _no_file(exercise, error, submission)
                continue
            task = Task(submission.name, exercise.number, text, seed, limits, str(folder.resolve()))
            known = journal.find(task)
            if known is None:
                todo.append(task)
            else:
                rows[submission.name][exercise.number] = known
    total = len(submissions) * len(exercises)
    done = total - len(todo)
    on_grade(done, total)
    for task, row in run(todo):
        journal.add(task, row)
        rows[task.submission][task.number] = row
        done += 1
        on_grade(done, total)
    order = [exercise.number for exercise in exercises]
    return {name: {number: grades[number] for number in order} for name, grades in rows.items()}


def _no_file(exercise: Exercise, error: CourseError, submission: Submission) -> Row:
    reason = str(error).replace(str(submission.folder), submission.name)
    row = void(exercise, reason).as_dict()
    row["status"] = "missing" if reason.startswith(NO_FILE) else "void"
    del row["seconds"]
    return row


def on_cores(jobs: int) -> Run:
    """Grade in `jobs` processes of this machine."""

    def run(tasks: list[Task]) -> Graded:
        if not tasks:
            return
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(jobs, len(tasks)), context, _begin_worker, (os.getpid(),)) as pool:
            futures = {pool.submit(grade_task, task): task for task in tasks}
            try:
                for future in as_completed(futures):
                    yield futures.pop(future), future.result()
            except BrokenProcessPool:
                raise CourseError(
                    "a grading process of this machine ended, for lack of memory perhaps: run the command again to go "
                    "on from here, with fewer --jobs"
                ) from None
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    return run


def _begin_worker(parent: int) -> None:
    """End with the process that grades the class, and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(ENVIRONMENT)  # before torch is imported: one thread, no GPU
    warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"triton\.")  # planted bugs divide by zero
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def on_dask(address: str) -> Run:
    """Grade on the workers of the Dask scheduler at `address`. Raises CourseError when that cannot be reached."""
    try:
        from distributed import Client
        from distributed import as_completed as dask_as_completed
    except ImportError:
        raise CourseError("--dask needs Dask: pip install 'nanovllm[class]'") from None

    def run(tasks: list[Task]) -> Graded:
        if not tasks:
            return
        try:
            client = Client(address, timeout="10s")
        except (OSError, TimeoutError, ValueError) as error:
            raise CourseError(f"no Dask scheduler answers at {address}: {error or type(error).__name__}") from error
        with client, contextlib.closing(_Futures(client, tasks)) as futures:
            for future, row in dask_as_completed(futures.tasks, with_results=True):
                yield futures.tasks.pop(future), row

    return run


class _Futures:
    """Tasks under way on a cluster; `close` cancels those that are not done."""

    def __init__(self, client: object, tasks: Iterable[Task]) -> None:
        self._client = client
        self.tasks = {client.submit(grade_task, task, pure=False): task for task in tasks}  # type: ignore[attr-defined]

    def close(self) -> None:
        """Cancel what is left."""
        self._client.cancel(list(self.tasks))  # type: ignore[attr-defined]
