"""What this machine can run and why, as plain values. Nothing here is guessed: each entry was looked up just now."""

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nanovllm import __version__

GIB = 2**30
NOTEBOOKS = 'pip install "nanovllm[notebooks]"'
CUDA_BUILD = "install a CUDA build of PyTorch: pytorch.org/get-started"
# distribution -> (what it is for, the command that adds it)
PACKAGES = {
    "torch": ("tensors", "pip install torch"),
    "transformers": ("tokenizer, chat templates", "pip install transformers"),
    "tokenizers": ("tokenizer", "pip install tokenizers"),
    "safetensors": ("weights", "pip install safetensors"),
    "triton": ("fast kernels on a GPU", "pip install triton"),
    "flash-attn": ("attention on a GPU, optional", "pip install --no-build-isolation flash-attn"),
    "jupyterlab": ("notebooks, optional", NOTEBOOKS),
    "ipywidgets": ("views in notebooks, optional", NOTEBOOKS),
    "graphviz": ("diagrams in notebooks, optional", NOTEBOOKS),
    "matplotlib": ("plots of nanovllm bench, optional", NOTEBOOKS),
    "fastapi": ("nanovllm serve, optional", 'pip install "nanovllm[serve]"'),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that is here or not: its version, what it is for, and the command that adds it where it is missing."""

    name: str
    version: str | None
    purpose: str
    add: str | None


@dataclass(frozen=True, slots=True)
class Backend:
    """An attention backend. usable: on the device that is chosen; chosen: what attention_backend="auto" gives."""

    name: str
    usable: bool
    chosen: bool
    reason: str
    add: str | None


def pieces(has_gpu: bool) -> list[Piece]:
    """Python packages and the `dot` program. Where there is no GPU, no command is given for what only a GPU uses."""
    found = [Piece("nanovllm", __version__, "this engine", None), Piece("python", platform.python_version(), "", None)]
    for name, (purpose, command) in PACKAGES.items():
        try:
            found.append(Piece(name, version(name), purpose, None))
        except PackageNotFoundError:
            is_of_use = sys.platform == "linux" if name == "triton" else has_gpu or name != "flash-attn"
            found.append(Piece(name, None, purpose, command if is_of_use else None))
    dot = shutil.which("dot") is not None
    found.append(Piece("dot", "present" if dot else None, "draws the diagrams, optional", dot_command(dot)))
    return found


def dot_command(is_present: bool) -> str | None:
    """How this system installs Graphviz."""
    if is_present:
        return None
    by_system = {"darwin": "brew install graphviz", "win32": "winget install graphviz"}
    return by_system.get(sys.platform, "apt install graphviz")


def host() -> dict[str, Any]:
    """CPU cores that this process may use, and memory in GiB."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = None
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1)
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu_cores": usable,
        "memory_gib": memory,
        "bfloat16_instructions": has_bfloat16_instructions(),
    }


def has_bfloat16_instructions() -> bool | None:
    """True when the CPU multiplies bfloat16 numbers itself; None when torch cannot say."""
    if importlib.util.find_spec("torch") is None:
        return None
    import torch

    capabilities = getattr(torch.cpu, "get_capabilities", None)  # not in older versions
    if capabilities is None:
        return None
    return any(present is True and name.endswith("bf16") for name, present in capabilities().items())


def gpus() -> tuple[list[dict[str, Any]], str]:
    """(each GPU that torch sees, why there is none or "")."""
    import torch

    if torch.cuda.is_available():
        found = []
        for index in range(torch.cuda.device_count()):
            p = torch.cuda.get_device_properties(index)
            memory = round(p.total_memory / GIB, 1)
            found.append({"name": p.name, "memory_gib": memory, "compute_capability": f"{p.major}.{p.minor}"})
        return found, ""
    if torch.version.cuda is None:
        has_driver = shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()
        why = "this PyTorch is a build without CUDA"
        return [], f"{why}, and there is an NVIDIA driver: {CUDA_BUILD}" if has_driver else why
    return [], "PyTorch has CUDA and sees no NVIDIA GPU: check the driver with nvidia-smi"


def choice() -> dict[str, Any]:
    """Device, dtype and backend that "auto" gives the shipped checkpoint, and every backend with its reason."""
    from nanovllm.assets import checkpoint_path
    from nanovllm.config import EngineConfig
    from nanovllm.engine.startup import make_plan
    from nanovllm.paged_kv.backends import backend_choices, choose_backend

    config = EngineConfig("qwen3-tiny")
    plan = make_plan(config, checkpoint_path(config.model))
    import torch

    device, block = torch.device(plan.device_type), config.kvcache_block_size
    chosen = choose_backend("auto", device, plan.dtype, block).name
    listed = [
        _backend(c.name, c.usable, c.name == chosen, c.reason) for c in backend_choices(device, plan.dtype, block)
    ]
    dtype = str(plan.dtype).removeprefix("torch.")
    return {"device": device.type, "dtype": dtype, "block_size": block, "backend": chosen, "backends": listed}


def _backend(name: str, usable: bool, chosen: bool, reason: str) -> Backend:
    """Split a reason of the form "not installed: command" into the two."""
    why, _, command = reason.partition(": ")
    return Backend(name, usable, chosen, why, command) if command else Backend(name, usable, chosen, reason, None)


def checkpoint() -> dict[str, Any]:
    """Whether the shipped checkpoint is complete, and its size."""
    from nanovllm.assets import checkpoint_path

    name = "qwen3-tiny"
    try:
        folder = checkpoint_path(name)
    except ValueError as e:
        return {"name": name, "present": False, "why": str(e), "add": "reinstall nanovllm"}
    missing = [f for f in ("config.json", "model.safetensors", "tokenizer.json") if not (folder / f).is_file()]
    size = sum(f.stat().st_size for f in folder.iterdir() if f.is_file())
    why = f"{', '.join(missing)} missing" if missing else ""
    return {"name": name, "present": not missing, "why": why, "add": "reinstall nanovllm" if missing else None,
            "megabytes": round(size / 1e6, 1)}  # fmt: skip


def describe() -> dict[str, Any]:
    """Everything, as plain values for JSON."""
    shipped = checkpoint()
    found, why_none = gpus() if importlib.util.find_spec("torch") else ([], "torch is not installed")
    chosen = choice() if shipped["present"] else {"backends": []}
    return {
        "pieces": [asdict(p) for p in pieces(has_gpu=bool(found))],
        "host": host(),
        "gpus": found,
        "why_no_gpu": why_none or None,
        "checkpoint": shipped,
        **chosen,
        "backends": [asdict(b) for b in chosen["backends"]],
    }
