# Every target sets up .venv itself and is quick once that is done. CI runs these same targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Random cases of test-all: where they start, and how many times as many as in test.
SEED   ?= 0
FUZZ   ?= 10
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-cpus lint check format toy bench docs walkthrough wheel

help:     ## list the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

run: $(VENV)/ready     ## train on long-tailed digits with and without SemiGPC, into demo/
	$(BIN)/semigpc demo --out demo

test: $(VENV)/ready     ## every test that a change could break (nine minutes on two cores)
	OMP_NUM_THREADS=1 $(PYTEST) -m "not nightly"

test-all: $(VENV)/ready     ## all tests, with FUZZ times as many random cases, from SEED (TESTS=tests/cli for some)
	SEMIGPC_FUZZ_SEED=$(SEED) SEMIGPC_FUZZ_TIMES=$(FUZZ) OMP_NUM_THREADS=1 $(PYTEST) $(TESTS)

# Instruction sets, rounding and threads of other processors, as far as the libraries can emulate them.
CPU_as-it-is    := OMP_NUM_THREADS=1
CPU_two-threads := OMP_NUM_THREADS=2
CPU_no-vectors  := OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41
CPU_avx2        := OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=AVX2 ONEDNN_MAX_CPU_ISA=AVX2
CPU_mixed       := OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=SSE4_2
CPUS  ?= as-it-is two-threads no-vectors avx2 mixed
NUMBERS := $(addprefix tests/,gp buffers refiners algorithms addons estimator paper)

test-cpus: $(VENV)/ready     ## the tests whose results are numbers, as on other processors (CPUS=avx2 TESTS=tests/gp)
	@failed=; $(foreach cpu,$(CPUS),echo "== $(cpu)"; \
	env $(CPU_$(cpu)) $(PYTEST) -m "not nightly" $(or $(TESTS),$(NUMBERS)) || failed="$$failed $(cpu)";) \
	test -z "$$failed" || { echo "failed on:$$failed"; exit 1; }

lint: $(VENV)/ready     ## format, lint, types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

check: lint     ## the same and the fast tests, in 90 seconds: what pre-commit runs
	OMP_NUM_THREADS=1 $(PYTEST) -m "not slow"

format: $(VENV)/ready     ## format and fix what can be fixed
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

toy: $(VENV)/ready     ## draw the toy figures into toy/
	$(BIN)/semigpc toy --out toy

bench: $(VENV)/ready     ## time an update, a training step and the labelling of a million rows against their peers
	mkdir -p bench
	$(BIN)/python benchmarks/update.py --plot bench/update.png
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/label.py

docs: $(VENV)/ready     ## build the documentation into site/; a broken link is an error
	$(BIN)/python docs/build_site.py site

walkthrough: $(VENV)/ready     ## make the pictures of docs/walkthrough.md from PHOTOS, a folder of class folders
	@test -n "$(PHOTOS)" || { echo "make walkthrough needs PHOTOS=FOLDER, with a sub-folder for each class"; exit 1; }
	$(BIN)/python docs/walkthrough.py $(PHOTOS)

wheel: $(VENV)/ready     ## build the source distribution and the wheel into dist/
	$(BIN)/python -m build

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "semigpc needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
