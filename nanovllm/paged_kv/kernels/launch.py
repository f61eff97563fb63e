"""What the kernels' launchers ask of the device."""

import functools

import torch


@functools.cache
def _multiprocessors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of a GPU; 1 on a CPU, where the interpreter runs programs one by one."""
    if device.type != "cuda":
        return 1
    return _multiprocessors(torch.cuda.current_device() if device.index is None else device.index)


def dot_precision(dtype: torch.dtype) -> str:
    """How tl.dot multiplies: fp32 exactly (Triton's own default, tf32, keeps 10 bits of the mantissa)."""
    return "ieee" if dtype == torch.float32 else "tf32"
