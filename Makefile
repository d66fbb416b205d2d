# Every target sets up .venv itself and is quick once that is done. CI runs these same targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help run test lint check format toy bench

help:     ## list the targets
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 10

run: $(VENV)/ready     ## train on long-tailed digits with and without SemiGPC, into demo/
	$(BIN)/semigpc demo --out demo

test: $(VENV)/ready     ## all tests, a process a core
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

lint: $(VENV)/ready     ## format, lint, types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

check: lint     ## the same and the fast tests: what pre-commit runs
	$(BIN)/python -m pytest -m "not slow"

format: $(VENV)/ready     ## format and fix what can be fixed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

toy: $(VENV)/ready     ## draw the toy figures into toy/
	$(BIN)/semigpc toy --out toy

bench: $(VENV)/ready     ## time an update, a training step and the labelling of a million rows against their peers
	mkdir -p bench
	$(BIN)/semigpc bench update --plot bench/update.png
	$(BIN)/semigpc bench step
	$(BIN)/semigpc bench label

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "semigpc needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
