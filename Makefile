# Everything a newcomer needs; each target sets itself up.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MUTANTS ?= 100000
READY := $(VENV)/.ready

.PHONY: help demo test tests lint bench fuzz wheel samples clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

demo: $(READY)  ## the main job on the embedded model: dump, break, compare, explain
	$(BIN)/dumpcmp demo

lint: $(READY)  ## ruff, mypy --strict and the import contracts
	$(BIN)/ruff check dumpcmp tests benchmarks
	$(BIN)/ruff format --check dumpcmp tests benchmarks
	$(BIN)/mypy --strict dumpcmp tests benchmarks
	$(BIN)/lint-imports

test: $(READY)  ## everything CI runs: lint and all tests, side by side
	$(MAKE) --no-print-directory -j 2 lint tests

tests: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadgroup

bench: $(READY)  ## print the benchmark tables (TABLE=archive,capture for some of them)
	$(BIN)/python -m benchmarks $(TABLE)

fuzz: $(READY)  ## broken inputs, faults, signals, random programs: at length (MUTANTS=... of each)
	DUMPCMP_MUTANTS=$(MUTANTS) $(BIN)/python -m pytest -n auto tests/test_fuzz_inputs.py tests/archive/test_fuzz.py tests/partitioning/test_fuzz_graphs.py
	DUMPCMP_FAULTS=3000 $(BIN)/python -m pytest -n auto tests/archive/test_faults_injected.py tests/compacting/test_faults_injected.py
	DUMPCMP_PROGRAMS=1000 $(BIN)/python -m pytest -n auto tests/taps/test_random_programs.py
	DUMPCMP_SECONDS=60 $(BIN)/python -m pytest tests/compacting/test_at_once.py
	DUMPCMP_KILLS=100 $(BIN)/python -m pytest tests/archive/test_crash.py
	DUMPCMP_INTERRUPTS=25 $(BIN)/python -m pytest tests/taps/test_signals.py

wheel: $(READY)  ## build the wheel twice, and see that it is the same
	$(BIN)/python tests/build_wheel.py

samples: $(READY)  ## rebuild sample_dumps/
	$(BIN)/python sample_dumps/build.py

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis *.egg-info demo_out
