"""What figures depend on: machine, versions, checkpoint, and how each engine was set up."""

import hashlib
import os
import platform
import re
import subprocess
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanovllm import __version__

if TYPE_CHECKING:
    from nanovllm import LLM

PACKAGES = ("torch", "triton", "flash-attn", "transformers", "tokenizers", "safetensors", "numpy")
WEIGHTS = (".safetensors",)
ENDS_BYTES = 2**20  # of a weight file's head and tail that its hash covers
SMI_FIELDS = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "power.limit",
              "persistence_mode", "temperature.gpu")  # fmt: skip


@dataclass(slots=True)
class ModelRecord:
    """A checkpoint. revision: of the hub, None for another folder.

    files_hash: sha256 over name, size and content of each JSON file, and name, size, first and last MiB of each weight
    file. tokenizer_hash: sha256 of the tokenizer's files alone, None if there is none.
    """

    name: str
    revision: str | None
    files_hash: str
    tokenizer_hash: str | None
    shape: dict[str, Any]


@dataclass(slots=True)
class EngineRecord:
    """One engine as it was started. graphs: whether decode was recorded, with the reason in words.

    limits: every field of EngineConfig, or what a peer was given. kv: the pool. start_seconds: until it was ready.
    clocks: what nvidia-smi said right after its last run, while the GPU was still warm; None without a GPU.
    """

    name: str
    device: str
    dtype: str
    attention_backend: str
    tensor_parallel_size: int
    graphs: bool
    graphs_reason: str
    overlap: bool
    kv: dict[str, Any]
    limits: dict[str, Any]
    start_seconds: float
    versions: dict[str, str] = field(default_factory=dict)
    clocks: list[dict[str, str]] | None = None


@dataclass(slots=True)
class Environment:
    """The machine and the software. gpus: one record a GPU. clocks: what nvidia-smi says, None without it.

    load_average: of the last minute when the run began: other work on the machine shows here.
    """

    date: str
    system: str
    cpu: str
    cpu_cores: int
    torch_threads: int
    memory_gib: float | None
    load_average: float | None
    gpu_count: int
    gpus: list[dict[str, Any]]
    clocks: list[dict[str, str]] | None
    cuda: str | None
    nccl: str | None
    versions: dict[str, str | None]
    variables: dict[str, str]
    model: ModelRecord


def collect(model: str, folder: Path) -> Environment:
    """Look everything up now. `model` is the name that the user gave, `folder` where its files are."""
    import torch

    from nanovllm.cli.machine import gpus, host

    machine, (found, _) = host(), gpus()
    cuda = torch.cuda.is_available()
    has_nccl = cuda and torch.distributed.is_available() and torch.distributed.is_nccl_available()
    return Environment(
        date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        system=f"{platform.system()} {platform.machine()}",
        cpu=cpu_name(),
        cpu_cores=int(machine["cpu_cores"] or 0),
        torch_threads=torch.get_num_threads(),
        memory_gib=machine["memory_gib"],
        load_average=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        gpu_count=len(found),
        gpus=found,
        clocks=clocks(),
        cuda=torch.version.cuda,
        nccl=".".join(map(str, torch.cuda.nccl.version())) if has_nccl else None,
        versions=versions(),
        variables={k: v for k, v in sorted(os.environ.items()) if re.match(r"(OMP|MKL)_NUM|NCCL_[A-Z_]+$", k)},
        model=describe_model(model, folder),
    )


def versions() -> dict[str, str | None]:
    """Versions of Python, this package and what it runs on; None for what is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version(), "nanovllm": __version__}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def cpu_name() -> str:
    """The processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def clocks() -> list[dict[str, str]] | None:
    """Clocks, driver, power limit of each GPU from nvidia-smi; None where it is missing or fails."""
    command = ["nvidia-smi", f"--query-gpu={','.join(SMI_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return [dict(zip(SMI_FIELDS, row, strict=False)) for row in rows]


def describe_model(name: str, folder: Path) -> ModelRecord:
    """Revision, hashes and shape of the checkpoint in `folder`."""
    from nanovllm.qwen3.config import Qwen3Config

    files = sorted(f for f in folder.iterdir() if f.is_file() and f.suffix in (".json", ".txt", ".jinja", *WEIGHTS))
    tokenizer = [f for f in files if f.name.startswith(("tokenizer", "vocab", "merges", "chat_template"))]
    revision = folder.name if folder.parent.name == "snapshots" else None
    given = Path(name).name if Path(name).is_dir() else name  # a folder's place says more about the machine
    shape = asdict(Qwen3Config.from_folder(folder))
    plain = {k: v for k, v in shape.items() if isinstance(v, int | float | str | bool)}
    return ModelRecord(given, revision, files_hash(files), files_hash(tokenizer) if tokenizer else None, plain)


def files_hash(files: list[Path]) -> str:
    """sha256 over names, sizes and contents; of weights only the two ends count, so that large ones take no minutes."""
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as f:
            if path.suffix in WEIGHTS and size > 2 * ENDS_BYTES:
                digest.update(f.read(ENDS_BYTES))
                f.seek(-ENDS_BYTES, os.SEEK_END)
            digest.update(f.read())
    return digest.hexdigest()


def describe_engine(name: str, llm: "LLM", start_seconds: float) -> EngineRecord:
    """How a started engine is set up."""
    runner, spec = llm.model_runner, llm.model_runner.spec
    graphs = runner.graphs is not None
    limits = {k: v for k, v in asdict(llm.config).items() if k != "model"}
    return EngineRecord(
        name=name,
        device=llm.plan.device_type,
        dtype=str(llm.plan.dtype).removeprefix("torch."),
        attention_backend=llm.plan.backend.name,
        tensor_parallel_size=llm.ranks.size,
        graphs=graphs,
        graphs_reason=_graphs_reason(llm, graphs),
        overlap=llm.can_overlap,
        kv={
            "block_size": spec.block_size,
            "num_blocks": llm.ranks.num_blocks,
            "bytes_per_block_and_rank": spec.bytes_per_block,
            "prefix_cache": "on, emptied before each repeat",
        },
        limits=limits,
        start_seconds=start_seconds,
    )


def _graphs_reason(llm: "LLM", graphs: bool) -> str:
    if graphs:
        return "decode steps are replayed CUDA graphs"
    if llm.plan.device_type != "cuda":
        return "no CUDA graphs on a CPU"
    return "enforce_eager" if llm.config.enforce_eager else "the backend cannot be recorded, or recording failed"
