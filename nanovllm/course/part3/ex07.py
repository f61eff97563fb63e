"""3.7 Vocabulary-parallel embedding."""

import random
from typing import Any

from nanovllm.course import seams
from nanovllm.course.exercise import Example, Exercise, Group, Numeric, Variant
from nanovllm.course.numeric import numbers
from nanovllm.course.part3 import formulas
from nanovllm.course.part3.running import IN_ENGINE

_MADE = "from nanovllm.course.part3 import made_ranks\n"
_VECTORS = _MADE + "vectors = [[0.0], [10.0], [20.0], [30.0], [40.0]]  # 10 x token\n"
_BY_HAND = (
    _VECTORS
    + """\
seen = made_ranks.run_embedding(vectors, [4, 1], ranks=2)
result = [rank.flatten().tolist() for rank in seen["ranks"]]"""
)
_EDGES = (
    _VECTORS
    + """\
seen = made_ranks.run_embedding(vectors, [0, 2, 3, 4], ranks=2)  # the first and last token of each rank
result = [rank.flatten().tolist() for rank in seen["ranks"]]"""
)
_NONE_OF_MINE = (
    _VECTORS
    + """\
result = made_ranks.run_embedding(vectors, [3, 4, 3], ranks=2)["collectives"]  # rank 0 has none of them"""
)
_LOGITS = (
    _MADE
    + """\
vectors = [[1.0], [2.0], [3.0], [4.0], [5.0]]
seen = made_ranks.run_logits(vectors, [[-1.0], [10.0]], ranks=2)
result = [None if rank is None else rank.tolist() for rank in seen["ranks"]]"""
)


def _tokens(rng: random.Random, tokens: int, vocab: int, hidden: int, ranks: int) -> dict[str, Any]:
    return {
        "vectors": numbers(rng, vocab, hidden),
        "token_ids": [rng.randrange(vocab) for _ in range(tokens)],
        "ranks": ranks,
    }


def _states(rng: random.Random, rows: int, vocab: int, hidden: int, ranks: int) -> dict[str, Any]:
    return {"vectors": numbers(rng, vocab, hidden), "hidden": numbers(rng, rows, hidden), "ranks": ranks}


def _looked_up(vectors: Any, token_ids: list[int], ranks: int) -> Any:
    found = [vectors[token] for token in token_ids]
    return {"ranks": [found] * ranks, "collectives": [["all_reduce", "embed_tokens", [len(found), len(vectors[0])]]]}


def _joined(vectors: Any, hidden: Any, ranks: int) -> Any:
    local = -(-len(vectors) // ranks)
    return {
        "ranks": [formulas.linear(hidden, vectors), *[None] * (ranks - 1)],
        "collectives": [["gather", "lm_head", [len(hidden), local]]],
    }


_ALONE = "    if self.group.size == 1:\n        return self.ops.embedding(token_ids, self.weight)\n"
_MASKED = 'rows * mine.unsqueeze(-1), "embed_tokens"'
_SKIPS = """
def embed(self, token_ids):
    local = token_ids - self.first_row
    mine = (local >= 0) & (local < self.num_rows)
    rows = F.embedding(local.where(mine, 0), self.weight) * mine.unsqueeze(-1)
    return self.group.all_reduce(rows, "embed_tokens") if mine.any() else rows
"""
_WRITES_ROWS = """
def embed(self, token_ids):
    out = self.weight.new_zeros(len(token_ids), self.weight.shape[1])
    mine = (token_ids >= self.first_row) & (token_ids < self.first_row + self.num_rows)
    out[mine] = self.weight[token_ids[mine] - self.first_row]
    return self.group.all_reduce(out, "embed_tokens")
"""
_PRODUCT = """
def embed(self, token_ids):
    columns = torch.arange(self.num_rows, device=token_ids.device) + self.first_row
    hot = (token_ids.unsqueeze(1) == columns).to(self.weight.dtype)
    return self.group.all_reduce(hot @ self.weight, "embed_tokens")
"""

EXERCISE = Exercise(
    number="3.7",
    title="Vocabulary-parallel embedding",
    file="part3/ex07_vocab_embedding.py",
    pieces=(("embed", seams.EMBED), ("gather_logits", seams.GATHER_LOGITS)),
    hints=(
        "Write two columns, rank 0 and rank 1, and one line a token: what does each rank put in, so that the sum is "
        "right? Then the smallest and the largest token of each rank.",
        "local = token_ids - first_row; a mask says which are yours; local.where(mask, 0) is a safe index for the "
        "others, and multiplying by mask.unsqueeze(-1) wipes their rows out. Logits join on the last axis.",
        "mine = (local >= 0) & (local < num_rows); rows = F.embedding(local.where(mine, 0), weight); return "
        'all_reduce(rows * mine.unsqueeze(-1), "embed_tokens"). And parts = gather(F.linear(hidden, weight), '
        '"lm_head"); None stays None; torch.cat(parts, dim=-1)[:, :vocab_size].',
    ),
    groups=(
        Group(
            "each token from the rank that has it",
            1,
            "What does a rank put in for a token of another rank? Which is the first token of rank 1, and which is the "
            "last one of rank 0?",
            (
                Example(_BY_HAND, [[40.0, 10.0], [40.0, 10.0]]),
                Example(
                    _EDGES,
                    [[0.0, 20.0, 30.0, 40.0], [0.0, 20.0, 30.0, 40.0]],
                    (
                        "Tokens 0 and 2 are the first and the last of rank 0, 3 and 4 those of rank 1. Which "
                        "comparison is off by one?"
                    ),
                ),
            ),
        ),
        Group(
            "one all-reduce on every rank",
            1,
            "A collective needs all ranks. What does a rank do that has none of the tokens, and how many are made?",
            (Example(_NONE_OF_MINE, [["all_reduce", "embed_tokens", [3, 1]]]),),
            numeric=Numeric(
                (("tokens", 1, 4), ("vocab", 2, 7), ("hidden", 1, 4), ("ranks", 2, 3)),
                _tokens,
                _MADE + "result = made_ranks.run_embedding(vectors, token_ids, ranks)",
                _looked_up,
                cases=12,
            ),
        ),
        Group(
            "logits joined on rank 0, in the running engine",
            1,
            "Each rank has the logits of other tokens for the same rows. In which order do they stand, and what is at "
            "the end when the ranks do not divide the vocabulary?",
            (
                Example(_LOGITS, [[[-1.0, -2.0, -3.0, -4.0, -5.0], [10.0, 20.0, 30.0, 40.0, 50.0]], None]),
                IN_ENGINE,
            ),
            numeric=Numeric(
                (("rows", 1, 3), ("vocab", 2, 7), ("hidden", 1, 2), ("ranks", 2, 3)),
                _states,
                _MADE + "result = made_ranks.run_logits(vectors, hidden, ranks)",
                _joined,
                cases=10,
            ),
        ),
    ),
    bugs=(
        Variant(
            "leaves row 0 in for tokens of other ranks", "embed", ((_ALONE, ""), (_MASKED, 'rows, "embed_tokens"'))
        ),
        Variant("thinks token 0 of a rank is another's", "embed", (("local >= 0", "local > 0"),)),
        Variant(
            "lets the upper end belong to the rank", "embed", (("local < self.num_rows", "local <= self.num_rows"),)
        ),
        Variant(
            "looks at the lower end only",
            "embed",
            (
                ("(local >= 0) & (local < self.num_rows)", "local >= 0"),
                ("local.where(mine, 0)", "local.where(mine, 0).clamp(max=self.num_rows - 1)"),
            ),
        ),
        Variant(
            "takes token ids for rows", "embed", (("local.where(mine, 0)", "token_ids.clamp(max=self.num_rows - 1)"),)
        ),
        Variant(
            "adds nothing up",
            "embed",
            (('self.group.all_reduce(rows * mine.unsqueeze(-1), "embed_tokens")', "rows * mine.unsqueeze(-1)"),),
        ),
        Variant("skips the all-reduce when it has no token", "embed", source=_SKIPS),
        Variant("multiplies by the mask along the wrong axis", "embed", (("mine.unsqueeze(-1)", "mine.unsqueeze(0)"),)),
        Variant(
            "joins the logits below each other",
            "gather_logits",
            (("torch.cat(parts, dim=-1)", "torch.cat(parts, dim=0)"),),
        ),
        Variant(
            "keeps the logits of the padding",
            "gather_logits",
            (("return whole[:, : self.vocab_size]", "return whole"),),
        ),
        Variant(
            "returns its own logits where it is not rank 0",
            "gather_logits",
            (("return None", "return F.linear(hidden, self.weight)"),),
        ),
        Variant("joins the ranks backwards", "gather_logits", (("torch.cat(parts,", "torch.cat(parts[::-1],"),)),
    ),
    harmless=(
        Variant("writes its rows into zeros", "embed", source=_WRITES_ROWS),
        Variant("multiplies by a matrix of ones and zeros", "embed", source=_PRODUCT),
        Variant(
            "cuts the padding before it joins",
            "gather_logits",
            (
                (
                    "torch.cat(parts, dim=-1)",
                    "torch.cat([p[:, : max(0, self.vocab_size - i * self.num_rows)] for i, p in enumerate(parts)], -1)",
                ),
            ),
        ),
    ),
    uses_torch=True,
)
