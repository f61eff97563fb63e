"""Tiny products are faster on one thread, and their sums come in one order."""

from fixtures import one_thread as one_thread
