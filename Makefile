PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One thread a process by default: the machine's cores are for the processes that the work starts.
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test lint

demo: $(VENV)/.ready
	$(BIN)/cloison demo --out demo

test: $(VENV)/.ready
	$(BIN)/ruff check -q src tests benchmarks
	$(BIN)/ruff format -q --check src tests benchmarks
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal

lint: $(VENV)/.ready
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/lint-imports
	$(BIN)/mypy

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@
