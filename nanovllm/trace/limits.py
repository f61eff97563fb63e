"""Limits so small that requests compete for blocks and budgets within a few steps."""

SMALL_LIMITS = {
    "kvcache_block_size": 4,
    "num_kvcache_blocks": 30,
    "max_num_seqs": 5,
    "max_num_batched_tokens": 32,
    "max_model_len": 116,
}
