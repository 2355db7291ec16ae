# `make demo` runs the main job, `make test` checks everything; each sets itself up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test soak bench clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

# The stamp is newer than pyproject.toml exactly when what it lists is installed, so a second run starts at once.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

$(VENV)/.bench-installed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	@touch $@

demo: $(VENV)/.installed  ## prepare the zero-download corpus, show a batch of it, and train on it for two minutes
	$(BIN)/headrace prepare --tokenizer bpe:2048 --out runs/demo-cache
	$(BIN)/headrace inspect runs/demo-cache --step 0 --batch-size 2 --sequence-length 64
	$(BIN)/headrace train --preset demo data.cache_dir=runs/demo-cache

test: $(VENV)/.installed  ## lint, types and tests (under 8 minutes on 2 cores)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

soak: $(VENV)/.installed  ## the slow fault and limit tests (kills, tmpfs, memory)
	$(BIN)/python -m pytest -m soak

bench: $(VENV)/.bench-installed  ## the data engine against its peers, as ratios in one run
	for script in benchmarks/bench_*.py; do $(BIN)/python $$script || exit 1; done

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) runs build .mypy_cache .ruff_cache .pytest_cache .hypothesis
