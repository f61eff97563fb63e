"""A 32-bit integer hash on tensors: the source of sampling draws and of dummy weights, with no generator state."""

from torch import Tensor

MASK32 = 0xFFFFFFFF


def hash32(x: Tensor) -> Tensor:
    """Scramble int64 tensors holding 0 .. 2^32-1 (multiply-xorshift with Wellons' lowbias32 constants)."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK32
    return x ^ (x >> 16)
