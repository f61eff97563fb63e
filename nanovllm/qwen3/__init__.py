"""Part 3, the model: Qwen3 layers and their tensor-parallel shards, weight loading, and the sampler.

Read in this order: `config.py`, `ops.py` (the small operations), `norm.py`, `rotary.py`, `linear.py`, `embedding.py`,
`model.py` (the whole model), `weights.py` (from disk to parameters), `parallel.py` (what crosses ranks), `sampler.py`.
"""
