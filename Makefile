# Every target sets up what it needs, so that a fresh clone needs nothing but Python 3.11+, pip and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
BENCH  := $(VENV)/.installed-bench
SPACE  := build/space

# Two workers of one thread each use two cores better than one worker of two threads.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q
SHAPES := --jaxtyping-packages=ordinate,beartype.beartype

.PHONY: help setup demo explore test test-all lint format bench space clean
.DEFAULT_GOAL := help

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## Make .venv with the package and its extras, at the versions of constraints.txt

$(STAMP): pyproject.toml constraints.txt Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cpu,lab,plot,web,cluster,dev]'
	touch $@

$(BENCH): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $@

demo: $(STAMP) ## Train seven encodings, stretch them past their length, and report which ones hold
	$(BIN)/ordinate compare --preset quick

explore: $(STAMP) ## The interactive page
	$(BIN)/ordinate explore

# Shapes in signatures are checked at run time, except where a test needs the library as users have it.
test: $(STAMP) ## The test suite without the slow tests
	$(PYTEST) -m 'not slow and not plain' $(SHAPES)
	$(PYTEST) -m 'not slow and plain'

test-all: $(STAMP) ## The whole test suite
	$(PYTEST) -m 'not plain' $(SHAPES)
	$(PYTEST) -m 'plain'

lint: $(STAMP) ## Formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP) ## Format and mend what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BENCH) ## CPU benchmarks beside the peers, recorded in benchmarks/results
	$(BIN)/python benchmarks/cpu.py

space: $(STAMP) ## The page as a folder to push to a Hugging Face Space
	mkdir -p $(SPACE)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(SPACE) .
	cp deploy/space/* $(SPACE)

clean: ## Remove what the targets made
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
