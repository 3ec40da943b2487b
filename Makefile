# Two commands do everything from a clean clone: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test lint types unit docs test-peers clean

demo: $(VENV)/.core
	$(BIN)/python examples/demo.py

test: lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m "not peers"

docs: $(VENV)/.core
	$(BIN)/python tools/generate_docs.py
	$(BIN)/python tools/numpy_coverage.py

test-peers: $(VENV)/.peers
	$(BIN)/python -m pytest -m peers

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || ($(PYTHON) -m pip install --user virtualenv && $(PYTHON) -m virtualenv $(VENV))

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@ $(VENV)/.core

$(VENV)/.peers: pyproject.toml $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[peers]"
	touch $@
