# One command for each thing. Needs make, a shell and Python 3.11, 3.12 or 3.13; the rest goes into ./.venv.
#   make PYTHON=/path/to/python3.12 ...   another Python         make VENV=/path ...   another place
SHELL := /bin/sh
VENV ?= .venv
PY := $(VENV)/bin/python
# Tests start engines and kernels: two at a time is what two cores and 8 GB carry.
WORKERS ?= 2
# Each cell of notebooks/ must print what is committed; a widget's picture is not compared, its text is.
NBVAL := --nbval --nbval-current-env --nbval-cell-timeout=120 --nbval-sanitize-with=notebooks/nbval.cfg
# e.g. make test ARGS="-k packaging"
ARGS ?=
export VENV PYTHON

.DEFAULT_GOAL := help
.PHONY: help demo test notebooks lab diagrams lint format hooks venv-demo venv-notebooks venv-dev clean

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1	\2/p' $(firstword $(MAKEFILE_LIST))

demo: venv-demo ## install what it needs and run the engine on the shipped checkpoint
	@$(VENV)/bin/nanovllm demo $(ARGS)

test: venv-dev ## install what it needs and run the whole test suite, notebooks too
	@$(PY) -m pytest -n $(WORKERS) --dist loadfile $(NBVAL) tests notebooks $(ARGS)

notebooks: venv-dev ## check the notebooks: form, links, spelling, and every cell's output
	@$(PY) -m pytest -n $(WORKERS) --dist loadfile $(NBVAL) tests/notebooks notebooks $(ARGS)

lab: venv-notebooks ## open the course in JupyterLab
	@$(PY) scripts/notebooks.py lab $(ARGS)

diagrams: venv-notebooks ## draw the diagrams again
	@$(PY) -m diagrams

lint: venv-dev ## ruff check, ruff format --check, mypy
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

format: venv-dev ## mend what ruff can mend
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

hooks: venv-dev ## run the linters at every commit (pre-commit)
	@$(PY) -m pre_commit install

clean: ## remove the environment, build outputs and caches
	rm -rf $(VENV) build dist nanovllm.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

venv-demo venv-notebooks venv-dev:
	@sh scripts/venv.sh $(@:venv-%=%)
