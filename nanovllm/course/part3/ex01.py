"""3.1 RMSNorm with residual."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.numeric import numbers
from nanovllm.course.part3 import formulas
from nanovllm.course.part3.running import IN_ENGINE

_IMPORTS = "import torch\nfrom nanovllm.qwen3.ops import TorchOps\n"
_BY_HAND = (
    _IMPORTS
    + """\
y = TorchOps().rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)
result = [round(number, 4) for number in y[0].tolist()]"""
)
_ZEROS = (
    _IMPORTS
    + """\
x = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
y = TorchOps().rms_norm(x, torch.ones(2), 3.0)
result = [[round(number, 4) for number in row] for row in y.tolist()]"""
)
_KEPT = (
    _IMPORTS
    + """\
x = torch.tensor([[3.0, 4.0]])
TorchOps().rms_norm(x, torch.tensor([1.0, 2.0]), 0.0)
result = x.tolist()"""
)
_OVERFLOW = (
    _IMPORTS
    + """\
x = torch.tensor([[600.0, 800.0]], dtype=torch.float16)
y = TorchOps().rms_norm(x, torch.ones(2, dtype=torch.float16), 1e-6)
result = [str(y.dtype), [round(number, 2) for number in y[0].tolist()], x.tolist()]"""
)
_ROUNDING = (
    _IMPORTS
    + """\
x = torch.tensor([[5.0, 11.0]], dtype=torch.bfloat16)
y = TorchOps().rms_norm(x, torch.tensor([1.25, 3.0], dtype=torch.bfloat16), 1e-6)
result = [str(y.dtype), y[0].tolist()]"""
)
_RESIDUAL = (
    _IMPORTS
    + """\
x, residual = torch.tensor([[1.0, 4.0]]), torch.tensor([[2.0, 0.0]])
y, stream = TorchOps().add_rms_norm(x, residual, torch.tensor([1.0, 2.0]), 0.0)
result = [[round(number, 4) for number in y[0].tolist()], stream[0].tolist()]"""
)
_UNCHANGED = (
    _IMPORTS
    + """\
x, residual = torch.tensor([[1.0, 4.0]]), torch.tensor([[2.0, 0.0]])
TorchOps().add_rms_norm(x, residual, torch.tensor([1.0, 2.0]), 0.0)
result = [x.tolist(), residual.tolist()]"""
)


def _inputs(rng: random.Random, tokens: int, n: int) -> dict[str, Any]:
    return {
        "x": numbers(rng, tokens, n),
        "residual": numbers(rng, tokens, n),
        "weight": numbers(rng, n),
        "eps": rng.choice([1e-6, 0.5]),
    }


def _normed(x: Any, residual: Any, weight: Any, eps: float) -> Any:
    return [formulas.rms_norm(row, weight, eps) for row in x]


def _added(x: Any, residual: Any, weight: Any, eps: float) -> Any:
    stream = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(x, residual, strict=True)]
    return [[formulas.rms_norm(row, weight, eps) for row in stream], stream]


_SIZES = (("tokens", 1, 4), ("n", 1, 8))
_NORM = _IMPORTS + "result = TorchOps().rms_norm(torch.tensor(x), torch.tensor(weight), eps)"
_ADD = _IMPORTS + "result = TorchOps().add_rms_norm(torch.tensor(x), torch.tensor(residual), torch.tensor(weight), eps)"

_NORMALISED_STREAM = """
def add_rms_norm(self, x, residual, weight, eps):
    y = self.rms_norm(x + residual, weight, eps)
    return y, y
"""
_IN_PLACE = """
def rms_norm(self, x, weight, eps):
    x32 = x.float()
    x32.mul_(torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps))
    return x32.to(x.dtype) * weight
"""
_DIVIDES = """
def rms_norm(self, x, weight, eps):
    x32 = x.to(torch.float32)
    mean = (x32 * x32).sum(-1, keepdim=True) / x.shape[-1]
    return (x32 / (mean + eps).sqrt()).to(x.dtype) * weight
"""

EXERCISE = Exercise(
    number="3.1",
    title="RMSNorm with residual",
    file="part3/ex01_rms_norm.py",
    pieces=(("rms_norm", seams.RMS_NORM), ("add_rms_norm", seams.ADD_RMS_NORM)),
    hints=(
        "Do [3, 4] by hand, then in a cell with a tensor of shape [1, 2], printing after each step. Then give it two "
        "rows: each must have a root of its own.",
        "x.float() goes to fp32; .mean(-1, keepdim=True) keeps a last dimension of 1, so that it divides each row; "
        ".to(x.dtype) comes before the weight. For the residual: the sum is both what is normalised and what goes on.",
        "x32 = x.float(); scale = torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps); return (x32 * "
        "scale).to(x.dtype) * weight. And: residual = x + residual; return ops.rms_norm(residual, weight, eps), "
        "residual.",
    ),
    groups=(
        Group(
            "vectors scaled to a mean square of 1",
            1,
            "Write down mean square, root and quotient of the row below. Is the mean one of this row alone? Where does "
            "eps go in, and the weight?",
            (
                Example(_BY_HAND, [0.8485, 2.2627]),
                Example(
                    _ZEROS,
                    [[0.0, 0.0], [0.5, 0.5]],
                    (
                        "Two rows, each with a mean of its own: 0 and 1. And eps is added to the mean, under "
                        "the root: what is sqrt(1 + 3)?"
                    ),
                ),
                Example(
                    _KEPT,
                    [[3.0, 4.0]],
                    "x belongs to the caller and must be as it was. Which line writes in place? And is x.float() a "
                    "copy where x is fp32 already?",
                ),
            ),
            numeric=Numeric(_SIZES, _inputs, _NORM, _normed, cases=12),
        ),
        Group(
            "half precision",
            1,
            "600 squared is more than fp16 can hold. In which dtype is the mean computed, in which one is the weight "
            "applied, and which one comes out?",
            (
                Example(
                    _OVERFLOW,
                    ["torch.float16", [0.85, 1.13], [[600.0, 800.0]]],
                    (
                        "600 squared is more than fp16 can hold. In which dtype are the squares and their "
                        "mean computed, and which one comes out?"
                    ),
                ),
                Example(
                    _ROUNDING,
                    ["torch.bfloat16", [0.734375, 3.875]],
                    (
                        "The quotient is rounded to bf16 first and multiplied by the weight then. What did "
                        "you round, and when?"
                    ),
                ),
            ),
        ),
        Group(
            "the residual, in the running engine",
            1,
            "Two results: which one goes into the next sub-layer, and which one is the stream that everybody adds to?",
            (
                Example(_RESIDUAL, [[0.8485, 2.2627], [3.0, 4.0]]),
                Example(
                    _UNCHANGED,
                    [[[1.0, 4.0]], [[2.0, 0.0]]],
                    "x and residual belong to the caller. Which line wrote into one of them?",
                ),
                IN_ENGINE,
            ),
            numeric=Numeric(_SIZES, _inputs, _ADD, _added, cases=8),
        ),
    ),
    bugs=(
        Variant("computes in the dtype of x", "rms_norm", (("x32 = x.float()", "x32 = x"),)),
        Variant("forgets eps", "rms_norm", ((" + eps)\n", ")\n"),)),
        Variant("adds eps after the root", "rms_norm", (("torch.rsqrt(", "1 / ("), (" + eps)\n", ".sqrt() + eps)\n"))),
        Variant("takes the sum of the squares, not their mean", "rms_norm", ((".mean(", ".sum("),)),
        Variant(
            "subtracts the mean first, as LayerNorm does",
            "rms_norm",
            (("x32 = x.float()", "x32 = x.float() - x.float().mean(-1, keepdim=True)"),),
        ),
        Variant("takes one mean over all tokens", "rms_norm", ((".mean(-1, keepdim=True)", ".mean()"),)),
        Variant(
            "multiplies by the weight before it rounds",
            "rms_norm",
            (("scale).to(x.dtype) * weight", "scale * weight).to(x.dtype)"),),
        ),
        Variant("overwrites x where it is fp32 already", "rms_norm", source=_IN_PLACE),
        Variant("returns fp32 whatever x is", "rms_norm", ((".to(x.dtype)", ""),)),
        Variant("lets the normalised sum go on as the stream", "add_rms_norm", source=_NORMALISED_STREAM),
        Variant("normalises x without the residual", "add_rms_norm", (("rms_norm(residual,", "rms_norm(x,"),)),
        Variant("adds into the residual it was given", "add_rms_norm", (("residual = x + residual", "residual += x"),)),
    ),
    harmless=(
        Variant("divides by the root", "rms_norm", source=_DIVIDES),
        Variant(
            "adds in the other order, with torch.add",
            "add_rms_norm",
            (("residual = x + residual", "residual = torch.add(residual, x)"),),
        ),
    ),
    uses_torch=True,
)
