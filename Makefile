# Everything a newcomer needs; each target sets itself up.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SCALE ?= 1
READY := $(VENV)/.ready

# Set-up compiles nothing, as most is never imported. What is imported must be kept compiled: hundreds
# of processes of the tests import torch, and one that has to compile it first takes twice the time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-scale test tests test-native lint bench fuzz wheel samples clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# The pip that came with Python may be old, and take twice the time to find what belongs together.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq --disable-pip-version-check --upgrade pip || echo "pip stays as old as it is"
	$(BIN)/pip install -qq --no-compile --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

demo: $(READY)  ## the main job on the embedded model: dump, break, compare, explain
	$(BIN)/dumpcmp demo

demo-scale: $(READY)  ## the same in a bucket of a local S3 server, by two Dask workers
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dask,s3]' 'moto[server]'
	$(BIN)/python -m benchmarks.demo_scale

lint: $(READY)  ## ruff, mypy --strict and the import contracts
	$(BIN)/ruff check dumpcmp tests benchmarks examples
	$(BIN)/ruff format --check dumpcmp tests benchmarks examples
	$(BIN)/mypy --strict dumpcmp tests benchmarks
	$(BIN)/lint-imports

test: $(READY)  ## everything CI runs: lint and all tests that are not long, side by side
	$(MAKE) --no-print-directory -j 2 lint tests

tests: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadgroup

test-native: $(READY)  ## tests of the compiled core under the address and undefined sanitizers
	$(BIN)/python tests/sanitize.py

bench: $(READY)  ## print the benchmark tables (TABLE=archive,capture for some of them)
	$(BIN)/python -m benchmarks $(TABLE)

fuzz: $(READY)  ## long tests; broken inputs, faults, signals, random programs (SCALE=0.1: a tenth of them)
	$(BIN)/python -m tests.fuzz --scale $(SCALE)

wheel: $(READY)  ## build the wheel twice and without a compiler, and see what is in it
	$(BIN)/python tests/build_wheel.py

samples: $(READY)  ## rebuild sample_dumps/
	$(BIN)/python sample_dumps/build.py

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis *.egg-info demo_out
