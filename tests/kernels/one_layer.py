"""What one layer of a model needs of a GPU that is not there.

`python -m tests.kernels.one_layer CAPABILITY BYTES MODEL`, without TRITON_INTERPRET.

Steps of several sizes run through the engine's own runner, with the fused operations and the Triton backend, on CPU
tensors. Each kernel that they would launch on a GPU of this capability, whose programs can have BYTES of shared
memory, is compiled for it and not run. MODEL: tiny (qwen3-tiny) or published (the shape of Qwen3-0.6B). Prints a JSON
list of [kernel, rows of the step, bytes of shared memory].
"""

import json
import sys
import warnings
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

from nanovllm.paged_kv.kernels import launch

launch.shared_memory = lambda device: int(sys.argv[2])  # before the kernels' modules take it from there

from nanovllm.course.lessons_part2 import qwen3_0_6b  # noqa: E402
from nanovllm.paged_kv.backends.triton_backend import TritonBackend  # noqa: E402
from nanovllm.paged_kv.batch import SamplingInputs  # noqa: E402
from nanovllm.paged_kv.cache import KVCacheSpec  # noqa: E402
from nanovllm.paged_kv.model_runner import ModelRunner  # noqa: E402
from nanovllm.qwen3.config import Qwen3Config  # noqa: E402
from nanovllm.qwen3.kernels import fused_decode  # noqa: E402
from nanovllm.qwen3.model import Qwen3ForCausalLM  # noqa: E402
from nanovllm.qwen3.ops import TritonOps  # noqa: E402
from nanovllm.qwen3.placement import Placement  # noqa: E402
from nanovllm.qwen3.sampler import Sampler  # noqa: E402
from nanovllm.qwen3.weights import DummyWeights  # noqa: E402
from nanovllm.scheduler import ScheduledSlice  # noqa: E402
from tests.kernels.compile_all import catch_launches  # noqa: E402

DECODES = (1, 2, 4, 9, 16, 17, 64, 256)  # requests of a decode step
BLOCK_SIZE = 256


def note_compilations(rows: list[int]) -> list[list[object]]:
    """[kernel, `rows`[0], bytes of shared memory] of everything that Triton compiles from now on."""
    noted: list[list[object]] = []
    compile_for = triton.compile

    def compile_and_note(source: Any, target: Any, options: Any) -> Any:
        compiled = compile_for(source, target=target, options=options)
        noted.append([source.fn.__name__, rows[0], compiled.metadata.shared])
        return compiled

    triton.compile = compile_and_note
    return noted


def runner_of(model: str, dtype: torch.dtype) -> ModelRunner:
    """One layer of the model with random weights, and a cache."""
    folder = Path(str(files("nanovllm"))) / "assets" / "qwen3-tiny"
    config = qwen3_0_6b() if model == "published" else Qwen3Config.from_folder(folder)
    config = replace(config, num_hidden_layers=1, vocab_size=2048)
    made = Qwen3ForCausalLM(config, 512, Placement(dtype, ops=TritonOps(), backend=TritonBackend()))
    made.load(DummyWeights(0))
    shape = {"num_kv_heads": config.num_key_value_heads, "head_dim": config.head_dim, "block_size": BLOCK_SIZE}
    runner = ModelRunner(made, Sampler(True), KVCacheSpec(1, dtype=dtype, **shape), torch.device("cpu"))
    runner.allocate(2)
    return runner


def run_step(runner: ModelRunner, num_seqs: int, start: int, count: int) -> None:
    """`count` tokens of each of `num_seqs` requests, from position `start` on, and the next of each drawn at random."""
    slices = [ScheduledSlice(i, [3] * count, start, start + count, [i % 2]) for i in range(num_seqs)]
    zeros, ones = np.zeros(num_seqs, np.int64), np.ones(num_seqs, np.float32)
    runner.run(slices, count > 1, SamplingInputs(ones, zeros, ones, seed=zeros, position=zeros))


def main() -> None:
    capability, model = int(sys.argv[1]), sys.argv[3]
    if capability < 90:  # kernels do not start early there
        fused_decode.FusedDecode.suits = staticmethod(lambda qkv, attention, context: False)
    rows = [0]
    runner = runner_of(model, torch.bfloat16 if capability >= 80 else torch.float16)
    noted = note_compilations(rows)
    catch_launches(capability)
    for num_seqs, start, count in ((2, 0, 5), (2, 5, 3), *((n, 8, 1) for n in DECODES)):
        rows[0] = num_seqs * count
        run_step(runner, num_seqs, start, count)
    print(json.dumps(noted))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
