"""Part 2, paged KV: where K/V live and how they reach attention.

Read in this order: `batch.py` (from block tables to tensors), `context.py` (what attention needs to know of a step),
`cache.py` (the pool and its budget), `attention.py` and `backends/`, `model_runner.py` (one step on one rank).
"""
