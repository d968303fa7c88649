# Each target works alone on a fresh clone: it makes .venv, installs what constraints.txt pins, runs.
PYTHON ?= python3
# The CPU build is enough here. Where the default index serves a CUDA build under this version, name
# the CPU index: make demo TORCH_FLAGS="--index-url ...". A GPU user installs the torch of their choice.
TORCH ?= torch==2.13.0
TORCH_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types docs bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "scool needs Python 3.11 or newer"'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt $(TORCH_FLAGS) "$(TORCH)"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: $(VENV)/.installed  ## K personal models on real digits, and the graph they learn over
	rm -rf demo
	$(BIN)/scool compare --seeds 3 --out demo
	@echo "the report, a page to open in a browser:" && $(BIN)/scool report demo

test: $(VENV)/.installed  ## proves the mathematics
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

lint: $(VENV)/.installed  ## style, and that the rooms import one way
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed
	$(BIN)/pyright

docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[docs]"
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.installed
	$(BIN)/scool bench estep --json
	$(BIN)/scool bench engine --json

clean:
	rm -rf $(VENV) demo site .pytest_cache .ruff_cache
