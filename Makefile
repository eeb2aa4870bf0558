# The one way to set up, check and show this project. `make` lists the targets.
#
#   PYTHON           interpreter for the virtual environment, 3.11 to 3.13 (default: the newest of them that is found)
#   TORCH_INDEX_URL  wheel index from which torch is taken, for a CPU or CUDA build (default: the installer's own choice)
#   VENV             folder of the virtual environment (default .venv)
#   ARGS             options of `make reproduce`, `study` and `compose-test`, for instance ARGS="--cells 'ours.*'"
#   TESTS            what `make test` gives to pytest (default: everything), for instance TESTS=tests/unit

PYTHON ?=
TORCH_INDEX_URL ?=
VENV ?= .venv
TESTS ?=
ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL_STAMP := $(VENV)/.model

export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help setup model demo reproduce study test compose-test bench lint format stubs docs clean

help:  ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## Make the virtual environment and install everything into it.

$(STAMP): pyproject.toml constraints.txt tools/setup.sh
	@PYTHON="$(PYTHON)" TORCH_INDEX_URL="$(TORCH_INDEX_URL)" tools/setup.sh "$(VENV)"
	@touch $@

model: $(MODEL_STAMP)  ## Put the small model of the demonstration and the tests into the cache.

$(MODEL_STAMP): $(STAMP)
	@$(BIN)/splitwire fetch
	@touch $@

demo: $(MODEL_STAMP)  ## Show the whole story on this machine: split training, capture, audit, verdict.
	@$(BIN)/python -m deploy.demo

reproduce: $(MODEL_STAMP)  ## Reproduce the published results in shape; ARGS="--list" names the cells.
	@$(BIN)/python -m deploy.reproduce $(ARGS)

study: $(MODEL_STAMP)  ## Run the published inversion attacks by depth, noise and schedule; ARGS="--list" names the cells.
	@$(BIN)/python -m deploy.study $(ARGS)

test: $(STAMP)  ## Run lint, then every test; fails when either fails.
	@$(MAKE) --no-print-directory --silent model || echo "test: without the small model; its tests are skipped" >&2
	@lint=0; $(MAKE) --no-print-directory lint || lint=1; \
	$(BIN)/pytest $(TESTS) || exit $$?; \
	exit $$lint

compose-test: $(MODEL_STAMP)  ## Bring docker-compose.yml up on this machine, train, break it, take it down.
	@$(BIN)/python -m deploy.compose_test $(ARGS)

bench: $(MODEL_STAMP)  ## Measure against the unsplit model.
	@$(BIN)/python -m benchmarks.run

lint: $(STAMP)  ## Check style, types, imports, dependencies, the contract and what is generated.
	@PATH="$(abspath $(BIN)):$$PATH" tools/lint.sh

format: $(STAMP)  ## Format the code and apply safe fixes.
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

stubs: $(STAMP)  ## Regenerate splitwire/v1 from proto/.
	@PYTHON=$(BIN)/python tools/generate_stubs.sh

docs: $(STAMP)  ## Regenerate docs/configuration.md from the settings.
	@$(BIN)/python tools/generate_configuration.py

clean:  ## Remove caches and what the demonstration wrote; keeps the environment and the model.
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .demo .compose-test
	@find . -path "./$(VENV)" -prune -o -name __pycache__ -type d -print0 | xargs -0 -r rm -rf
