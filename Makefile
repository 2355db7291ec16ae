# `make demo` runs the main job, `make test` checks everything; each sets itself up.
SHELL := /bin/bash -o pipefail
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BENCH := .venv-bench
SIZE ?= quick
WORKERS ?= 2
ifeq ($(SIZE),full)
LOADERS ?= --batch-size 256,512,1024
TRAIN ?= --num-repeats 5 --num-steps 5
TOKENIZE ?= --megabytes 100
endif

.DEFAULT_GOAL := help
.PHONY: help demo test native docs results pictures sanitize soak faults bench limits package clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

# The stamp is newer than pyproject.toml exactly when what it lists is installed, so a second run starts at once.
$(VENV)/.installed: pyproject.toml setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# All peers, in an environment of their own. mosaicml-streaming comes first, because it pins older transformers than the
# others need and works with the newer. torchvision, which mosaicml-streaming imports, breaks transformers too where it is
# not of the same build as torch (with torch's CPU build, the torchvision of the public index is not): then it goes, and
# only mosaicml-streaming fails; a torchvision of the right build can be installed by hand.
$(BENCH)/.installed: pyproject.toml
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check mosaicml-streaming 'torch>=2.11,<2.14'
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	$(BENCH)/bin/python -c 'import torchvision' 2>/dev/null || $(BENCH)/bin/python -m pip uninstall --quiet --yes torchvision
	@touch $@

demo: $(VENV)/.installed  ## prepare the zero-download corpus, show a batch of it, and train on it for two minutes
	$(BIN)/headrace prepare --tokenizer bpe:4096 --out runs/demo-cache
	$(BIN)/headrace inspect runs/demo-cache --step 0 --batch-size 2 --sequence-length 64
	$(BIN)/headrace train data.cache_dir=runs/demo-cache

native: $(VENV)/.installed  ## build the native library again, after a change of its C++
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .

SANITIZED := build/sanitized
SANITIZERS := -fsanitize=address,undefined -fno-omit-frame-pointer -O1 -g

sanitize: $(VENV)/.installed  ## native steps of random shapes under AddressSanitizer and UndefinedBehaviorSanitizer
	HEADRACE_NATIVE_FLAGS="$(SANITIZERS)" $(BIN)/python setup.py --quiet build_ext --build-temp $(SANITIZED) --build-lib $(SANITIZED)
	$(CXX) -std=c++20 $(SANITIZERS) tests/native/fuzz.cpp $(SANITIZED)/headrace/native/libheadrace.so \
	  -Wl,-rpath,$(abspath $(SANITIZED)/headrace/native) -o $(SANITIZED)/fuzz
	UBSAN_OPTIONS=halt_on_error=1 $(SANITIZED)/fuzz

# Tests of one file share fixtures, so a process takes whole files, in their order: the last ones are short.
IN_PARALLEL := --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder

test: $(VENV)/.installed  ## lint, types and tests in 2 processes (WORKERS=0: in one), under 8 minutes on 2 cores
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest $(IN_PARALLEL)

docs: $(VENV)/.installed  ## build the documentation site into site/; a broken link or a missing page fails it
	$(BIN)/python tools/write_reference.py --check
	$(BIN)/zensical build --clean --strict

results: $(VENV)/.installed  ## measure what is reported elsewhere on this machine, half an hour; writes docs/results.md
	$(BIN)/python benchmarks/write_results.py docs/results.md

soak: $(VENV)/.installed  ## the slow fault and limit tests (kills, tmpfs, memory)
	$(BIN)/python -m pytest -m soak

faults: $(VENV)/.installed  ## kills, signals, full disks, two writers, hostile files, encodings: one table (8 minutes)
	$(BIN)/python -m tests.faults

bench: $(BENCH)/.installed  ## headrace and its peers side by side, 10 to 15 minutes; writes docs/benchmarks.md (SIZE=full takes longer)
	mkdir -p runs/bench
	$(BENCH)/bin/headrace bench loaders $(LOADERS) --json | tee runs/bench/loaders.txt
	$(BENCH)/bin/headrace bench train $(TRAIN) --json | tee runs/bench/train.txt
	$(BENCH)/bin/headrace bench tokenize $(TOKENIZE) --json | tee runs/bench/tokenize.txt
	$(BENCH)/bin/python benchmarks/write_page.py runs/bench docs/benchmarks.md

limits: $(BENCH)/.installed  ## the targets that headrace promises, as ratios in one run (an hour and a half); fails when one is missed
	missed=; for script in benchmarks/bench_*.py; do echo "== $$script"; $(BENCH)/bin/python $$script || missed="$$missed $$script"; done; \
	test -z "$$missed" || { echo "missed:$$missed"; exit 1; }

pictures: $(VENV)/.installed  ## the pictures of docs/images, from a real run on a small text: make pictures TEXT=shakespeare.txt
	$(BIN)/python tools/pictures.py $(TEXT)

package: $(VENV)/.installed  ## build wheel and sdist into dist/, and train a tiny model with each in a clean environment
	$(BIN)/python tools/package.py dist

clean:  ## remove the environments and what tools left behind; runs/ stays
	rm -rf $(VENV) $(BENCH) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
