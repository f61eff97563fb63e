"""Hand-made results: every figure can be checked in the head."""

from pathlib import Path

from nanovllm.bench.environment import EngineRecord, Environment, collect
from nanovllm.bench.experiments import throughput
from nanovllm.bench.formulas import chosen
from nanovllm.bench.record import GraphsResult, Repeat, RequestRow, StepRow, ThroughputResult
from nanovllm.bench.stats import Spread
from nanovllm.engine.checkpoint import resolve_checkpoint


def environment() -> Environment:
    return collect("qwen3-tiny", resolve_checkpoint("qwen3-tiny"))


def engine(name: str = "nanovllm") -> EngineRecord:
    return EngineRecord(name, "cpu", "float32", "torch", 1, False, "no CUDA graphs on a CPU", False, {}, {}, 0.5)


def repeat(seconds: float = 4.0) -> Repeat:
    """Two requests of 10 prompt tokens: 5 completion tokens by `seconds`, and 3 by half of it."""
    rows = [RequestRow(0.0, 1.0, seconds, 10, 5), RequestRow(0.0, 1.0, seconds / 2, 10, 3)]
    return Repeat(seconds, 1.0, seconds - 1.0, 20, 6, 0.5, [3 * 2**20], 4, rows)


def throughput_result(*seconds: float) -> ThroughputResult:
    result = ThroughputResult(experiment="throughput", environment=environment(), engines=[engine()])
    result.formulas = chosen(throughput.FIGURES)
    result.points = [throughput.point_of("nanovllm", "10/5", 2, [repeat(s) for s in seconds or (4.0,)])]
    return result


def spread(*values: float, unit: str = "ms", better: str = "lower") -> Spread:
    return Spread.of(values, unit, better)


def preempted_repeat() -> Repeat:
    """Two requests; the second loses its blocks in the third step and is computed again in the fifth."""
    steps = [
        StepRow(1.0, True, 8, [0, 1], [], 2),
        StepRow(2.0, False, 2, [0, 1], [], 2),
        StepRow(3.0, False, 1, [0], [1], 2),
        StepRow(4.0, False, 1, [0], [], 2),
        StepRow(5.0, True, 6, [1], [], 2),
        StepRow(6.0, False, 1, [1], [], 2),
    ]
    rows = [RequestRow(0.0, 1.0, 4.0, 4, 4), RequestRow(0.0, 1.0, 6.0, 4, 4, 0, 1, 5)]
    return Repeat(6.0, 2.0, 4.0, 14, 5, 1.0, [1], 2, rows, timeline=steps)


def skipped() -> GraphsResult:
    return GraphsResult(experiment="graphs", environment=environment(), skipped="it needs a GPU")


FAKE_NANO_VLLM = """
class SamplingParams:
    def __init__(self, temperature, ignore_eos, max_tokens):
        assert temperature > 1e-10
        self.max_tokens = max_tokens

class LLM:
    def __init__(self, model, max_model_len, tensor_parallel_size):
        manager = type("Manager", (), {"hash_to_block_id": {}})()
        self.scheduler = type("Scheduler", (), {"block_manager": manager})()

    def generate(self, prompts, sampling_params, use_tqdm):
        return [{"text": "", "token_ids": [1] * p.max_tokens} for p in sampling_params]
"""
FAKE_VLLM = """
class SamplingParams:
    def __init__(self, temperature, ignore_eos, max_tokens, detokenize):
        self.max_tokens = max_tokens

class LLM:
    def __init__(self, model, max_model_len, max_num_seqs, tensor_parallel_size, enable_prefix_caching, seed):
        pass

    def reset_prefix_cache(self):
        pass

    def generate(self, prompts, sampling_params, use_tqdm):
        assert all(p["prompt_token_ids"] for p in prompts)
        one = lambda n: type("Completion", (), {"token_ids": [1] * n})()
        return [type("Output", (), {"outputs": [one(p.max_tokens)]})() for p in sampling_params]
"""


def fake_checkout(folder: Path, package: str, source: str) -> Path:
    """A folder with a package of that name, as `--peer-path` takes it."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").write_text(source, encoding="utf-8")
    return folder
