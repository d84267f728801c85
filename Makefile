# Two commands are enough: `make run` trains and measures a small translator, `make test` runs the tests.
# Each makes its own environment in .venv on the first use.

PYTHON ?= python3
TARGET ?= de
BIN := .venv/bin

.PHONY: run test lint bench docs clean

run: .venv/installed
	$(BIN)/regard train recipes/ui-strings.yaml --data.target-language $(TARGET) --out runs/ui-strings-en-$(TARGET)
	@echo
	@echo "Translate with it:       $(BIN)/regard translate runs/ui-strings-en-$(TARGET) 'Turn on the light'"
	@echo "Learn your own text:     $(BIN)/regard train --source text.en --target text.de --out runs/mine"
	@echo "Other languages:         make run TARGET=fr (or zh-Hans, es, ...)"

test: .venv/installed-dev
	$(BIN)/python -m pytest -n 2

lint: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/installed
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/attention.py

docs: .venv/installed-docs
	$(BIN)/mkdocs build --strict

.venv/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "regard needs Python 3.11 or newer, not $$($(PYTHON) --version); try make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/installed: .venv/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/installed-%: .venv/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$*]'
	@touch $@ .venv/installed

clean:
	rm -rf .venv site build *.egg-info
