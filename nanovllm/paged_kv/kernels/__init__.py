"""Triton kernels of the paged cache: store, decode attention, prefill attention. Any block size, sm75 and newer.

They also run on CPU tensors when TRITON_INTERPRET=1 is set before triton is imported, which is how the tests and the
notebooks step through them.
"""
