"""What the kernels' launchers ask of the device, and how one kernel may start before the last one ends."""

import functools
from typing import Any

import torch
import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older Triton
    gdc_launch_dependents = gdc_wait = None

CAN_START_EARLY = gdc_wait is not None
VERSION = tuple(int(number) for number in triton.__version__.split(".")[:2])


@triton.jit
def let_next_start(EARLY: tl.constexpr):
    """Let the next kernel start: once all programs of this one have said so, or ended."""
    if EARLY:
        gdc_launch_dependents()


@triton.jit
def wait_for_inputs(EARLY: tl.constexpr):
    """Let the next kernel start, then wait until the last one has written everything.

    What stands before this call in a kernel may read only what no kernel of the step writes (weights; keys and values
    of earlier steps; positions, slots, block tables, context lengths and their order, which are copied in before the
    step's first kernel), and may write nothing. Small kernels that follow each other in a CUDA graph win the time of a
    launch and of their first loads (CUDA's programmatic dependent launch, compute capability 9.0).
    """
    let_next_start(EARLY)
    if EARLY:
        gdc_wait()


@functools.cache
def _properties(index: int) -> Any:
    return torch.cuda.get_device_properties(index)


def _properties_of(device: torch.device) -> Any:
    return _properties(torch.cuda.current_device() if device.index is None else device.index)


def multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; 1 on a CPU, where the interpreter runs programs one by one."""
    return 1 if device.type != "cuda" else int(_properties_of(device).multi_processor_count)


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that one program can have; a Hopper GPU's where the device does not say."""
    default = 227 * 1024
    return (
        default if device.type != "cuda" else getattr(_properties_of(device), "shared_memory_per_block_optin", default)
    )


def starts_early(device: torch.device) -> bool:
    """True where the GPU and Triton know how to start a kernel before the last one has ended."""
    return CAN_START_EARLY and device.type == "cuda" and bool(_properties_of(device).major >= 9)


def early(device: torch.device) -> dict[str, Any]:
    """Launch arguments for kernels that call `wait_for_inputs`: an early start where there is one."""
    if starts_early(device):
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}


def dot_precision(dtype: torch.dtype) -> str:
    """How tl.dot multiplies: fp32 exactly (Triton's own default, tf32, keeps 10 bits of the mantissa)."""
    return "ieee" if dtype == torch.float32 else "tf32"
