"""What the pieces of part 3 must compute, in plain Python on lists: slow, short, and checked against transformers.

The numeric oracle takes its answers from here, so that no function under test judges itself. A vector is a list of
numbers, a matrix a list of rows.
"""

import math
from collections.abc import Sequence

Vector = list[float]
Matrix = list[Vector]


def rms_norm(x: Sequence[float], weight: Sequence[float], eps: float) -> Vector:
    """x / sqrt(mean(x^2) + eps) * weight."""
    root = math.sqrt(sum(v * v for v in x) / len(x) + eps)
    return [v / root * w for v, w in zip(x, weight, strict=True)]


def frequencies(head_dim: int, theta: float) -> Vector:
    """theta^(-2i / head_dim) for each pair i."""
    return [theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]


def rotate(x: Sequence[float], angles: Sequence[float]) -> Vector:
    """Turn pair (x[i], x[i + n]) of the 2n numbers by angles[i]."""
    n = len(angles)
    first = [x[i] * math.cos(a) - x[i + n] * math.sin(a) for i, a in enumerate(angles)]
    second = [x[i + n] * math.cos(a) + x[i] * math.sin(a) for i, a in enumerate(angles)]
    return first + second


def softmax(scores: Sequence[float]) -> Vector:
    """e^s / sum of e^s."""
    most = max(scores)
    powers = [math.exp(s - most) for s in scores]
    return [p / sum(powers) for p in powers]


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    """Sum of products."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def linear(x: Matrix, weight: Matrix) -> Matrix:
    """x [T, in] times weight [out, in] transposed: [T, out]."""
    return [[dot(row, w) for w in weight] for row in x]


def attention(q: list[Matrix], k: list[Matrix], v: list[Matrix], scale: float) -> list[Matrix]:
    """Causal attention with shared key/value heads: q [Lq][Hq][D], k and v [Lk][Hkv][D] -> [Lq][Hq][D]."""
    offset, share = len(k) - len(q), len(q[0]) // len(k[0])
    out = []
    for i, token in enumerate(q):
        heads = []
        for h, query in enumerate(token):
            seen = range(offset + i + 1)
            weights = softmax([dot(query, k[j][h // share]) * scale for j in seen])
            heads.append([sum(w * v[j][h // share][d] for w, j in zip(weights, seen, strict=True)) for d in _of(query)])
        out.append(heads)
    return out


def _of(vector: Sequence[float]) -> range:
    return range(len(vector))


def heads_of(
    qkv: Matrix, num_heads: int, num_kv_heads: int, q_weight: Vector, k_weight: Vector, eps: float, theta: float
) -> dict[str, list[Matrix]]:
    """One sequence from position 0 on: qkv [T][(Hq + 2 Hkv) D] -> q [T][Hq][D], k and v [T][Hkv][D], to attend with."""
    dim = len(q_weight)
    turn = frequencies(dim, theta)
    q, k, v = [], [], []
    for position, row in enumerate(qkv):
        heads = [row[i : i + dim] for i in range(0, len(row), dim)]
        angles = [position * f for f in turn]
        q.append([rotate(rms_norm(h, q_weight, eps), angles) for h in heads[:num_heads]])
        keys = heads[num_heads : num_heads + num_kv_heads]
        k.append([rotate(rms_norm(h, k_weight, eps), angles) for h in keys])
        v.append(heads[num_heads + num_kv_heads :])
    return {"q": q, "k": k, "v": v}


def silu_and_mul(gate_up: Sequence[float]) -> Vector:
    """The first half through g / (1 + e^-g), times the second half."""
    n = len(gate_up) // 2
    return [g / (1 + math.exp(-g)) * u for g, u in zip(gate_up[:n], gate_up[n:], strict=True)]


def kept(logits: Sequence[float], top_k: int, top_p: float) -> list[int]:
    """Indices that top-k, then top-p leave, ascending: the fewest most likely ones that reach top_p."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])[: top_k or len(logits)]
    probs = softmax([logits[i] for i in order])
    if top_p >= 1:
        return sorted(order)
    count, total = 0, 0.0
    while count == 0 or (total < top_p and count < len(order)):
        total += probs[count]
        count += 1
    return sorted(order[:count])


def _hash32(x: int) -> int:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def exponential_draws(keys: Sequence[int], vocab_size: int) -> Vector:
    """The engine's Exp(1) draws of a row with these two key numbers."""
    hashes = [_hash32(_hash32((i * 0x9E3779B1 + keys[0]) & 0xFFFFFFFF) ^ keys[1]) for i in range(vocab_size)]
    return [-math.log(((h >> 9) + 0.5) * 2.0**-23) for h in hashes]


def race(logits: Sequence[float], temperature: float, keys: Sequence[int]) -> int:
    """The token that wins: the largest logit / temperature - log E, or the largest logit at temperature 0."""
    if temperature == 0:
        scores = list(logits)
    else:
        draws = exponential_draws(keys, len(logits))
        scores = [x / temperature - math.log(e) for x, e in zip(logits, draws, strict=True)]
    return max(range(len(scores)), key=lambda i: scores[i])
