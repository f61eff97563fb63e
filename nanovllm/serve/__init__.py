"""Part 4, the online wrapper around the engine.

policy.py: which step comes next when arrivals never end; the longest gap between two tokens is bounded.
"""
