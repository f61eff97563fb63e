"""Tools for a class: hand-outs, bulk grading, tables for the instructor's system.

Read in this order: `release.py` and `closed_book.py` (what learners get), `submissions.py` (what they hand in),
`task.py` (one file, one exercise), `bulk.py` (all of them, on cores or on Dask), `journal.py` (what is graded),
`tables.py` (CSV, JSON, Gradescope), `command.py` (the command line).
"""
