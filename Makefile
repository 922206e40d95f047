# Every task a developer needs. `make test` and `make demo` do all set-up by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2

.PHONY: help setup test check bench-core clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Fries needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable '.[plots]' hypothesis mypy 'pandas<3' pandas-stubs pyarrow-stubs \
		pytest pytest-timeout pytest-xdist ruff types-networkx
	@touch $@

setup: $(STAMP)  ## create the virtual environment with pinned versions

test: check  ## lint, types and every test
	$(BIN)/python -m pytest -n $(WORKERS)

check: $(STAMP)  ## ruff and mypy --strict
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

bench-core: $(STAMP)  ## planning, checking and simulation speed (pure core)
	$(BIN)/python -m benchmarks.core

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
