# Every target sets up what it needs in .venv; set-up runs again only when its inputs change.
PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
CMAKE  ?= cmake
PEER   ?= llama-cpp-python==0.3.36
QUESTION ?= What does harbour mean?
# A question may hold quotes and dollar signs: make takes it as it is and the shell finds it in its environment.
override QUESTION := $(value QUESTION)
export QUESTION
# Bytecode is kept: without it each of the tests' hundred processes compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo demo-smollm conformance test fuzz sanitize lint format interpreter page oracle card settings clean

help:
	@echo "make demo    ask the shipped model a question"
	@echo "make test    run the tests                     make lint    ruff and mypy"
	@echo "make sanitize  hammer the native library under thread, address and undefined-behaviour sanitizers"
	@echo "make fuzz    read 20,000 broken weight files     (SECONDS=600 CASES=1000000 SEED=1 for more)"
	@echo "make demo-smollm  chat with a published GGUF file (fetches 93 MB)"
	@echo "make conformance  the server's promises: SDKs, fuzzing, load, kills (half an hour; SHORT=1: a minute)"
	@echo "make oracle  logits against transformers and llama.cpp (builds it: minutes)"
	@echo "make card    measure the shipped model"
	@echo "make interpreter  the GPU kernels on this CPU: tiny shapes, every bit"
	@echo "make page    rebuild the page, hold it against what is committed, try it in a browser (Node, Chromium)"
	@echo "make format  format the code                   make clean   remove .venv and the built library"

setup: $(STAMP)

$(STAMP): pyproject.toml CMakeLists.txt $(wildcard src/strata/native/csrc/* src/strata/native/csrc/*/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "strata needs Python 3.11 or newer, found " + sys.version.split()[0] + ": make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/strata generate "$$QUESTION"

# a published GGUF file: SmolLM2-135M-Instruct, fetched into build/ (93 MB)
demo-smollm: $(STAMP)
	@PYTHONPATH=src:. $(BIN)/python -m tests.oracle.llama_cpp.smollm >/dev/null
	$(BIN)/strata chat --model build/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

# The SDKs of a year ago lie in a folder of their own.
OLD_SDKS := build/sdks-2025-11
conformance: $(STAMP)
ifdef SHORT
	PYTHONPATH=src:. $(BIN)/python -m tests.conformance --short
else
	$(BIN)/python -m pip install --quiet -e '.[conformance]'
	@test -d $(OLD_SDKS) || $(BIN)/python -m pip install --quiet --target $(OLD_SDKS) openai==2.8.1 anthropic==0.74.0
	PYTHONPATH=src:. $(BIN)/python -m tests.conformance --old-sdks $(OLD_SDKS)
endif

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(TESTS)

# The native library alone, without Python; a sanitizer's report fails the target.
sanitize:
	@for kind in thread address,undefined; do \
	    $(CMAKE) -S . -B build/sanitize-$$kind -DSANITIZE=$$kind >/dev/null && \
	    $(CMAKE) --build build/sanitize-$$kind --parallel 2 >/dev/null && \
	    echo "sanitizer: $$kind" && tests/native/run_hammer build/sanitize-$$kind/hammer || exit 1; \
	done

fuzz: $(STAMP)
	PYTHONPATH=src:. $(BIN)/python -m tests.fuzz --cases $(or $(CASES),20000) --seconds $(or $(SECONDS),120) --seed $(or $(SEED),0)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Triton lies in a folder of its own: the one that torch brings is older, and its interpreter rounds fma twice.
TRITON := build/triton-3.9
interpreter: $(STAMP)
	@test -d $(TRITON)/triton || $(BIN)/python -m pip install --quiet --no-deps --target $(TRITON) 'triton==3.9.*'
	TRITON_INTERPRET=1 PYTHONPATH=$(TRITON) $(BIN)/python -m pytest -n 2 --dist worksteal $(wildcard tests/*/test_triton_*.py) tests/bench/test_device_timing.py

# The committed page is what its sources give, and works in a real browser.
page:
	cd web && npm ci --silent && npm run --silent check && npm test --silent && npm run --silent build >/dev/null
	@test -z "$$(git status --porcelain src/strata/server/web)" || \
	    { git status --short src/strata/server/web; echo "the built page differs from the committed one: commit it"; exit 1; }
	cd web && node tests/browser.mjs

oracle: $(STAMP)
	$(BIN)/python -m tests.oracle.table
	@$(BIN)/python -c 'import llama_cpp' 2>/dev/null || $(BIN)/python -m pip install --quiet '$(PEER)'
	PYTHONPATH=src:. $(BIN)/python -m tests.oracle.llama_cpp

# needs build/corpus: python -m training.prepare
card: $(STAMP)
	@$(BIN)/python -c 'import matplotlib, pyppmd' 2>/dev/null || $(BIN)/python -m pip install --quiet -e '.[training]'
	$(BIN)/python -m training.card

# docs/settings.md from the code
settings: $(STAMP)
	$(BIN)/python -c "from strata.settings_page import as_markdown; print(as_markdown(), end='')" > docs/settings.md

clean:
	rm -rf $(VENV) build/py3-none-*
