"""What every test run needs before the first import of torch or triton.

Sets the process up (no hub, Triton's interpreter where there is no GPU, threads shared fairly between workers) and
skips tests marked `gpu` on machines with too few devices. Fixtures that only one area uses live beside its tests.
"""

import os
import signal
import threading

# A shell starts background jobs with SIGINT ignored, and what ignores it hands that down: tests of Ctrl-C need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Read by libraries when they are imported, so they are set before any of them is.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // _workers)))

import pytest
import torch

try:
    from hypothesis import settings
except ImportError:  # a bare GPU machine: the tests that do not need it still run
    settings = None

GPU_COUNT = torch.cuda.device_count() if torch.cuda.is_available() else 0

# A Triton kernel can run on a CPU only if this stands before `import triton`, anywhere in the process.
if GPU_COUNT == 0:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The same examples in every run, so that a red test is red again; HYPOTHESIS_PROFILE=explore looks for new ones.
if settings is not None:
    settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=True)
    settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `gpu(count=n)` where fewer than n CUDA devices are visible."""
    marker = item.get_closest_marker("gpu")
    if marker is None:
        return
    needed = marker.kwargs.get("count", 1)
    if needed > GPU_COUNT:
        pytest.skip(f"needs {needed} CUDA device(s), {GPU_COUNT} visible")
