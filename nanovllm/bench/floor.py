"""The floor of the hardware: the seconds that the bytes and operations of a workload take at this machine's rates.

    decode step   max(bytes / byte rate, operations / operation rate)
                  bytes = weights once + K/V of every running request's context
                  operations = 2 x weights x requests + 4 x query heads x head_dim x layers x context tokens
    prefill       max(weights / byte rate, operations / operation rate)
                  operations = 2 x (weights without the output layer) x prompt tokens
                  + 2 x heads x head_dim x layers x (sum of squared prompt lengths; causal)
                  + output layer, a row a request

The input embedding is looked up, not multiplied: it counts neither bytes nor operations unless it is also the output
layer. Both rates are measured on the device and in the dtype of the run.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from nanovllm.qwen3.config import Qwen3Config

REPEATS = 20
COPY_BYTES = 2**32  # on a GPU: more than any cache, and long beside the launch; at most a quarter of what is free
MATRIX = {"cuda": 8192, "cpu": 1024}


@dataclass(frozen=True, slots=True)
class Rates:
    """What the device was measured to do: bytes/s read or copied, floating point operations/s of a matrix product."""

    bytes_s: float
    operations_s: float

    def plain(self) -> dict[str, Any]:
        """For the settings of a result."""
        how = "best of 20; bytes: a large copy or a matrix-vector product, the faster; operations: a matrix product"
        return asdict(self) | {"how": how}


def measure_rates(device_type: str, dtype: torch.dtype, weight_bytes: int) -> Rates:
    """A second or less. On a CPU the byte rate is that of a matrix as large as the weights, cached or not."""
    device, size = torch.device(device_type), MATRIX[device_type]
    item = torch.finfo(dtype).bits // 8
    large = min(COPY_BYTES, torch.cuda.mem_get_info()[0] // 4) if device_type == "cuda" else max(weight_bytes, 2**20)
    rows = max(1, large // item // size)
    made: dict[str, Any] = {"device": device, "dtype": dtype}
    # Random numbers: constant ones take less power, and a GPU that is limited by power would look faster.
    matrix, vector = torch.randn(rows, size, **made), torch.randn(size, **made)
    target = torch.empty_like(matrix)
    copied = 2 * matrix.nbytes / _seconds(lambda: target.copy_(matrix), device)
    read = matrix.nbytes / _seconds(lambda: torch.mv(matrix, vector), device)
    square = matrix[:size].clone() if rows >= size else torch.randn(size, size, **made)
    operations = 2 * size**3 / _seconds(lambda: square @ square, device)
    return Rates(max(copied, read), operations)


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Shortest duration of a call after a warm-up: a floor must not depend on what else the machine does."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with torch.inference_mode():
        call()
        found = []
        for _ in range(REPEATS):
            wait()
            began = time.perf_counter()
            call()
            wait()
            found.append(time.perf_counter() - began)
    return min(found)


@dataclass(frozen=True, slots=True)
class Floor:
    """Of one model on one device. item: bytes of a weight and of a K or V number."""

    config: Qwen3Config
    item: int
    rates: Rates

    @property
    def kv_bytes(self) -> int:
        """K and V of one token, all layers."""
        c = self.config
        return 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * self.item

    @property
    def weights(self) -> int:
        """Numbers that a decode step reads: all weights without an embedding that is only looked up."""
        c = self.config
        return c.num_parameters - (0 if c.tie_word_embeddings else c.vocab_size * c.hidden_size)

    def decode_seconds(self, contexts: Sequence[int]) -> float:
        """One decode step of requests with these context lengths."""
        c = self.config
        tokens = sum(contexts)
        moved = self.weights * self.item + tokens * self.kv_bytes
        operations = 2 * self.weights * len(contexts)
        operations += 4 * c.num_attention_heads * c.head_dim * c.num_hidden_layers * tokens
        return max(moved / self.rates.bytes_s, operations / self.rates.operations_s)

    def prefill_seconds(self, prompts: Sequence[int]) -> float:
        """Computing prompts of these lengths, as if in one step."""
        c, head = self.config, self.config.vocab_size * self.config.hidden_size
        operations = 2 * (self.weights - head) * sum(prompts) + 2 * head * len(prompts)
        operations += 2 * c.num_attention_heads * c.head_dim * c.num_hidden_layers * sum(n * n for n in prompts)
        return max(self.weights * self.item / self.rates.bytes_s, operations / self.rates.operations_s)

    def workload(self, prompts: Sequence[int], outputs: Sequence[int]) -> dict[str, float]:
        """The ceilings in tok/s of requests that are all there at once, named like the figures of a throughput point.

        The first completion token comes with the prefill, so a request takes outputs - 1 decode steps.
        """
        prefill = self.prefill_seconds(prompts)
        decode = 0.0
        for step in range(1, max(outputs)):
            decode += self.decode_seconds([p + step for p, n in zip(prompts, outputs, strict=True) if n > step])
        steps = sum(outputs) - len(outputs)
        found = {
            "prefill_tok_s": sum(prompts) / prefill,
            "output_tok_s": sum(outputs) / (prefill + decode),
            "total_tok_s": (sum(prompts) + sum(outputs)) / (prefill + decode),
        }
        return found | ({"decode_tok_s": steps / decode} if decode else {})


def floor_of(config: Qwen3Config, device_type: str, dtype_name: str) -> Floor:
    """Measure the rates and make the floor; `dtype_name` as an engine's record has it."""
    dtype: torch.dtype = getattr(torch, dtype_name)
    item = torch.finfo(dtype).bits // 8
    return Floor(config, item, measure_rates(device_type, dtype, config.num_parameters * item))
