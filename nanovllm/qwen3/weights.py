"""From a checkpoint on disk to parameters on the device: only the needed bytes, and every tensor accounted for."""

import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from tqdm.auto import tqdm

from nanovllm.errors import CheckpointError
from nanovllm.qwen3.hashing import MASK32, hash32

PROGRESS_BAR_BYTES = 2**30  # below this a bar would only flicker


def empty_parameter(*shape: int, dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """An unfilled weight; nothing is trained here."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)


class Shard(NamedTuple):
    """The part of a checkpoint tensor that a rank takes: `length` of the `total` entries along `dim`, from `first`."""

    dim: int
    first: int
    length: int
    total: int  # what the config calls for; a tensor of another size is refused, not cut


class WeightReader:
    """The tensors of one checkpoint folder, single file or sharded with an index.

    bytes_read: bytes taken from disk so far. A rank reads only its slice of each tensor.
    """

    def __init__(self, folder: Path, show_progress: bool = False) -> None:
        self.folder = folder
        self.bytes_read = 0
        self._file_of = self._index(folder)
        self._open_files: dict[str, Any] = {}
        self._filled: set[str] = set()
        total = sum((folder / f).stat().st_size for f in set(self._file_of.values()))
        self._bar = tqdm(
            total=total,
            unit="B",
            unit_scale=True,
            desc="loading weights",
            disable=not show_progress or total < PROGRESS_BAR_BYTES,
        )

    @staticmethod
    def _index(folder: Path) -> dict[str, str]:
        """Tensor name -> file name. Raises CheckpointError when files are missing or damaged."""
        index = folder / "model.safetensors.index.json"
        if index.exists():
            try:
                weight_map: dict[str, str] = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
            except (KeyError, TypeError, ValueError) as e:
                raise CheckpointError(f"{index} is damaged ({e!r}): download the checkpoint again") from None
            missing = sorted(f for f in set(weight_map.values()) if not (folder / f).exists())
            if missing:
                total = len(set(weight_map.values()))
                raise CheckpointError(
                    f"{len(missing)} of {total} weight files are missing in {folder}, {missing[0]} first: "
                    "download the checkpoint again"
                )
            return weight_map
        files = sorted(p.name for p in folder.glob("*.safetensors"))
        if not files:
            raise CheckpointError(f"{folder} has no *.safetensors weights: only that format is read")
        names: dict[str, str] = {}
        for file in files:
            names.update(dict.fromkeys(_open(folder / file).keys(), file))
        return names

    def fill(
        self,
        parameter: Tensor,
        name: str,
        into: tuple[int, int] | None = None,
        shard: Shard | None = None,
    ) -> None:
        """Copy tensor `name` into `parameter`.

        into: (first row, rows) of the parameter to fill; None fills all of it.
        shard: the part of the tensor to read; None reads all of it.
        """
        target = parameter if into is None else parameter[into[0] : into[0] + into[1]]
        file = self._file_of.get(name)
        if file is None:
            raise CheckpointError(
                f"the checkpoint in {self.folder} lacks the tensor {name!r} that its config calls for"
            )
        if file not in self._open_files:
            self._open_files[file] = _open(self.folder / file)
        self._filled.add(name)
        try:
            tensor = self._open_files[file].get_slice(name)
            shape = list(tensor.get_shape())
            _check_shape(name, shape, target, shard)
            if 0 in target.shape:
                return
            if shard is None:
                values = tensor[:]
            else:
                part = slice(shard.first, shard.first + shard.length)
                values = tensor[part] if shard.dim == 0 else tensor[:, part]
        except (SafetensorError, OSError) as e:
            raise CheckpointError(f"cannot read {name!r} from {file} ({e}): download the checkpoint again") from None
        target.copy_(values)
        self.bytes_read += values.nbytes
        self._bar.update(values.nbytes)

    def finish(self, ignored: frozenset[str] = frozenset()) -> None:
        """Refuse a checkpoint with tensors that no parameter took, except `ignored` ones; close the files."""
        self._bar.close()
        self._open_files.clear()
        left = sorted(self._file_of.keys() - self._filled - ignored)
        if left:
            raise CheckpointError(
                f"the checkpoint in {self.folder} holds {len(left)} tensors that its config does not call for, "
                f"{left[0]!r} first: config.json and weights do not belong together"
            )


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as e:
        raise CheckpointError(f"{path} is damaged or truncated ({e}): download the checkpoint again") from None


def _check_shape(name: str, shape: list[int], target: Tensor, shard: Shard | None) -> None:
    """Refuse a tensor whose size does not match the config, before it is read."""
    wanted = list(target.shape)
    if shard is not None:
        wanted[shard.dim] = shard.total
    if shape != wanted:
        raise CheckpointError(
            f"tensor {name!r} has shape {shape} on disk and config.json calls for {wanted}: config.json and weights do "
            "not belong together"
        )


class DummyWeights:
    """Stands in for a WeightReader when only speed matters: ones for norms, small pseudo-random numbers elsewhere.

    Each number is a function of seed, tensor name, row and column alone, so every sharding builds the same model and
    no random state of torch is touched. Uniform with a standard deviation of 0.02.
    """

    bytes_read = 0

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def fill(
        self,
        parameter: Tensor,
        name: str,
        into: tuple[int, int] | None = None,
        shard: Shard | None = None,
    ) -> None:
        """See WeightReader.fill."""
        target = parameter if into is None else parameter[into[0] : into[0] + into[1]]
        if target.dim() == 1:
            target.fill_(1.0 if "norm" in name else 0.0)
            return
        dim, first = (0, 0) if shard is None else (shard.dim, shard.first)
        key = zlib.crc32(f"{self._seed} {name}".encode())
        columns = torch.arange(target.shape[1], device=target.device) + (first if dim == 1 else 0)
        chunk = max(1, 2**22 // max(1, target.shape[1]))  # rows at a time, to bound the int64 temporaries
        for start in range(0, target.shape[0], chunk):
            part = target[start : start + chunk]
            rows = torch.arange(part.shape[0], device=target.device) + start + (first if dim == 0 else 0)
            x = (rows.unsqueeze(1) * 0x9E3779B1 + columns * 0x85EBCA77 + key) & MASK32
            part.copy_((hash32(x).float() / 2**32 - 0.5) * (0.02 * 12**0.5))

    def finish(self, ignored: frozenset[str] = frozenset()) -> None:
        """Nothing to close."""


Weights = WeightReader | DummyWeights
