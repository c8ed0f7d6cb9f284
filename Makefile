# Every target sets up what it needs in .venv; set-up runs again only when its inputs change.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
QUESTION ?= What does harbour mean?

.PHONY: help setup demo test lint format oracle card settings clean

help:
	@echo "make demo    ask the shipped model a question"
	@echo "make test    run the tests                     make lint    ruff and mypy"
	@echo "make oracle  logits against transformers       make card    measure the shipped model"
	@echo "make format  format the code                   make clean   remove .venv and the built library"

setup: $(STAMP)

$(STAMP): pyproject.toml CMakeLists.txt $(wildcard src/strata/native/csrc/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "strata needs Python 3.11 or newer, found " + sys.version.split()[0] + ": make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/strata generate "$(QUESTION)"

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 $(TESTS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

oracle: $(STAMP)
	$(BIN)/python -m tests.oracle.table

card: $(STAMP)
	$(BIN)/python -m training.card

# docs/settings.md from the code
settings: $(STAMP)
	$(BIN)/python -c "from strata.settings import as_markdown; print(as_markdown(), end='')" > docs/settings.md

clean:
	rm -rf $(VENV) build/py3-none-*
