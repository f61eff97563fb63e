"""The whole Qwen3 model, top down at the end of the file: embedding, decoder layers, final norm, logits."""

import torch
from torch import Tensor, nn

from nanovllm.paged_kv.attention import Attention
from nanovllm.paged_kv.context import ForwardContext
from nanovllm.qwen3 import small_batch
from nanovllm.qwen3.config import Qwen3Config
from nanovllm.qwen3.embedding import ParallelLMHead, VocabParallelEmbedding
from nanovllm.qwen3.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from nanovllm.qwen3.norm import RMSNorm
from nanovllm.qwen3.placement import Placement
from nanovllm.qwen3.rotary import RotaryAngles, RotaryEmbedding
from nanovllm.qwen3.weights import Weights


class Qwen3Attention(nn.Module):
    """Grouped-query attention with normalised queries and keys (QK norm), over the paged cache."""

    def __init__(self, config: Qwen3Config, name: str, at: Placement) -> None:
        super().__init__()
        hidden, heads, kv_heads = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        self.ops = at.ops
        bias = config.attention_bias
        self.qkv_proj = QKVParallelLinear(hidden, self.head_dim, heads, kv_heads, bias, at)
        self.num_heads, self.num_kv_heads = self.qkv_proj.num_heads, self.qkv_proj.num_kv_heads
        self.o_proj = RowParallelLinear(heads * self.head_dim, hidden, bias, f"{name}.o_proj", at)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, at)
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps, at)
        self.attention = Attention(self.num_heads, self.num_kv_heads, self.head_dim, at.backend)

    def load(self, reader: Weights, prefix: str) -> None:
        """Fill from the checkpoint tensors `prefix`.q_proj and so on."""
        self.qkv_proj.load(reader, (f"{prefix}.q_proj", f"{prefix}.k_proj", f"{prefix}.v_proj"))
        self.o_proj.load(reader, f"{prefix}.o_proj")
        self.q_norm.load(reader, f"{prefix}.q_norm")
        self.k_norm.load(reader, f"{prefix}.k_norm")

    def forward(self, x: Tensor, angles: RotaryAngles, context: ForwardContext) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        q_weight, k_weight = self.q_norm.weight, self.k_norm.weight
        out = self.ops.attend(self.qkv_proj(x), q_weight, k_weight, self.q_norm.eps, angles, self.attention, context)
        return self.o_proj(out.flatten(1))


class Qwen3MLP(nn.Module):
    """SwiGLU feed-forward: down(silu(gate(x)) * up(x)) (Shazeer, 2020, arXiv:2002.05202)."""

    def __init__(self, config: Qwen3Config, name: str, at: Placement) -> None:
        super().__init__()
        self.ops = at.ops
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_up_proj = MergedColumnParallelLinear(hidden, [inner, inner], at)
        self.down_proj = RowParallelLinear(inner, hidden, False, f"{name}.down_proj", at)

    def load(self, reader: Weights, prefix: str) -> None:
        """Fill from `prefix`.gate_proj, up_proj and down_proj."""
        self.gate_up_proj.load(reader, [f"{prefix}.gate_proj", f"{prefix}.up_proj"])
        self.down_proj.load(reader, f"{prefix}.down_proj")

    def forward(self, x: Tensor) -> Tensor:
        """[T, hidden_size] -> [T, hidden_size]."""
        return self.down_proj(self.ops.silu_and_mul(self.gate_up_proj(x)))


class Qwen3DecoderLayer(nn.Module):
    """Norm, attention, norm, feed-forward; the residual stream travels beside the normalised input."""

    def __init__(self, config: Qwen3Config, index: int, at: Placement) -> None:
        super().__init__()
        name = f"layers.{index}"
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, at)
        self.self_attn = Qwen3Attention(config, f"{name}.self_attn", at)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, at)
        self.mlp = Qwen3MLP(config, f"{name}.mlp", at)

    def load(self, reader: Weights, prefix: str) -> None:
        """Fill the layer's four parts."""
        for part in ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"):
            getattr(self, part).load(reader, f"{prefix}.{part}")

    def forward(
        self, x: Tensor, residual: Tensor | None, angles: RotaryAngles, context: ForwardContext
    ) -> tuple[Tensor, Tensor]:
        """(layer output, residual), each [T, hidden_size]; the sum of the two is the residual stream.

        On a GPU, with few rows, the output may be [parts, T, hidden_size]: the next norm adds them up.
        """
        products = small_batch.products(self, x)
        if products is not None:
            return small_batch.forward(self, products, x, residual, angles, context)
        if residual is None:
            x, residual = self.input_layernorm(x), x
        else:
            x, residual = self.input_layernorm.add_and_norm(x, residual)
        x = self.self_attn(x, angles, context)
        x, residual = self.post_attention_layernorm.add_and_norm(x, residual)
        return self.mlp(x), residual


class Qwen3ForCausalLM(nn.Module):
    """Token ids and positions in, hidden states or logits out. One rank's shard of it, for group.size ranks."""

    def __init__(self, config: Qwen3Config, max_positions: int, at: Placement) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = VocabParallelEmbedding(config.vocab_size, config.hidden_size, at)
        self.decoder_layers = [Qwen3DecoderLayer(config, i, at) for i in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(self.decoder_layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, at)
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, at)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.rotary = RotaryEmbedding(config, max_positions, at.device)

    @torch.no_grad()
    def load(self, reader: Weights) -> None:
        """Fill every parameter from the checkpoint; refuse it unless every tensor is used as the config says."""
        self.embed_tokens.load(reader, "model.embed_tokens")
        for index, layer in enumerate(self.decoder_layers):
            layer.load(reader, f"model.layers.{index}")
        self.norm.load(reader, "model.norm")
        if not self.config.tie_word_embeddings:
            self.lm_head.load(reader, "lm_head")
        tied = frozenset({"lm_head.weight"}) if self.config.tie_word_embeddings else frozenset()
        reader.finish(ignored=tied)

    @property
    def attention_layers(self) -> list[Attention]:
        """The paged attention of each layer, in order: what the cache is bound to."""
        return [layer.self_attn.attention for layer in self.decoder_layers]

    def forward(self, input_ids: Tensor, positions: Tensor, context: ForwardContext) -> Tensor:
        """[T] ids and positions -> [T, hidden_size] final hidden states."""
        angles = self.rotary.at(positions)
        x, residual = self.embed_tokens(input_ids), None
        for layer in self.decoder_layers:
            x, residual = layer(x, residual, angles, context)
        assert residual is not None
        return self.norm.add_and_norm(x, residual)[0]

    def share_ids(self, input_ids: Tensor) -> None:
        """Overwrite `input_ids` [B] int64 with rank 0's: only rank 0 samples, and the next step begins with its ids."""
        self.lm_head.group.broadcast(input_ids, "sampled ids")

    def compute_logits(self, hidden: Tensor, context: ForwardContext) -> Tensor | None:
        """Logits [num_logits, vocab_size] of the rows that need them, on rank 0; None on the others."""
        if context.last_token_rows is not None:
            hidden = hidden[context.last_token_rows]
        return self.lm_head.logits(hidden)
