"""Fused Triton kernels of the model: each does in one pass over memory what takes the torch reference several.

`ops.py` one folder up says what each computes and chooses between the two.
"""
