"""Submissions for exercise 1.1 that try something else than solving it, each with words of the reason it must get.

FAST ones are over in a moment; SLOW ones run into a limit of time.
"""

import os

RIGHT = """
def num_blocks(seq):
    return -(-seq.num_tokens // seq.block_size)
def last_block_num_tokens(seq):
    return (seq.num_tokens - 1) % seq.block_size + 1
def block(seq, index):
    if not 0 <= index < seq.num_blocks:
        raise IndexError(index)
    return seq.token_ids[index * seq.block_size:][:seq.block_size]
"""


def inside(code: str) -> str:
    """The right submission with `code` (lines) at the start of `num_blocks`."""
    return RIGHT.replace("    return -(", "".join(f"    {line}\n" for line in code.splitlines()) + "    return -(")


# A way to a new process that Python tells no audit hook about.
START = """
import sys
from multiprocessing.util import spawnv_passfds
def start(code):
    spawnv_passfds(sys.executable.encode(), [sys.executable.encode(), b"-S", b"-c", code.encode()], ())
"""
# Linux holds root to no number of processes, and a bomb without a bound takes the machine with it for minutes before
# all of it is ended. So as root it stops at 256 processes.
GENERATIONS = "range(8)" if hasattr(os, "geteuid") and os.geteuid() == 0 else "iter(int, 1)"
BOMB = (
    f"import os, time\nfor _ in {GENERATIONS}:\n    os.fork()\n"
    "    os.setsid() if os.getpid() != os.getsid(0) else None\ntime.sleep(99)"
)
EVIL_INT = """
class Any(int):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __lt__ = __le__ = __gt__ = __ge__ = lambda self, other: True
    __hash__ = int.__hash__
"""
EVIL_LIST = """
class All(list):
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __iter__ = lambda self: iter([1, 2])
"""

FAST: dict[str, tuple[str, str]] = {
    # it ends
    "exits when imported": ("import sys; sys.exit(0)", "SystemExit"),
    "exits hard": ("import os; os._exit(0)", "ended with exit code 0 before"),
    "exits in a function": (inside("raise SystemExit"), "SystemExit"),
    "exits hard in a function": (inside("import os; os._exit(0)"), "ended with exit code 0 before"),
    "raises when imported": ("raise KeyError('a slip')", "KeyError: 'a slip'"),
    "is no Python": ("def num_blocks(seq:", "SyntaxError"),
    "is no text": ("\x00\x01", "could not be run"),
    "kills itself": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "by signal SIGKILL"),
    "recurses": ("def f(): return f()\nf()", "RecursionError"),
    "recurses without a limit": (
        "import sys; sys.setrecursionlimit(10**9)\nsys.setrecursionlimit = None\n"
        "class A:\n    def __getattr__(self, n): return getattr(self, n)\ngetattr(A(), 'x')",
        "before the checks were through",
    ),
    # it takes
    "takes 50 GB": ("data = bytearray(50 << 30)", "MemoryError"),
    "takes 50 GB bit by bit": ("data = []\nwhile True: data.append(bytearray(1 << 28))", "MemoryError"),
    "takes 50 GB in a function": (inside("a = [0] * (50 << 27)"), "MemoryError"),
    "prints 100 MB": ("for _ in range(1000): print('x' * 100_000)", "printed more than 1,000,000 bytes"),
    "prints without end": ("while True: print('x' * 100_000)", "printed more than"),
    "prints in a function": (inside("print('x' * 2_000_000, flush=True)"), "printed more than"),
    "writes a large file": ("open('/dev/shm/nanovllm-x', 'w').write('x')", "it wrote to a file"),
    # standard output
    "closes standard output": ("import sys; sys.stdout.close()" + RIGHT, "closed its standard output"),
    "closes standard output's descriptor": ("import os; os.close(1)" + RIGHT, "closed its standard output"),
    "closes it in a function": (inside("import os; os.close(1)"), "closed its standard output"),
    "closes everything": ("import os\nos.closerange(0, 100)" + RIGHT, "before the checks were through"),
    # other processes
    "forks": ("import os\nif not os.fork(): os._exit(0)" + RIGHT, "started another process (os.fork)"),
    "forks and hides it": (
        "import os\ntry:\n    os.fork()\nexcept Exception: pass" + RIGHT,
        "started another process (os.fork)",
    ),
    "runs a command": ("import os; os.system('true')" + RIGHT, "started another process (os.system)"),
    "runs a program": ("import subprocess; subprocess.run(['true'])" + RIGHT, "(subprocess.Popen)"),
    "forks through C": ("import ctypes; ctypes.CDLL(None).fork()" + RIGHT, "loaded a C library"),
    "starts a process unheard": (START + "start('import time; time.sleep(99)')\n" + RIGHT, "started another process"),
    "starts a daemon": (
        START + "start('import os, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\ntime.sleep(99)')\n"
        "import time; time.sleep(0.3)" + RIGHT,
        "started another process",
    ),
    "is a fork bomb": (START + f"start({BOMB!r})\nimport time; time.sleep(9)", "started another process"),
    "kills its parent": ("import os; os.kill(os.getppid(), 9)" + RIGHT, "sent a signal to another process"),
    "kills its group": ("import os; os.killpg(os.getpgid(os.getppid()), 9)" + RIGHT, "sent a signal"),
    # the network, files
    "connects": ("import socket; socket.create_connection(('127.0.0.1', 9))" + RIGHT, "it used the network"),
    "removes files": ("import os; os.remove('/nowhere/x')" + RIGHT, "it changed files (os.remove '/nowhere/x')"),
    "removes a tree": ("import os, shutil; os.mkdir('x'); shutil.rmtree('x')", "it changed files (os.mkdir 'x')"),
    # it changes what grades it
    "patches the engine": (RIGHT + "from nanovllm.scheduler import Sequence\nSequence.__len__ = len", "it replaced"),
    "gives the engine an equality": (
        RIGHT + "from nanovllm.scheduler import Sequence\nSequence.__eq__ = lambda a, b: True",
        "it replaced nanovllm.scheduler.sequence.Sequence.__eq__",
    ),
    "patches the grader": (
        RIGHT + "import nanovllm.course.checks as c\nc.observe_example = lambda e: {}",
        "it looks into the grader (nanovllm.course.checks)",
    ),
    "patches the grader by name": (
        RIGHT + "import sys\nc = sys.modules['nanovllm.' + 'course.checks']\nc.observe_example = lambda e: {}",
        "it replaced nanovllm.course.checks.observe_example",
    ),
    "patches its code": (
        RIGHT + "import sys\nc = sys.modules['nanovllm.' + 'course.checks']\n"
        "c.play.__code__ = (lambda trace: ({}, None)).__code__",
        "it replaced nanovllm.course.checks.play",
    ),
    "patches the clock": (RIGHT + "import time\ntime.monotonic = lambda: 0", "it replaced time.monotonic"),
    "patches a builtin": (RIGHT + "import builtins\nbuiltins.sorted = lambda *a, **k: []", "builtins.sorted"),
    "patches operator": (RIGHT + "import operator\noperator.eq = lambda a, b: True", "it replaced operator.eq"),
    "patches JSON": (RIGHT + "import json.encoder as e\ne.JSONEncoder.encode = lambda s, o: '1'", "it replaced json"),
    "patches late": (inside("import json; json.dumps = lambda *a, **k: '1'"), "it replaced json.dumps"),
    # it takes what is not its own
    "reads the solution": (
        "import nanovllm, pathlib\nroot = pathlib.Path(nanovllm.__file__).parents[1]\n"
        "exec((root / 'solutions/part1/ex01_sequence_blocks.py').read_text())",
        "which is closed while it is graded",
    ),
    "imports the solution": ("from solutions.part1.ex01_sequence_blocks import *", "closed while it is graded"),
    "imports the solution and hides it": (
        "import importlib\ntry:\n    m = importlib.import_module('solutions.part1.ex01_sequence_blocks')\n"
        "except Exception: pass" + RIGHT,
        "which is closed while it is graded",
    ),
    "takes the engine's own": (
        "from nanovllm.scheduler import Sequence\nf = Sequence.__dict__\nnum_blocks = f['num_blocks'].fget\n"
        "last_block_num_tokens = f['last_block_num_tokens'].fget\ndef block(seq, index): return f['block'](seq, index)",
        "num_blocks",
    ),
    "loads the engine a second time": (
        "import importlib.util as u, nanovllm.scheduler.sequence as s\n"
        "spec = u.spec_from_file_location('again', s.__file__)\nm = u.module_from_spec(spec)\n"
        "spec.loader.exec_module(m)\nS = m.Sequence",
        "is closed while a submission is graded",
    ),
    "reads the engine's source": (
        "import nanovllm.scheduler.sequence as s\nexec(open(s.__file__).read())",
        "is closed while a submission is graded",
    ),
    "asks the grader for answers": (
        "from nanovllm.course.registry import EXERCISES\nanswers = EXERCISES['1.1'].groups[0].examples",
        "it looks into the grader (nanovllm.course.registry.EXERCISES)",
    ),
    "asks for them by a text": (
        "import importlib\nr = importlib.import_module('nanovllm.course.registry')",
        "it looks into the grader (nanovllm.course.registry)",
    ),
    # it does not do its work
    "has no function": ("x = 1", "needs a function named num_blocks"),
    "has another signature": (RIGHT.replace("block(seq, index)", "block(seq, i)"), "yours is block(seq, i)"),
    "is no function": (RIGHT + "block = 3", "not int 3"),
}  # fmt: skip

SLOW: dict[str, tuple[str, str]] = {
    "hangs when imported": ("while True: pass", "the file did not come to an end"),
    "hangs in a function": (inside("while True: pass"), "did not come to an end"),
    "sleeps in a function": (inside("import time; time.sleep(999)"), "did not come to an end"),
    "hangs and catches everything": (
        inside("while True:\n    try:\n        while True: pass\n    except BaseException: pass"),
        "ran longer than",
    ),
    "stops its own process": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "ran longer than"),
}

# No reason, but wrong answers: what they claim to be equal to is compared as plain values elsewhere.
CLAIMS = {
    "returns an int that equals everything": EVIL_INT
    + RIGHT.replace("return -(", "return Any(7) or -(").replace("return (seq", "return Any(9) or (seq")
    + "\ndef block(seq, index): return [Any(1)]\n",
    "returns a list that equals everything": EVIL_LIST + RIGHT + "\ndef block(seq, index): return All()\n",
}

# For exercise 3.1, whose checks run tensors. SOLUTION stands for the worked solution.
TORCH: dict[str, tuple[str, str]] = {
    "patches torch's equality": ("SOLUTION\ntorch.equal = torch.allclose = lambda *a, **k: True", "it replaced torch."),
    "gives tensors an equality": (
        "SOLUTION\ntorch.Tensor.__eq__ = lambda a, b: torch.tensor(True)",
        "it replaced torch.Tensor.__eq__",
    ),
    "patches the engine's tensors": (
        "SOLUTION\nimport nanovllm.qwen3.ops as o\no.TorchOps.silu_and_mul = lambda s, x: x",
        "it replaced nanovllm.qwen3.ops.TorchOps.silu_and_mul",
    ),
    "keeps the engine's own": (
        "from nanovllm.qwen3.ops import TorchOps\n_n, _a = TorchOps.rms_norm, TorchOps.add_rms_norm\n"
        "def rms_norm(ops, x, weight, eps): return _n(ops, x, weight, eps)\n"
        "def add_rms_norm(ops, x, residual, weight, eps): return _a(ops, x, residual, weight, eps)",
        "the engine's own rms_norm is not here",
    ),
    "takes 50 GB of tensors": ("import torch\nx = torch.zeros(50 << 28)", "could not be run"),
    "starts a rank": (
        "import multiprocessing as m\np = m.get_context('spawn').Process(target=print)\np.start()",
        "it started another process",
    ),
    "returns tensors that equal everything": (
        "SOLUTION\nclass Any(torch.Tensor):\n    def __eq__(self, other): return True\n"
        "    def tolist(self): return [[0.6, 1.6]]\n"
        "def rms_norm(ops, x, weight, eps): return torch.zeros_like(x).as_subclass(Any)\n"
        "def add_rms_norm(ops, x, residual, weight, eps): return x.as_subclass(Any), residual.as_subclass(Any)",
        "",
    ),
}
