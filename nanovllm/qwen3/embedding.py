"""The vocabulary split over ranks: token embedding on the way in, logits on the way out."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanovllm.qwen3.placement import Placement
from nanovllm.qwen3.weights import Shard, Weights, empty_parameter


class VocabParallelEmbedding(nn.Module):
    """This rank's rows of the vocabulary. weight: [ceil(vocab_size / ranks), hidden_size].

    When the ranks do not divide the vocabulary, the rows past its end are zeros and never looked up.
    """

    def __init__(self, vocab_size: int, hidden_size: int, at: Placement) -> None:
        super().__init__()
        self.group, self.ops = at.group, at.ops
        self.vocab_size = vocab_size
        self.num_rows = -(-vocab_size // at.group.size)
        self.first_row = at.group.rank * self.num_rows
        self.num_real_rows = max(0, min(self.num_rows, vocab_size - self.first_row))
        self.weight = empty_parameter(self.num_rows, hidden_size, dtype=at.dtype, device=at.device)

    def load(self, reader: Weights, prefix: str) -> None:
        """Fill this rank's rows from `prefix`.weight [vocab_size, hidden_size]."""
        self.weight[self.num_real_rows :] = 0
        real = self.num_real_rows
        rows = Shard(0, min(self.first_row, self.vocab_size), real, self.vocab_size)
        reader.fill(self.weight, f"{prefix}.weight", into=(0, real), shard=rows)

    def forward(self, token_ids: Tensor) -> Tensor:
        """[T] int64 -> [T, hidden_size]. A rank contributes zeros for tokens of other ranks; one all-reduce adds up."""
        if self.group.size == 1:
            return self.ops.embedding(token_ids, self.weight)
        local = token_ids - self.first_row
        mine = (local >= 0) & (local < self.num_rows)
        rows = F.embedding(local.where(mine, 0), self.weight)
        return self.group.all_reduce(rows * mine.unsqueeze(-1), "embed_tokens")


class ParallelLMHead(VocabParallelEmbedding):
    """Logits of this rank's vocabulary rows, gathered to rank 0. May share its weight with the embedding."""

    def logits(self, hidden: Tensor) -> Tensor | None:
        """[n, hidden_size] -> [n, vocab_size] on rank 0, None on the others."""
        parts = self.group.gather(self.ops.logits(hidden, self.weight), "lm_head")
        if parts is None:
            return None
        # Shards are slices of the vocabulary: they join on the last axis, and the padding rows fall off its end.
        whole = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        return whole[:, : self.vocab_size]
