"""Part 4, the whole engine: startup, step(), generate().

Read in this order: `llm_engine.py` (one step), `llm.py` (generate and chat), `startup.py` (the order of construction),
`outputs.py`, `metrics.py` and `texts.py` (what comes back). With several ranks: `model_ranks.py`, `ranks.py`,
`control_channel.py`.
"""
