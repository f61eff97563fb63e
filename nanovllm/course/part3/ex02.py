"""3.2 Rotary embedding."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.numeric import numbers
from nanovllm.course.part3 import formulas
from nanovllm.course.part3.running import IN_ENGINE

_IMPORTS = "import torch\nfrom nanovllm.qwen3 import rotary\n"
_FREQUENCIES = (
    _IMPORTS
    + """\
frequencies = rotary.inverse_frequencies(4, 100.0)
result = [str(frequencies.dtype), [round(number, 4) for number in frequencies.tolist()]]"""
)
_TURN = """\
angles = torch.tensor([[2.0, 0.2]]).unsqueeze(1)  # one token, one row for all heads, two pairs
"""
_BY_HAND = (
    _IMPORTS
    + _TURN
    + """\
y = rotary.apply_rotary(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), angles.cos(), angles.sin())
result = [round(number, 4) for number in y[0, 0].tolist()]"""
)
_AT_ZERO = (
    _IMPORTS
    + """\
x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
result = rotary.apply_rotary(x, torch.ones(1, 1, 2), torch.zeros(1, 1, 2)).tolist()"""
)
_HALF = (
    _IMPORTS
    + _TURN
    + """\
x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]], dtype=torch.bfloat16)
y = rotary.apply_rotary(x, angles.cos(), angles.sin())
result = [str(y.dtype), [round(number, 1) for number in y[0, 0].tolist()], x[0, 0].tolist()]"""
)


def _size(rng: random.Random, pairs: int) -> dict[str, Any]:
    return {"head_dim": 2 * pairs, "theta": rng.choice([10.0, 1e4, 1e6])}


def _heads(rng: random.Random, tokens: int, heads: int, pairs: int) -> dict[str, Any]:
    return {
        "x": numbers(rng, tokens, heads, 2 * pairs),
        "angles": [[round(rng.uniform(0, 6), 1) for _ in range(pairs)] for _ in range(tokens)],
    }


def _turned(x: Any, angles: Any) -> Any:
    return [[formulas.rotate(head, turn) for head in token] for token, turn in zip(x, angles, strict=True)]


_ROTATE = (
    _IMPORTS
    + """\
turn = torch.tensor(angles).unsqueeze(1)
result = rotary.apply_rotary(torch.tensor(x), turn.cos(), turn.sin())"""
)

_NEIGHBOURS = """
def apply_rotary(x, cos, sin):
    first, second = x.float()[..., 0::2], x.float()[..., 1::2]
    turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1)
    return turned.flatten(-2).to(x.dtype)
"""
_TWICE = """
def apply_rotary(x, cos, sin):
    first, second = x.float().chunk(2, dim=-1)
    first = first * cos - second * sin
    second = second * cos + first * sin
    return torch.cat([first, second], dim=-1).to(x.dtype)
"""
_IN_PLACE = """
def apply_rotary(x, cos, sin):
    first, second = x.float().chunk(2, dim=-1)
    x[:] = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
    return x
"""
_COMPLEX = """
def apply_rotary(x, cos, sin):
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.complex(first, second) * torch.complex(cos, sin)
    return torch.cat([turned.real, turned.imag], dim=-1).to(x.dtype)
"""
_ROTATE_HALF = """
def apply_rotary(x, cos, sin):
    y = x.float()
    half = y.shape[-1] // 2
    other = torch.cat([-y[..., half:], y[..., :half]], dim=-1)
    return (y * torch.cat([cos, cos], dim=-1) + other * torch.cat([sin, sin], dim=-1)).to(x.dtype)
"""

EXERCISE = Exercise(
    number="3.2",
    title="Rotary embedding",
    file="part3/ex02_rotary.py",
    pieces=(("inverse_frequencies", seams.INVERSE_FREQUENCIES), ("apply_rotary", seams.APPLY_ROTARY)),
    hints=(
        "Draw one pair as an arrow and turn it by a right angle (cos 0, sin 1): (1, 0) becomes (0, 1). Then ask where "
        "the two numbers of the arrow stand in the head.",
        "The exponents -2i / D are torch.arange(0, D, 2) / D with a minus. x.chunk(2, dim=-1) gives both halves; "
        "compute both new halves from the old ones, then torch.cat them on the last axis.",
        "1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim). And first, second = "
        "x.float().chunk(2, dim=-1); torch.cat([first * cos - second * sin, second * cos + first * sin], "
        "dim=-1).to(x.dtype).",
    ),
    groups=(
        Group(
            "the angle a position of each pair",
            1,
            "D / 2 numbers, the first one 1, each smaller than the one before by the same factor. Which factor?",
            (Example(_FREQUENCIES, ["torch.float32", [1.0, 0.1]]),),
            numeric=Numeric(
                (("pairs", 1, 8),),
                _size,
                _IMPORTS + "result = rotary.inverse_frequencies(head_dim, theta)",
                formulas.frequencies,
                cases=10,
            ),
        ),
        Group(
            "pairs turned",
            1,
            "Which two numbers of a head belong together, and which way do they turn? Turn (1, 0) by a right angle.",
            (
                Example(
                    _AT_ZERO, [[[1.0, 2.0, 3.0, 4.0]]], "An angle of 0 turns nothing: each number must be where it was."
                ),
                Example(_BY_HAND, [-3.144, 1.1655, -0.3391, 4.3176]),
            ),
            numeric=Numeric((("tokens", 1, 3), ("heads", 1, 3), ("pairs", 1, 4)), _heads, _ROTATE, _turned, cases=12),
        ),
        Group(
            "half precision, and the running engine",
            1,
            "What goes in must stay as it is, and what comes out has the dtype of x. If only the engine's answers are "
            "wrong: do queries and keys of one position turn by the same angle?",
            (
                Example(
                    _HALF,
                    ["torch.bfloat16", [-3.1, 1.2, -0.3, 4.3], [1.0, 2.0, 3.0, 4.0]],
                    "Computed in fp32, returned in the dtype of x, and x itself stays as it is.",
                ),
                IN_ENGINE,
            ),
        ),
    ),
    bugs=(
        Variant(
            "takes the exponents -i / D",
            "inverse_frequencies",
            (("torch.arange(0, head_dim, 2,", "torch.arange(0, head_dim // 2,"),),
        ),
        Variant("lets the frequencies grow", "inverse_frequencies", (("1.0 / theta", "theta"),)),
        Variant(
            "divides by the number of pairs", "inverse_frequencies", (("32) / head_dim", "32) / (head_dim // 2)"),)
        ),
        Variant(
            "computes whole numbers",
            "inverse_frequencies",
            (("dtype=torch.float32) / head_dim", "dtype=torch.int64) // head_dim"),),
        ),
        Variant("pairs neighbours, (x[0], x[1]) and so on", "apply_rotary", source=_NEIGHBOURS),
        Variant(
            "turns the other way round",
            "apply_rotary",
            (("first * cos - second * sin", "first * cos + second * sin"), ("+ first * sin", "- first * sin")),
        ),
        Variant("uses the new first half for the second one", "apply_rotary", source=_TWICE),
        Variant("gives all tokens the angle of the first", "apply_rotary", (("first * cos -", "first * cos[:1] -"),)),
        Variant(
            "puts the halves back the other way round",
            "apply_rotary",
            (
                (
                    "[first * cos - second * sin, second * cos + first * sin]",
                    "[second * cos + first * sin, first * cos - second * sin]",
                ),
            ),
        ),
        Variant("returns fp32 whatever x is", "apply_rotary", ((".to(x.dtype)", ""),)),
        Variant("turns x itself", "apply_rotary", source=_IN_PLACE),
    ),
    harmless=(
        Variant(
            "powers of one factor",
            "inverse_frequencies",
            (
                (
                    "1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)",
                    "torch.tensor([theta ** (-2 * i / head_dim) for i in range(head_dim // 2)])",
                ),
            ),
        ),
        Variant("multiplies complex numbers", "apply_rotary", source=_COMPLEX),
        Variant("adds the turned half, as transformers writes it", "apply_rotary", source=_ROTATE_HALF),
    ),
    uses_torch=True,
)
