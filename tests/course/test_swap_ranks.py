"""`LLM(..., swap={...})`: the pieces run in every rank, are counted in every rank, and concern no other engine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nanovllm import LLM, SamplingParams
from nanovllm.course import SwapError
from nanovllm.course.registry import EXERCISES
from nanovllm.engine import model_ranks
from nanovllm.errors import ConfigError
from nanovllm.scheduler import BlockManager

PROMPTS = ["count: 17 18 19 20", "sort: 9 4 7 ->"]
SMALL = {"device": "cpu", "max_model_len": 64, "num_kvcache_blocks": 28, "kvcache_block_size": 4}
PARAMS = SamplingParams(temperature=0, max_tokens=6)


def answers(llm: LLM) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    with LLM("qwen3-tiny", **SMALL) as llm:
        assert not hasattr(llm, "swap_calls")
        return answers(llm)


def test_one_rank_and_no_other_engine(wanted: list[list[int]], solutions: Path) -> None:
    seen = []

    def allocate(manager, seq, plan=None):
        seen.append(seq.seq_id)
        return original(manager, seq, plan)

    original = BlockManager.allocate
    swaps = {"BlockManager.allocate": allocate}
    with LLM("qwen3-tiny", **SMALL) as other, LLM("qwen3-tiny", swap=swaps, **SMALL) as llm:
        assert answers(llm) == wanted
        assert seen == [0, 1]
        assert BlockManager.allocate is original, "not in force outside the engine's methods"
        llm.add_request(PROMPTS[0], PARAMS)
        other.add_request(PROMPTS[0], PARAMS)
        while not (llm.is_finished() and other.is_finished()):  # the two take turns
            llm.step()
            other.step()
        assert seen == [0, 1, 2]
        assert llm.swap_calls() == {"BlockManager.allocate": [3]}
    assert llm.swap_calls() == {"BlockManager.allocate": [3]}, "known after the end too"
    with LLM("qwen3-tiny", swap={"1.3": solutions, "1.5": "reference"}, **SMALL) as llm:
        assert answers(llm) == wanted
        assert all(count[0] > 0 for count in llm.swap_calls().values())


CELL = """
import sys
from nanovllm import LLM, SamplingParams
from nanovllm.course.exercise import Seam

NORM = Seam("nanovllm.qwen3.norm:RMSNorm", "forward", "(self, x)")
small = dict(device="cpu", max_model_len=64, num_kvcache_blocks=28, kvcache_block_size=4)
params = SamplingParams(temperature=0, max_tokens=6)
factor = 1.0

def my_forward(norm, x):  # lives in __main__, with a global of its own
    x32 = x.float()
    y = x32 * (x32.pow(2).mean(-1, keepdim=True) + norm.eps).rsqrt()
    return factor * (norm.weight * y.to(x.dtype))

def my_blocks(seq):
    return -(-seq.num_tokens // seq.block_size)

for factor in (1.0, -1.0):
    swaps = {NORM: my_forward, "1.3": sys.argv[1], "Sequence.num_blocks": my_blocks}
    with LLM("qwen3-tiny", tensor_parallel_size=2, swap=swaps, **small) as llm:
        (output,) = llm.generate(["count: 17 18 19 20"], params, use_tqdm=False)
        calls = llm.swap_calls()
    print(output.text.strip()[:5] == "21 22", calls["RMSNorm.forward"], calls["BlockManager.allocate"])
"""


def test_functions_of_a_cell_and_of_a_file_reach_the_workers(solutions: Path) -> None:
    """As a notebook does: the functions stand in `__main__` and have no file at all."""
    argv = [sys.executable, "-c", CELL, str(solutions)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=True)
    right, wrong = done.stdout.splitlines()
    assert right.startswith("True ["), done.stdout
    assert wrong.startswith("False ["), "the workers must follow a changed cell"
    norms, allocated = json.loads(right.split(" ", 1)[1].replace("] [", "], [").join("[]"))
    assert norms[0] == norms[1] == 6, "every rank runs the model"
    assert allocated == [1, 0], "the scheduler runs on rank 0 alone"


@pytest.mark.parametrize(
    ("swaps", "said"),
    [
        ({"Sequence.block": lambda seq: []}, r"block\(seq, index\); yours is <lambda>\(seq\)"),
        ({"Sequence.nothing": len}, "no seam or exercise 'Sequence.nothing'"),
        ({"Sequence.block": "exercises"}, "needs a function or a class; 'exercises' goes with an exercise"),
        ({"1.1": {"block": len}}, "needs a function named num_blocks"),
        ({"1.1": "reference", "Sequence.num_blocks": lambda seq: 1}, "Sequence.num_blocks is given twice"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_rank_starts(swaps: dict, said: str, monkeypatch) -> None:
    monkeypatch.setattr(model_ranks.ModelRanks, "__init__", lambda *a: pytest.fail("a rank was started"))
    with pytest.raises(SwapError, match=said):
        LLM("qwen3-tiny", tensor_parallel_size=2, swap=swaps, **SMALL)


def test_the_originals_are_back_after_a_failure() -> None:
    before = BlockManager.allocate
    with LLM("qwen3-tiny", swap={"BlockManager.allocate": lambda manager, seq, plan=None: 1 / 0}, **SMALL) as llm:
        with pytest.raises(ZeroDivisionError):
            answers(llm)
        assert BlockManager.allocate is before
    with pytest.raises(ConfigError):
        LLM("qwen3-tiny", swap={"Sequence.num_blocks": lambda seq: 1}, max_model_len=0)
    assert BlockManager.allocate is before


def test_two_ranks_run_on_the_solutions_of_all_exercises(wanted: list[list[int]], solutions: Path) -> None:
    with LLM("qwen3-tiny", tensor_parallel_size=2, swap=dict.fromkeys(EXERCISES, solutions), **SMALL) as llm:
        assert answers(llm) == wanted
        calls = llm.swap_calls()
    on_both = [
        *("batch.prepare_prefill", "batch.prepare_decode", "TorchBackend.prefill", "TorchBackend.decode"),
        *("TorchOps.rms_norm", "TorchOps.attend", "QKVParallelLinear.load", "RowParallelLinear.forward"),
    ]
    assert all(min(calls[name]) > 0 and calls[name][0] == calls[name][1] for name in on_both), calls
    assert calls["StepEncoder._change"][0] > 0 == calls["StepEncoder._change"][1], "rank 0 sends"
    assert calls["StepDecoder.decode"][1] > 0 == calls["StepDecoder.decode"][0], "the other receives"
    assert calls["LLMEngine.step"][0] > 0 == calls["LLMEngine.step"][1]
