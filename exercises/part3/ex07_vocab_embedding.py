# ruff: noqa: F401 (imports that you may need)
"""3.7 Vocabulary-parallel embedding: each rank knows the vectors of some tokens, and still all ranks get all vectors.

The vocabulary is split over N ranks, ceil(vocab_size / N) rows each; rank r holds the tokens from r x rows on. When N
does not divide vocab_size the last rows of the last ranks are padding: zeros, for tokens that do not exist.

    vocab_size 5, N = 2, 3 rows each:    rank 0: tokens 0 1 2       rank 1: tokens 3 4 and a row of padding

Embedding: a rank looks up the tokens it has and contributes zeros for the others; one all-reduce (sum) fills every row,
since each token belongs to exactly one rank. By hand, for the tokens [4, 1] with vectors of one number, 10 x token:

    rank 0: [0, 10]       rank 1: [40, 0]       sum: [40, 10] on both

Logits go the other way round: each rank multiplies with its rows and has the logits of its tokens only. They are
gathered on rank 0, which samples; the others need none.
"""

from nanovllm.course import ExerciseNotDone
import torch
import torch.nn.functional as F
from torch import Tensor

from nanovllm.qwen3.embedding import ParallelLMHead, VocabParallelEmbedding


def embed(embedding: VocabParallelEmbedding, token_ids: Tensor) -> Tensor:
    """token_ids [T] int64, the same on every rank -> [T, hidden_size], the same on every rank.

    embedding.weight: [num_rows, hidden_size], this rank's rows. embedding.first_row: the token of row 0.
    embedding.num_rows: rows, padding included. F.embedding(rows, weight) looks rows up; an index outside of
    0 .. num_rows - 1 is an error there. embedding.group.all_reduce(x, "embed_tokens") returns the sum over the ranks;
    call it once on every rank, even if none of the tokens is this rank's: the others wait for it.
    """
    raise ExerciseNotDone("3.7 vocab_embedding", "which tokens are mine? what shall I look up for the others?")


def gather_logits(head: ParallelLMHead, hidden: Tensor) -> Tensor | None:
    """hidden [n, hidden_size] -> logits [n, vocab_size] on rank 0, None on the others.

    head.weight: [num_rows, hidden_size], this rank's rows. head.group.gather(x, "lm_head") returns the list of all
    ranks' tensors, in rank order, on rank 0, and None elsewhere. head.vocab_size: how many tokens exist.
    """
    raise ExerciseNotDone("3.7 vocab_embedding", "along which axis do the parts join? what is left over?")
