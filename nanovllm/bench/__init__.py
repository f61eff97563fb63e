"""The reproducible workload matrix: each experiment is one command that leaves raw data, plots and its environment.

    nanovllm bench all --quick

`record` has the results' dataclasses, `experiments` the five experiments, `environment` what the figures depend on,
`formulas` how each figure is made, `report` and `plots` what is looked at, `compare` two runs side by side.
"""
