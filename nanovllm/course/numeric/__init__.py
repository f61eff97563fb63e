"""The numeric oracle: random cases whose answers are compared with a tolerance, away from the learner's code.

A group of checks says what its cases are (`nanovllm.course.exercise.Numeric`):

    def make_inputs(rng, tokens, width):           # plain values, so that a case can be printed
        return {"x": numbers(rng, tokens, width), "eps": 1e-6}

    def expected(x, eps):                          # any way but the function under test; tensors are fine
        return [[value / math.sqrt(sum(v * v for v in row) / len(row) + eps) for value in row] for row in x]

    Numeric(
        sizes=(("tokens", 1, 4), ("width", 1, 8)),
        inputs=make_inputs,
        code=CODE,                                 # import torch; ...; result = norm.rms_norm(torch.tensor(x), eps)
        expected=expected,
    )

The smallest case of all comes first, then the largest, then random ones. The process that runs the learner's code
sends each `result` as plain values (`plain`), and shrinks the first failure over its sizes; the judge works every
answer out again and compares (`difference`), and shows expected above actual (`side_by_side`). A learner's answer may
be a tensor, an array, a dataclass, or lists; where `expected` returns a tensor its dtype counts too, where it returns
lists only the numbers and the shape do.

Read in this order: `values.py`, `compare.py`, `observe.py`, `show.py`, `checkpoint.py` (the shipped checkpoint, whose
answers are those of transformers).
"""

from nanovllm.course.numeric.compare import Difference, difference
from nanovllm.course.numeric.values import numbers, plain

__all__ = ["Difference", "difference", "numbers", "plain"]
