"""3.3 QK norm and grouped-query attention."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.numeric import numbers
from nanovllm.course.numeric.checkpoint import engine_example
from nanovllm.course.part3 import formulas

_PLAIN = "import torch\nfrom nanovllm.course.part3 import plain_backend\n"
_BY_HAND = (
    _PLAIN
    + """\
q = torch.tensor([[[1.0]]])  # one query, one head, D = 1
k = torch.tensor([[[0.0]], [[1.0986123]]])  # two keys: 0 and ln 3
v = torch.tensor([[[10.0]], [[20.0]]])
result = round(plain_backend.grouped_attention(q, k, v, 1.0).item(), 3)"""
)
_WHO = (
    _PLAIN
    + """\
q = torch.zeros(1, 4, 1)  # four query heads that see two key/value heads
k = torch.zeros(1, 2, 1)
v = torch.tensor([[[5.0], [7.0]]])
result = plain_backend.grouped_attention(q, k, v, 1.0).flatten().tolist()"""
)
_LAST = (
    _PLAIN
    + """\
q, k = torch.zeros(2, 1, 1), torch.zeros(4, 1, 1)  # the two newest of four tokens
v = torch.tensor([1.0, 3.0, 5.0, 7.0]).view(4, 1, 1)
result = [round(number, 3) for number in plain_backend.grouped_attention(q, k, v, 1.0).flatten().tolist()]"""
)
_SPLIT = """\
from nanovllm.course.part3 import made
qkv = [[1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0]]  # q0 q0 q1 q1 k0 k0 v0 v0 at position 0: nothing turns
seen = made.heads_of(qkv, 2, 1, [1.0, 1.0], [5.0, 5.0], 0.0, 100.0)
result = {name: [[round(n, 3) for n in head] for head in seen[name][0].tolist()] for name in ("q", "k", "v")}"""


def _attention(rng: random.Random, queries: int, cached: int, kv_heads: int, share: int, dim: int) -> dict[str, Any]:
    return {
        "q": numbers(rng, queries, kv_heads * share, dim),
        "k": numbers(rng, queries + cached, kv_heads, dim),
        "v": numbers(rng, queries + cached, kv_heads, dim),
        "scale": rng.choice([1.0, 0.5]),
    }


def _row(rng: random.Random, tokens: int, kv_heads: int, share: int, pairs: int) -> dict[str, Any]:
    heads, dim = kv_heads * share, 2 * pairs
    return {
        "qkv": numbers(rng, tokens, (heads + 2 * kv_heads) * dim),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "q_weight": numbers(rng, dim),
        "k_weight": numbers(rng, dim),
        "eps": 1e-6,
        "theta": 100.0,
    }


def _heads(**inputs: Any) -> Any:
    found = formulas.heads_of(**inputs)
    return found | {"out": found["q"]}


_ATTENTION = (
    _PLAIN + "result = plain_backend.grouped_attention(torch.tensor(q), torch.tensor(k), torch.tensor(v), scale)"
)
_HEADS = """\
from nanovllm.course.part3 import made
result = made.heads_of(qkv, num_heads, num_kv_heads, q_weight, k_weight, eps, theta)"""


def _numeric(queries: int, cached: int, kv_heads: int, share: int, cases: int) -> Numeric:
    sizes = (
        ("queries", 1, queries),
        ("cached", 0, cached),
        ("kv_heads", 1, kv_heads),
        ("share", 1, share),
        ("dim", 1, 3),
    )
    return Numeric(sizes, _attention, _ATTENTION, formulas.attention, cases=cases)


_IN_ENGINE = engine_example(
    "from nanovllm.course.part3.plain_backend import PlainBackend",
    "for layer in llm.model_runner.model.attention_layers:",
    "    layer.backend = PlainBackend()  # every attention goes through your function",
)

_SPLITTING = """\
    heads = qkv.view(qkv.shape[0], -1, attention.head_dim)
    q, k, v = heads.split([attention.num_heads, attention.num_kv_heads, attention.num_kv_heads], dim=1)
"""
_SIGNATURE = "def attend(self, qkv, q_weight, k_weight, eps, angles, attention, context):\n"
_TURN_FIRST = (
    _SIGNATURE
    + _SPLITTING
    + """\
    q = self.rms_norm(apply_rotary(q, angles.cos, angles.sin), q_weight, eps)
    k = self.rms_norm(apply_rotary(k, angles.cos, angles.sin), k_weight, eps)
    return attention(q, k, v, context)
"""
)
_LONG_NORM = (
    _SIGNATURE
    + _SPLITTING
    + """\
    def norm(x, weight):
        flat = self.rms_norm(x.flatten(1), weight.repeat(x.shape[1]), eps)
        return flat.view(x.shape)
    q = apply_rotary(norm(q, q_weight), angles.cos, angles.sin)
    k = apply_rotary(norm(k, k_weight), angles.cos, angles.sin)
    return attention(q, k, v, context)
"""
)
_BY_SLICES = (
    _SIGNATURE
    + """\
    dim, hq, hkv = attention.head_dim, attention.num_heads, attention.num_kv_heads
    q = self.rms_norm(qkv[:, : hq * dim].reshape(-1, hq, dim), q_weight, eps)
    k = self.rms_norm(qkv[:, hq * dim : (hq + hkv) * dim].reshape(-1, hkv, dim), k_weight, eps)
    v = qkv[:, (hq + hkv) * dim :].reshape(-1, hkv, dim)
    return attention(apply_rotary(q, angles.cos, angles.sin), apply_rotary(k, angles.cos, angles.sin), v, context)
"""
)
_ONE_BY_ONE = """
def grouped_attention(q, k, v, scale):
    out = torch.empty_like(q)
    share, offset = q.shape[1] // k.shape[1], k.shape[0] - q.shape[0]
    for i in range(q.shape[0]):
        for h in range(q.shape[1]):
            keys, values = (t[: offset + i + 1, h // share] for t in (k, v))
            out[i, h] = ((keys @ q[i, h]) * scale).softmax(0) @ values
    return out
"""
_EINSUM = """
def grouped_attention(q, k, v, scale):
    grouped = q.unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("qhgd,khd->hgqk", grouped, k) * scale
    hidden = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).tril(k.shape[0] - q.shape[0]).logical_not()
    return torch.einsum("hgqk,khd->qhgd", scores.masked_fill(hidden, -1e30).softmax(-1), v).flatten(1, 2)
"""

EXERCISE = Exercise(
    number="3.3",
    title="QK norm and grouped-query attention",
    file="part3/ex03_qk_norm_gqa.py",
    pieces=(("attend", seams.ATTEND), ("grouped_attention", seams.GROUPED_ATTENTION)),
    hints=(
        "Begin with grouped_attention for one head and one query: scores, softmax, weighted sum. Then all queries with "
        "the mask, then several heads. For attend write the shapes beside each line.",
        "k.repeat_interleave(n, dim=1) gives heads 0 0 1 1; with the heads in front (transpose(0, 1)) one matrix "
        "product does all of them. Hidden scores become -inf before softmax. In attend: view as [T, heads, D], split "
        "on the heads, rms_norm, apply_rotary.",
        "position = arange(Lq) + Lk - Lq; visible = arange(Lk) <= position.unsqueeze(1); weights = "
        "scores.masked_fill(~visible, -inf).softmax(-1); (weights @ values).transpose(0, 1). And q = apply_rotary("
        "ops.rms_norm(q, q_weight, eps), angles.cos, angles.sin), the same for k with k_weight, then "
        "attention(q, k, v, context).",
    ),
    groups=(
        Group(
            "attention of one head",
            1,
            "Write down scores, weights (they add up to 1 over the keys) and result for the smallest case.",
            (Example(_BY_HAND, 17.5),),
            numeric=_numeric(queries=4, cached=0, kv_heads=1, share=1, cases=8),
        ),
        Group(
            "heads that share keys and values",
            1,
            "Which key/value head does query head h use? Neighbours share: write the list for 4 and 2.",
            (Example(_WHO, [5.0, 5.0, 7.0, 7.0]),),
            numeric=_numeric(queries=2, cached=0, kv_heads=3, share=3, cases=8),
        ),
        Group(
            "queries behind a cached prefix",
            1,
            "With fewer queries than keys the queries are the newest tokens. At which position does query 0 stand, and "
            "what does it see?",
            (Example(_LAST, [3.0, 4.0]),),
            numeric=_numeric(queries=3, cached=4, kv_heads=2, share=2, cases=8),
        ),
        Group(
            "heads split, normalised and turned",
            1,
            "Which numbers of the row are q, k and v? What happens to each of the three, in what order, and with whose "
            "weight?",
            (Example(_SPLIT, {"k": [[5.0, 5.0]], "q": [[1.0, 1.0], [1.0, 1.0]], "v": [[4.0, 4.0]]}),),
            numeric=Numeric(
                (("tokens", 1, 3), ("kv_heads", 1, 2), ("share", 1, 3), ("pairs", 1, 2)), _row, _HEADS, _heads, cases=10
            ),
        ),
        Group(
            "the running engine",
            1,
            "The layers alone agree and the engine does not: what reaches your function there that the small cases do "
            "not have? Print the shapes.",
            (_IN_ENGINE,),
        ),
    ),
    bugs=(
        Variant("turns before it normalises", "attend", source=_TURN_FIRST),
        Variant("normalises all heads of a token together", "attend", source=_LONG_NORM),
        Variant(
            "normalises keys with the weight of the queries", "attend", (("(k, k_weight, eps)", "(k, q_weight, eps)"),)
        ),
        Variant(
            "does not turn the keys",
            "attend",
            (
                (
                    "k = apply_rotary(self.rms_norm(k, k_weight, eps), angles.cos, angles.sin)",
                    "k = self.rms_norm(k, k_weight, eps)",
                ),
            ),
        ),
        Variant("leaves the queries without norm", "attend", (("self.rms_norm(q, q_weight, eps)", "q"),)),
        Variant(
            "turns the values too",
            "attend",
            (("attention(q, k, v, context)", "attention(q, k, apply_rotary(v, angles.cos, angles.sin), context)"),),
        ),
        Variant("takes the values for the keys", "attend", (("q, k, v = heads", "q, v, k = heads"),)),
        Variant(
            "gives query heads 0 1 0 1 to key heads",
            "grouped_attention",
            (("t.repeat_interleave(share, dim=1)", "t.repeat(1, share, 1)"),),
        ),
        Variant(
            "lets query 0 see key 0 only, prefix or not", "grouped_attention", ((" + (num_keys - num_queries)", ""),)
        ),
        Variant("lets every query see every key", "grouped_attention", (("masked_fill(~visible, -torch.inf).", ""),)),
        Variant("hides a query's own key", "grouped_attention", (("<= position", "< position"),)),
        Variant("forgets the scale", "grouped_attention", ((" * scale", ""),)),
        Variant("takes the softmax over the queries", "grouped_attention", (("softmax(dim=-1)", "softmax(dim=-2)"),)),
        Variant("hides with a score of 0", "grouped_attention", (("~visible, -torch.inf", "~visible, 0.0"),)),
    ),
    harmless=(
        Variant("cuts q, k and v out of the row by slices", "attend", source=_BY_SLICES),
        Variant("goes query by query and head by head", "grouped_attention", source=_ONE_BY_ONE),
        Variant("keeps the groups on an axis of their own", "grouped_attention", source=_EINSUM),
    ),
    uses_torch=True,
)
