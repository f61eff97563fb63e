"""Where a rank's layers live and how they compute: what every layer's constructor needs besides its own shape."""

from dataclasses import dataclass, field

import torch

from nanovllm.paged_kv.attention import AttentionBackend
from nanovllm.paged_kv.backends.torch_backend import TorchBackend
from nanovllm.qwen3.ops import TorchOps
from nanovllm.qwen3.parallel import TensorParallelGroup


@dataclass(frozen=True, slots=True)
class Placement:
    """One rank's share of a model: dtype and device of its weights, its group, its operations, its attention backend.

    Handed down explicitly, so that torch's default dtype and device stay as they are and two engines can differ.
    """

    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    group: TensorParallelGroup = field(default_factory=TensorParallelGroup)
    ops: TorchOps = field(default_factory=TorchOps)
    backend: AttentionBackend = field(default_factory=TorchBackend)
