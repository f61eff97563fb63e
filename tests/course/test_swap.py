"""Swapping a function in: it runs, it is counted, and the original comes back."""

import inspect
import sys
from types import ModuleType

import pytest

from nanovllm.course import SwapError, swap
from nanovllm.course.exercise import Seam
from nanovllm.course.oracle import find_failure, random_trace, run_trace
from nanovllm.course.originals import current, original, resolve
from nanovllm.course.seams import SEAMS
from nanovllm.course.swap import install
from nanovllm.scheduler import BlockManager, Sequence, block_manager


def my_block(seq, index):
    return [index]


def my_append(manager, seq, num_ahead=0):
    return original(SEAMS["BlockManager.append"])(manager, seq, num_ahead)


def test_a_method_is_swapped_counted_and_restored() -> None:
    before = inspect.getattr_static(Sequence, "block")
    with swap("Sequence.block", my_block) as calls:
        assert Sequence(0, [5, 6]).block(0) == [0]
        assert calls == {"Sequence.block": 1}
    assert Sequence(0, [5, 6]).block(0) == [5, 6]
    assert inspect.getattr_static(Sequence, "block") is before


def test_a_property_is_swapped_as_a_property() -> None:
    with swap("Sequence.num_blocks", lambda seq: 7) as calls:
        assert Sequence(0, [5]).num_blocks == 7
    assert calls == {"Sequence.num_blocks": 1}
    assert Sequence(0, [5]).num_blocks == 1


def test_a_function_that_others_hold_as_a_default_is_swapped_there_too() -> None:
    def one(previous, token_ids):
        return 1

    with swap("block_manager.chained_hash", one) as calls:
        manager = BlockManager(2, 1)
        assert manager.block_hash(Sequence(0, [5, 6], block_size=1), 0) == 1
        assert block_manager.chained_hash(None, [3]) == 1
        run_trace(random_trace(3))
    assert calls["block_manager.chained_hash"] > 2
    assert BlockManager(2, 1).block_hash(Sequence(0, [5, 6], block_size=1), 0) != 1


def test_the_whole_scheduler_runs_with_it() -> None:
    with swap("BlockManager.append", my_append) as calls:
        assert find_failure(range(30)) is None
    assert calls["BlockManager.append"] > 30


def test_the_original_returns_after_an_error() -> None:
    before = {name: current(seam) for name, seam in SEAMS.items()}
    with pytest.raises(ZeroDivisionError), swap("Sequence.block", my_block):
        raise ZeroDivisionError
    with swap("BlockManager.append", lambda manager, seq, num_ahead=0: 1 / 0):
        failure = find_failure(range(20))
    assert failure is not None
    assert failure.kind == "crash"
    assert {name: current(seam) for name, seam in SEAMS.items()} == before


def test_swaps_nest() -> None:
    seq = Sequence(0, [5, 6])
    with swap("Sequence.block", my_block):
        with swap("Sequence.block", lambda seq, index: "inner") as calls:
            assert seq.block(0) == "inner"
        assert seq.block(0) == [0]
        with swap("1.1", "reference"):
            assert seq.block(0) == [5, 6], "the engine's own, not the one that stands there now"
    assert calls == {"Sequence.block": 1}


def test_an_exercise_from_a_dict_as_in_a_notebook_cell() -> None:
    cell = {"block": my_block, "num_blocks": lambda seq: 1, "last_block_num_tokens": lambda seq: 1, "other": 3}
    with swap("1.1", cell) as calls:
        assert Sequence(0, [5]).block(0) == [0]
    assert calls == {"Sequence.num_blocks": 0, "Sequence.last_block_num_tokens": 0, "Sequence.block": 1}


@pytest.mark.parametrize(
    ("seam", "function", "said"),
    [
        ("Sequence.block", lambda seq: [], r"block\(seq, index\); yours is <lambda>\(seq\)"),
        ("Sequence.block", lambda seq, i: [], r"block\(seq, index\); yours is <lambda>\(seq, i\)"),
        ("BlockManager.append", lambda m, seq, num_ahead: None, r"num_ahead=0\); yours is .*num_ahead\)"),
        ("Sequence.num_blocks", lambda: 0, r"num_blocks\(self\); yours is <lambda>\(\)"),
        ("block_manager.chained_hash", lambda tokens, previous: 0, r"chained_hash\(previous, token_ids\); yours"),
        ("Sequence.block", 3, r"needs a function\(self, index\), not int 3"),
        ("Sequence.nothing", my_block, "no seam or exercise 'Sequence.nothing'"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_signatures(seam: str, function: object, said: str) -> None:
    before = {name: current(s) for name, s in SEAMS.items()}
    with pytest.raises(SwapError, match=said), swap(seam, function):  # type: ignore[arg-type]
        pass
    assert {name: current(s) for name, s in SEAMS.items()} == before


def test_nothing_is_installed_when_one_of_several_does_not_fit() -> None:
    cell = {"take": lambda manager, block_id: None, "deallocate": lambda manager: None}
    before = current(SEAMS["BlockManager._take"])
    with pytest.raises(SwapError, match="deallocate"), swap("1.4", cell):
        pass
    assert current(SEAMS["BlockManager._take"]) is before
    with pytest.raises(SwapError, match="needs a function named deallocate"), swap("1.4", {"take": cell["take"]}):
        pass


def test_every_seam_is_there() -> None:
    for seam in SEAMS.values():
        assert seam.is_property == isinstance(inspect.getattr_static(resolve(seam.owner), seam.attribute), property)
        for holder in seam.defaults_of:
            assert original(seam) in resolve(holder).__defaults__


# --- classes, and names that several modules hold ----------------------------------------------------------------

NORM = Seam(
    "nanovllm.qwen3.norm",
    "RMSNorm",
    "(size, eps, at)",
    is_class=True,
    methods=(("forward", "(self, x)"),),
)


def norm_class(*, halved: bool) -> type:
    from nanovllm.qwen3.norm import RMSNorm

    class MyNorm(RMSNorm):
        def forward(self, x):
            return super().forward(x) / 2 if halved else super().forward(x)

    return MyNorm


def test_a_class_is_swapped_in_every_module_that_holds_it_and_counted() -> None:
    from nanovllm import LLM, SamplingParams
    from nanovllm.qwen3 import model, norm

    before = norm.RMSNorm
    with install({"norm": (NORM, norm_class(halved=False))}) as calls:
        assert model.RMSNorm is norm.RMSNorm is not before
        with LLM("qwen3-tiny", device="cpu", max_model_len=64, num_kvcache_blocks=4) as llm:
            (output,) = llm.generate(["count: 17 18 19 20"], SamplingParams(temperature=0, max_tokens=4), False)
    assert model.RMSNorm is norm.RMSNorm is before
    assert output.text.strip().startswith("21")
    assert calls["norm"] > 4
    assert calls["norm.forward"] == 4, "the first layer's, once a step; the others go through add_and_norm"


@pytest.mark.parametrize(
    ("piece", "said"),
    [
        (lambda size, eps, at: None, r"needs a class RMSNorm\(size, eps, at\), not function"),
        (type("N", (), {"__init__": lambda self, size: None}), r"RMSNorm\(size, eps, at\); yours is N\(size\)"),
        (type("N", (), {"__init__": lambda self, size, eps, at: None}), r"method forward\(self, x\); your N has none"),
        (
            type("N", (), {"__init__": lambda self, size, eps, at: None, "forward": lambda self, y: y}),
            r"forward\(self, x\); yours is <lambda>\(self, y\)",
        ),
    ],
)
def test_a_class_that_does_not_fit_is_refused(piece: object, said: str) -> None:
    with pytest.raises(SwapError, match=said), install({"norm": (NORM, piece)}):
        pass


def test_static_and_class_methods_stay_what_they_are() -> None:
    class Owner:
        @staticmethod
        def static(x):
            return x

        @classmethod
        def of_class(cls, x):
            return (cls, x)

    module = ModuleType("nanovllm_test_owner")
    module.Owner = Owner  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    try:
        static = Seam("nanovllm_test_owner:Owner", "static", "(x)")
        of_class = Seam("nanovllm_test_owner:Owner", "of_class", "(cls, x)")
        with install({"a": (static, lambda x: -x), "b": (of_class, lambda kind, x: (kind, -x))}) as calls:
            assert (Owner().static(3), Owner().of_class(3)) == (-3, (Owner, -3))
        assert (Owner().static(3), Owner.of_class(3)) == (3, (Owner, 3))
        assert calls == {"a": 1, "b": 1}
    finally:
        del sys.modules[module.__name__]
