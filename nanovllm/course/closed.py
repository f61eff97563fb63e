"""What a submission may not do while it is graded, and how it is told so.

Three layers, each of them a help against tricks and accidents and none a security boundary: `look` reads the file
before it runs; `conceal` takes the engine's own pieces out of the process, so that there is nothing to copy from;
`Watch` hears what Python is asked to do (files, processes, connections) and refuses some of it.
"""

import ast
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import nanovllm
from nanovllm.course.exercise import Exercise
from nanovllm.course.originals import holders, original, resolve, stored, wrapped_like

ALLOWED_NAMES = {"ExerciseNotDone"}  # what a submission takes from the course
_PACKAGE = Path(nanovllm.__file__).resolve().parent
_STARTS = (
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.exec",
    "os.system",
    "os.spawn",
    "subprocess.Popen",
    "pty.spawn",
)
_CONNECTS = ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo")
_CHANGES = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.chown",
)
_SIGNALS = ("os.kill", "os.killpg", "signal.pthread_kill")
_LIBRARIES = ("ctypes.dlopen", "ctypes.dlsym")
_SINKS = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Refused(PermissionError):
    """What a submission tried is not allowed; the message says what."""


def look(text: str) -> str:
    """Why a submission with this text is not run; "" when it may be.

    What stands under `if __name__ == "__main__":` may use anything: it does not run here.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ""  # running it gives the better message
    for node in _nodes(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("nanovllm.course")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nanovllm"):
            wanted = {alias.name for alias in node.names} - ALLOWED_NAMES
            in_course = str(node.module).startswith("nanovllm.course")
            names = [f"{node.module}.{name}" for name in sorted(wanted) if in_course or name == "course"]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "nanovllm.course" in node.value:
            names = [node.value[:60]]
        else:
            continue
        if names:
            return f"it looks into the grader ({names[0]}): a submission only fills its own functions in"
    return ""


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but docstrings and what runs only when the file itself is started."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test):
            continue
        yield node
        yield from _nodes(node)


def conceal(exercise: Exercise) -> None:
    """Take the engine's own version of the exercise's pieces out of this process, for good."""
    for name, seam in exercise.pieces:
        own, kind, absent = original(seam), stored(seam), _absent(exercise.name, name)
        for owner, attribute in holders(seam):
            setattr(owner, attribute, wrapped_like(kind, absent))
        for path in seam.defaults_of:
            holder = resolve(path)
            kept = holder.__defaults__ or ()
            holder.__defaults__ = tuple(absent if value is own else value for value in kept)
    original.cache_clear()


def _absent(exercise: str, name: str) -> Any:
    def absent(*args: Any, **kwargs: Any) -> Any:
        raise Refused(f"the engine's own {name} is not here while exercise {exercise} is graded: write yours")

    return absent


class Watch:
    """Hears Python's audit events and refuses what a submission has no need of; `seen` says what was tried.

    closed: folders that may not be read. own: the submission's file, which may.
    """

    def __init__(self, closed: Iterable[str | Path] = (), own: str | Path = "") -> None:
        self.seen: list[str] = []
        roots = (_PACKAGE.parent / "solutions", Path.cwd() / "solutions", *closed)
        self._closed = tuple(f"{Path(root).resolve()}{os.sep}" for root in roots)
        self._own = str(Path(own).resolve()) if own else ""
        engine = [module for name, module in list(sys.modules.items()) if name.split(".")[0] == "nanovllm"]
        files = [getattr(module, "__file__", None) for module in engine]
        self._loaded = {str(Path(file).resolve()) for file in files if file}
        self._triton = os.path.join(sysconfig.get_paths()["purelib"], "triton")
        self._pid = os.getpid()

    def start(self) -> None:
        """From now on, until the process ends: an audit hook cannot be taken out."""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            self._opened(*args)
        elif event in _STARTS:
            self._refuse(f"it started another process ({event})")
        elif event in _CONNECTS:
            self._refuse(f"it used the network ({event})")
        elif event in _CHANGES:
            self._refuse(f"it changed files ({event} {args[0]!r:.80})")
        elif event in _SIGNALS and args[0] != self._pid:
            self._refuse(f"it sent a signal to another process ({event})")
        elif event in _LIBRARIES and not self._is_below(("torch", "numpy", "triton")):
            self._refuse(f"it loaded a C library ({event})")

    def _opened(self, path: Any, mode: Any, flags: Any) -> None:
        if not isinstance(path, str | bytes):
            return
        name = os.path.realpath(os.fsdecode(path))
        if isinstance(flags, int) and flags & _WRITING and name not in _SINKS:
            self._refuse(f"it wrote to a file ({name})")
        if name == self._own:
            return
        if name.startswith(self._closed):
            self._refuse(f"it read {name}, which is closed while it is graded")
        if _source_of(name) in self._loaded and not self._is_triton():
            raise Refused(f"{name} is closed while a submission is graded")

    def _refuse(self, what: str) -> None:
        self.seen.append(what)
        raise Refused(f"{what}: a submission has no need to")

    def _is_triton(self) -> bool:
        """Triton's interpreter reads the source of the kernels that it runs."""
        return any(frame.startswith(self._triton) for frame in _files())

    def _is_below(self, packages: tuple[str, ...]) -> bool:
        """Whether a library of that name asks, and not the submission itself."""
        folders = tuple(os.path.join(sysconfig.get_paths()["purelib"], name) for name in packages)
        return any(frame.startswith(folders) for frame in _files())


def _files() -> Iterator[str]:
    """The files of the functions that are running, innermost first."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back


def _source_of(name: str) -> str:
    """The source file of a compiled one."""
    folder, file = os.path.split(name)
    if file.endswith(".pyc"):
        return os.path.join(os.path.dirname(folder), file.split(".")[0] + ".py")
    return name
