"""Every kernel compiles to machine code for old and new GPUs, on a machine without one.

The interpreter, under which the other tests run on a CPU, accepts programs that the compiler refuses.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

HERE = Path(__file__).parent
PACKAGE = HERE.parent.parent / "nanovllm"


def kernels_in_the_package() -> set[str]:
    """Names of the jit functions that are launched (those called by others only are compiled with them)."""
    sources = [p.read_text(encoding="utf-8") for p in PACKAGE.glob("*/kernels/*.py")]
    return {name for source in sources for name in re.findall(r"def (\w+_kernel)\(", source)}


@pytest.mark.parametrize(("capability", "dtype"), [("75", "float16"), ("90", "bfloat16")])
def test_every_kernel_compiles(capability: str, dtype: str, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(HERE / "compile_all.py"), capability, dtype]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert set(done.stdout.split()) == kernels_in_the_package()
