"""3.4 SwiGLU."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.numeric import numbers
from nanovllm.course.part3 import formulas
from nanovllm.course.part3.running import IN_ENGINE

_BY_HAND = """\
import torch
from nanovllm.qwen3.ops import TorchOps
y = TorchOps().silu_and_mul(torch.tensor([[0.0, 1.0, 5.0, 6.0]]))
result = [round(number, 4) for number in y[0].tolist()]"""
_HALF = """\
import torch
from nanovllm.qwen3.ops import TorchOps
gate_up = torch.tensor([[-2.0, 30.0, 1.0, 0.5]], dtype=torch.bfloat16)
y = TorchOps().silu_and_mul(gate_up)
result = [str(y.dtype), [round(number, 2) for number in y[0].tolist()], gate_up[0].tolist()]"""
_LAYER = """\
from nanovllm.course.part3 import made
import torch
layer = made.mlp(gate=[[1.0, 0.0]], up=[[0.0, 1.0]], down=[[2.0], [-1.0]])  # hidden 2, n = 1
result = [round(number, 4) for number in layer(torch.tensor([[1.0, 6.0]]))[0].tolist()]"""


def _rows(rng: random.Random, tokens: int, n: int) -> dict[str, Any]:
    return {"gate_up": numbers(rng, tokens, 2 * n)}


def _layer(rng: random.Random, tokens: int, hidden: int, n: int) -> dict[str, Any]:
    return {
        "x": numbers(rng, tokens, hidden),
        "gate": numbers(rng, n, hidden),
        "up": numbers(rng, n, hidden),
        "down": numbers(rng, hidden, n),
    }


def _products(gate_up: Any) -> Any:
    return [formulas.silu_and_mul(row) for row in gate_up]


def _fed(x: Any, gate: Any, up: Any, down: Any) -> Any:
    return formulas.linear(_products(formulas.linear(x, [*gate, *up])), down)


_ACTIVATE = """\
import torch
from nanovllm.qwen3.ops import TorchOps
result = TorchOps().silu_and_mul(torch.tensor(gate_up))"""
_FEED = """\
from nanovllm.course.part3 import made
import torch
result = made.mlp(gate, up, down)(torch.tensor(x))"""

EXERCISE = Exercise(
    number="3.4",
    title="SwiGLU",
    file="part3/ex04_swiglu.py",
    pieces=(("silu_and_mul", seams.SILU_AND_MUL), ("mlp_forward", seams.MLP_FORWARD)),
    hints=(
        "silu is nearly 0 for very negative numbers and nearly the number itself for large ones. Which of the two "
        "halves should decide how much passes?",
        "gate_up.chunk(2, dim=-1) cuts every row into its first and its last half; torch.sigmoid or "
        "torch.nn.functional.silu does the rest.",
        "gate, up = gate_up.chunk(2, dim=-1); return gate * torch.sigmoid(gate) * up. And: return "
        "mlp.down_proj(mlp.ops.silu_and_mul(mlp.gate_up_proj(x))).",
    ),
    groups=(
        Group(
            "the gate times the other half",
            1,
            "Cut the row in the middle. Which half goes through silu, and is silu(g) sigmoid(g) or g x sigmoid(g)?",
            (
                Example(_BY_HAND, [0.0, 4.3864]),
                Example(
                    _HALF,
                    ["torch.bfloat16", [-0.24, 15.0], [-2.0, 30.0, 1.0, 0.5]],
                    "What comes out has the dtype of what came in, and the row itself stays as it is.",
                ),
            ),
            numeric=Numeric((("tokens", 1, 3), ("n", 1, 6)), _rows, _ACTIVATE, _products, cases=10),
        ),
        Group(
            "the whole layer, in the running engine",
            1,
            "From hidden_size to 2n, to n, and back to hidden_size: which of the three calls makes which step?",
            (
                Example(
                    _LAYER,
                    [8.7727, -4.3864],
                    ("Hidden 2, n = 1: write down gate, up, their product after silu, and what down makes of it."),
                ),
                IN_ENGINE,
            ),
            numeric=Numeric((("tokens", 1, 3), ("hidden", 1, 3), ("n", 1, 4)), _layer, _FEED, _fed, cases=8),
        ),
    ),
    bugs=(
        Variant("lets the wrong half be the gate", "silu_and_mul", (("F.silu(gate) * up", "F.silu(up) * gate"),)),
        Variant("takes the sigmoid for silu", "silu_and_mul", (("F.silu(gate)", "torch.sigmoid(gate)"),)),
        Variant("takes relu for silu", "silu_and_mul", (("F.silu(gate)", "F.relu(gate)"),)),
        Variant("takes gelu for silu", "silu_and_mul", (("F.silu(gate)", "F.gelu(gate)"),)),
        Variant("adds instead of multiplying", "silu_and_mul", (("F.silu(gate) * up", "F.silu(gate) + up"),)),
        Variant(
            "takes gate and up in turns from the row",
            "silu_and_mul",
            (("gate_up.chunk(2, dim=-1)", "(gate_up[..., 0::2], gate_up[..., 1::2])"),),
        ),
        Variant("multiplies before the activation", "silu_and_mul", (("F.silu(gate) * up", "F.silu(gate * up)"),)),
        Variant("returns fp32 whatever came in", "silu_and_mul", (("F.silu(gate) * up", "F.silu(gate.float()) * up"),)),
        Variant("adds the residual, which is added elsewhere", "mlp_forward", (("return self", "return x + self"),)),
        Variant(
            "leaves the activation out",
            "mlp_forward",
            (("self.ops.silu_and_mul(self.gate_up_proj(x))", "self.gate_up_proj(x).chunk(2, dim=-1)[1]"),),
        ),
    ),
    harmless=(
        Variant(
            "writes silu as a quotient", "silu_and_mul", (("F.silu(gate) * up", "gate / (1 + torch.exp(-gate)) * up"),)
        ),
        Variant(
            "cuts the row with slices",
            "silu_and_mul",
            (
                (
                    "gate_up.chunk(2, dim=-1)",
                    "(gate_up[:, : gate_up.shape[1] // 2], gate_up[:, gate_up.shape[1] // 2 :])",
                ),
            ),
        ),
        Variant(
            "names the steps",
            "mlp_forward",
            (
                (
                    "return self.down_proj(self.ops.silu_and_mul(self.gate_up_proj(x)))",
                    "wide = self.gate_up_proj(x)\n    passed = self.ops.silu_and_mul(wide)\n"
                    "    return self.down_proj(passed)",
                ),
            ),
        ),
    ),
    uses_torch=True,
)
