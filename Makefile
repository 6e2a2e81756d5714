# Two commands for a fresh machine with Python 3.11+ and make:
#   make train   installs into .venv, trains reversal, generates an answer, prints how to open TensorBoard
#   make test    installs the test extras, lints, type-checks and runs the tests
#   make docs    installs the extras of the guide and builds it: open site/index.html

PYTHON ?= python3
BIN := .venv/bin
CONFIG ?= configs/reverse.yaml

.PHONY: train test test-slow lint docs clean

train: .venv/installed
	$(BIN)/minitx train --config $(CONFIG)
	@echo
	@echo 'minitx generate runs/reverse "3 1 4 1 5 9 2 6"'
	@$(BIN)/minitx generate runs/reverse "3 1 4 1 5 9 2 6"
	@$(BIN)/minitx attend runs/reverse "3 1 4 1 5 9 2 6" --out runs/reverse/attention.png
	@echo
	@echo "See every head, from the first step to the last:  $(BIN)/tensorboard --logdir runs"
	@echo "(open the address that it prints; ATTENTION has the maps, TEXT the answers, SCALARS the curves)"

test: lint
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not slow"

test-slow: .venv/installed-test
	$(BIN)/python -m pytest -m slow --hypothesis-profile=new

lint: .venv/installed-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'open site/index.html'

clean:
	rm -rf site .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "minitx needs Python 3.11 or newer: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.venv/installed-test: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@ .venv/installed

.venv/installed-docs: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@ .venv/installed
