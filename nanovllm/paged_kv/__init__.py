"""Part 2, paged KV: where K/V live and how they reach attention.

Read in this order: `batch.py` (from block tables to tensors), `context.py` (what attention needs to know of a step),
`cache.py` and `memory.py` (the pool and its budget), `attention.py` and `backends/`, `model_runner.py` (one step on one
rank). Then what only a GPU needs: `kernels/`, `cuda_graphs.py` and `prefill_graphs.py` (recorded steps, with
`fixed_inputs.py` and `small_copies.py`), `in_flight.py` (steps whose tokens nobody has read yet), `compile_ahead.py`.
"""
