PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt
# One thread a process by default: the machine's cores are for the processes that the work starts.
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help demo story test lint docs atlas mutants campaign fuzz foreign s3 bench

help:           ## this list
	@grep -E '^[a-z0-9]+:.*##' Makefile | sed -E 's/^([a-z0-9]+):[^#]*## /make \1\t/' | expand -t 16

demo: $(VENV)/.demo  ## the main job and its proof, on data that every machine has
	$(BIN)/cloison demo --out demo

story: $(VENV)/.demo ## train a small model under five set-ups, and see what the dashboard does not show (5 to 6 minutes on 2 cores)
	$(BIN)/cloison demo --story --out demo

test: $(VENV)/.ready ## lint, layers, types and all tests: what CI runs
	$(BIN)/ruff check -q src tests benchmarks attacks
	$(BIN)/ruff format -q --check src tests benchmarks attacks
	$(BIN)/lint-imports
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

lint: $(VENV)/.ready ## the same without the tests; formats what can be formatted
	$(BIN)/ruff check src tests benchmarks attacks
	$(BIN)/ruff format src tests benchmarks attacks
	$(BIN)/lint-imports
	$(BIN)/mypy

docs: $(VENV)/.ready ## build the documentation into site/
	$(BIN)/zensical build --clean

atlas: $(VENV)/.ready ## what every causal-LM type does with packed input, and what adapt makes of it
	$(BIN)/python -m cloison.proof.atlas docs/atlas.csv
	$(BIN)/python -m cloison.exact.atlas docs/atlas.csv

mutants: $(VENV)/.ready ## planted faults, each beside its right version: all found and named, no right one accused
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 tests/proof/test_mutants_model.py tests/proof/test_mutants_training.py

campaign: $(VENV)/.ready ## the main job killed, on full and failing disks, with changed sources: the same bytes in the end
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.campaign --runs 100

fuzz: $(VENV)/.ready ## every reader on changed files: errors of ours or right results, in bounded time and memory
	$(BIN)/python -m tests.fuzz --examples 500
	test -x .fuzz/bin/python || $(PYTHON) -m venv .fuzz
	if .fuzz/bin/python -m pip install -q -c constraints.txt atheris -e . hypothesis pytest; \
	then .fuzz/bin/python -m tests.fuzz.guided; else echo "atheris has no build for this Python: not led by coverage"; fi

foreign: $(VENV)/.ready ## exports read by the real libraries, each in an environment of its own
	$(BIN)/python tests/campaign_foreign.py $(ONLY)

s3: $(VENV)/.ready ## the main job on an S3 server on loopback, killed and gone on with; in an environment of its own
	OMP_NUM_THREADS=1 $(BIN)/python tests/campaign_s3.py

bench: $(VENV)/.ready ## every benchmark, each beside its peer in one run
	for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

# The demo needs no test tools: torch, transformers and TRL only.
$(VENV)/.demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[trl]'
	touch $@

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[dev]'
	touch $@ $(VENV)/.demo
