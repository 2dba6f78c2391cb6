PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q

.PHONY: help demo test test-all test-nightly lint docs site examples bench-check peers clean

help: ## what can be made
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "posterity needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

# torch goes first and alone: a range that admits other releases would take a build of several GB
$(VENV)/.torch: | $(VENV)/bin/python
	$(BIN)/pip install -q $(TORCH)
	@touch $@

$(VENV)/.demo: pyproject.toml constraints.txt $(VENV)/.torch
	$(BIN)/pip install -q -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.torch
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo ## five ways of knowing how sure a network is, on handwritten digits
	$(BIN)/posterity demo

test: $(VENV)/.dev ## the fast tests, under 10 minutes on 2 cores
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.dev ## every test
	$(PYTEST)

test-nightly: $(VENV)/.dev ## every test, the statistical ones under seeds of the day
	POSTERITY_TEST_SEED=$${POSTERITY_TEST_SEED:-$$(date +%y%j)} $(PYTEST)

lint: $(VENV)/.dev ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.dev ## the pages under docs/: their tables written anew, their examples run, their links lead somewhere
	$(BIN)/python website/evidence.py
	$(BIN)/python website/commands.py
	$(BIN)/python website/promises.py
	$(BIN)/python -m pytest -q README.md docs tests/test_docs.py

site: $(VENV)/.dev ## the site of these pages and the API: build/site/index.html
	$(BIN)/python website/build.py

examples: $(VENV)/.dev ## the scripts under examples/, on the data that POSTERITY_DATA names
	$(PYTEST) tests/test_examples.py

bench-check: $(VENV)/.dev ## the committed figures against their thresholds, the ratios of times against benchmarks/baseline.json
	$(BIN)/posterity bench --check
	$(BIN)/posterity bench all --quick --check

peers: ## the other libraries, in an environment of their own, for `posterity bench NAME --peers`
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install -q $(TORCH)
	.venv-peers/bin/pip install -q -r benchmarks/peers-requirements.txt
	.venv-peers/bin/pip uninstall -q -y torchvision  # what they bring does not import beside this torch

clean: ## remove what the targets made
	rm -rf $(VENV) .venv-peers posterity-demo build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
