# Two commands do everything from a clean clone: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test test-cuda lint types unit unit-avx2 docs tools tools-full test-targets test-targets-full test-peers test-long test-real clean

demo: $(VENV)/.llm
	$(BIN)/python examples/demo.py

# The types are checked beside the tests: mypy has work for one core.
test: lint
	$(MAKE) -j2 types unit
	$(MAKE) unit-avx2

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS)

# Whole programs as they are compiled for CPUs with AVX2 and no more, where this one has it.
unit-avx2: $(VENV)/.dev
	if $(BIN)/python -c "from rlx.kernels.machines import AVX2, detected, has_instructions as h; exit(not h(detected(), AVX2))"; \
	then RLX_CPU=avx2 $(BIN)/python -m pytest -n $(WORKERS) tests/backends/test_passed_numbers.py \
	tests/backends/test_small_loops.py tests/backends/test_matmul_epilogues.py tests/backends/test_stored_parts.py; fi

docs: $(VENV)/.llm
	$(BIN)/python tools/generate_docs.py
	$(BIN)/python tools/numpy_coverage.py

tools: $(VENV)/.dev
	tools/install_tools.sh $(BIN)/python

tools-full: $(VENV)/.dev
	tools/install_tools.sh $(BIN)/python full

test-targets: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m "targets and not targets_full and not long"

test-targets-full: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m "(targets or targets_full) and not long"

test-peers: $(VENV)/.peers
	$(BIN)/python -m pytest -m peers

# On a machine with an NVIDIA GPU, with the interpreter given: no virtual environment, no network, no pytest.
test-cuda:
	PYTHONPATH=src $(PYTHON) tests/backends/cuda/gpu_suite.py

test-long: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(WORKERS) -m long

test-real: $(VENV)/.dev
	$(BIN)/python -m rlx pull smollm2 minilm
	$(BIN)/python -m pytest -m real

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || ($(PYTHON) -m pip install --user virtualenv && $(PYTHON) -m virtualenv $(VENV))

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.llm: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[llm]"
	touch $@ $(VENV)/.core

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@ $(VENV)/.llm $(VENV)/.core

$(VENV)/.peers: pyproject.toml $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[peers]"
	touch $@
