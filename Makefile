# Every task a developer needs. `make test` and `make demo` do all set-up by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2

.PHONY: help setup test test-all test-spark-4.2 check java explore bench-core bench-engine bench-pace consistency fuzz chaos soak demo models \
	experiments clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z0-9.%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(STAMP): pyproject.toml lab/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Fries needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip==26.3'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--editable '.[spark]' --editable ./lab --group dev
	@touch $@

setup: $(STAMP)  ## create the virtual environment with pinned versions

PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: check java  ## lint, types and the tests of every change: 8 minutes
	$(PYTEST) -m 'not complete'

test-all: check java  ## the complete matrix, and flows on every Spark that is supported: what CI runs
	$(PYTEST)
	$(MAKE) test-spark-4.2

test-spark-4.2: java  ## flows, states and checkpoints on Spark 4.2, in a virtual environment of its own
	@WORKERS=$(WORKERS) tools/test-with $(PYTHON) 4.2

test-python-3.%: java  ## the same on another Python: make test-python-3.12, make test-python-3.13
	@WORKERS=$(WORKERS) tools/test-with python3.$* 4.3

java:
	@tools/ensure-java

check: $(STAMP)  ## ruff and mypy --strict
	$(BIN)/ruff check src lab/src tests benchmarks examples
	$(BIN)/ruff format --check src lab/src tests benchmarks examples
	$(BIN)/mypy

explore: $(STAMP)  ## the protocol in Spark's life: all interleavings of small cases, an hour of random large ones
	$(BIN)/python -m fries_lab.world --minutes 60

bench-core: $(STAMP)  ## planning, checking and simulation speed (pure core)
	$(BIN)/python -m benchmarks.core

bench-pace: $(STAMP) java  ## throughput of flows against plain Spark by cost of a call, chains, wide rows
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group pace
	$(BIN)/python -m benchmarks.pace

bench-engine: $(STAMP) java  ## delay of changes and cost of flows on a local Spark
	$(BIN)/python -m benchmarks.engine

consistency: $(STAMP) java  ## every scheduler over 100,000 audited tuples on a local Spark
	$(BIN)/python -m benchmarks.consistency

chaos: $(STAMP) java  ## kill workers, executors and drivers on a local cluster, 210 times, in as many sittings as you like
	$(BIN)/python -m benchmarks.chaos

soak: $(STAMP) java  ## an hour of changes: memory, threads and files must not grow
	$(BIN)/python -m benchmarks.soak

fuzz: $(STAMP)  ## a million broken inputs for everything that reads bytes of others
	$(BIN)/python -m benchmarks.fuzz

demo: $(STAMP) java  ## the paper's running example, changed while Spark runs it, with the proof
	$(BIN)/python examples/fraud_detection.py

experiments: $(STAMP) java  ## the paper's experiments on a local Spark: tables, figures and a page of results
	$(BIN)/fries-lab bench all

models: $(STAMP)  ## train the models of the workflows again (installs PyTorch)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group train
	$(BIN)/python -m fries_lab.workloads.training

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) .venv-* out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
