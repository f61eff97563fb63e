"""The attention backends by name, and which one this machine gets and why."""

import importlib.util
from dataclasses import dataclass, replace

import torch

from nanovllm.errors import BackendError
from nanovllm.paged_kv.attention import AttentionBackend
from nanovllm.paged_kv.backends.torch_backend import TorchBackend


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend's name, whether it can run with these settings, and the reason in words."""

    name: str
    usable: bool
    reason: str


def _flash_attn(device: torch.device, dtype: torch.dtype, block_size: int) -> BackendChoice:
    name = "flash_attn"
    if device.type != "cuda":
        return BackendChoice(name, False, "needs an NVIDIA GPU")
    if importlib.util.find_spec("flash_attn") is None:
        return BackendChoice(name, False, "not installed: pip install --no-build-isolation flash-attn")
    if torch.cuda.get_device_capability(device) < (8, 0):
        return BackendChoice(name, False, "needs compute capability 8.0 or newer")
    if dtype not in (torch.float16, torch.bfloat16):
        return BackendChoice(name, False, f"needs float16 or bfloat16, not {str(dtype).removeprefix('torch.')}")
    if block_size % 256:
        return BackendChoice(name, False, f"needs kvcache_block_size to be a multiple of 256, not {block_size}")
    return BackendChoice(name, True, "installed, and the GPU, dtype and block size suit it")


def _triton(device: torch.device) -> BackendChoice:
    if device.type != "cuda":
        return BackendChoice(
            "triton", False, "needs a GPU (on a CPU its kernels run in tests, through the interpreter)"
        )
    if importlib.util.find_spec("triton") is None:
        return BackendChoice("triton", False, "not installed: pip install triton")
    if torch.cuda.get_device_capability(device) < (7, 5):
        return BackendChoice("triton", False, "needs compute capability 7.5 or newer")
    return BackendChoice("triton", True, "own kernels, any block size")


def _own_prefill_is_faster(device: torch.device, dtype: torch.dtype, block_size: int) -> bool:
    """True on a Hopper GPU, where our prefill kernel was the faster one (docs/gpu.md); ours decodes for both."""
    from nanovllm.paged_kv.kernels.prefill import Tiles, copies_tiles

    is_hopper = torch.cuda.get_device_capability(device)[0] == 9
    return is_hopper and copies_tiles(device, dtype) and block_size % Tiles().keys == 0


def backend_choices(device: torch.device, dtype: torch.dtype, block_size: int) -> list[BackendChoice]:
    """Every backend, best first, with its reason."""
    flash_attn, own = _flash_attn(device, dtype, block_size), _triton(device)
    reference = BackendChoice("torch", True, "the reference, on any device")
    if own.usable and _own_prefill_is_faster(device, dtype, block_size):
        reason = "own kernels, any block size; on a Hopper GPU mostly faster than flash-attn"
        return [replace(own, reason=reason), flash_attn, reference]
    return [flash_attn, own, reference]


def choose_backend(requested: str, device: torch.device, dtype: torch.dtype, block_size: int) -> BackendChoice:
    """The requested backend, or the first usable one for "auto". Raises BackendError naming the alternatives."""
    choices = backend_choices(device, dtype, block_size)
    if requested == "auto":
        return next(c for c in choices if c.usable)
    chosen = next(c for c in choices if c.name == requested)
    if not chosen.usable:
        others = ", ".join(c.name for c in choices if c.usable)
        raise BackendError(
            f"attention backend {requested!r} cannot run here: it {chosen.reason}. Usable here: {others}"
        )
    return chosen


def make_backend(name: str) -> AttentionBackend:
    """Build a backend by name; a GPU one is imported only now."""
    if name == "flash_attn":
        from nanovllm.paged_kv.backends.flash_attn_backend import FlashAttnBackend

        return FlashAttnBackend()
    if name == "triton":
        from nanovllm.paged_kv.backends.triton_backend import TritonBackend

        return TritonBackend()
    return TorchBackend()
