# Needs python3 >= 3.11 and make; everything else is installed into .venv.
#   make test ARGS="-k ledger -x"      ARGS goes to pytest, the demo or the benchmark
#   make test PYTHON=python3.12        another interpreter for .venv

PYTHON ?= python3
ARGS ?=

VENV := .venv
DEMO := $(VENV)/.demo
DEV := $(VENV)/.dev
RUN := $(VENV)/bin/python

# Tests start many processes, each of which would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint types format docs bench clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) \
		| awk -F'|' '{ printf "%-15s%s\n", $$1, $$2 }'

demo: $(or $(wildcard $(DEV)),$(DEMO)) ## Learn ten small tasks and forget none of them
	$(RUN) -m clnp demo $(ARGS)

# One process per core beats one process with many threads: the tests are small.
test: $(DEV) ## Run the tests (not those marked slow or gpu)
	$(RUN) -m pytest -n auto --maxprocesses 8 --dist worksteal $(ARGS)

lint: $(DEV) ## Check style, formatting and the direction of imports
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(VENV)/bin/lint-imports

types: $(DEV) ## Check types
	$(RUN) -m mypy

format: $(DEV) ## Fix what lint can fix
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

docs: $(DEV) ## Make the pages that are made from the source
	$(RUN) -c 'from clnp.recipes.reference import markdown; print(markdown(), end="")' > docs/recipe-keys.md
	$(RUN) docs/api.py
	$(RUN) results/tables.py
	$(RUN) results/pictures.py

bench: $(DEV) ## Compare the speed with plain PyTorch and with Avalanche (ARGS="--device cuda")
	$(RUN) -m uv pip install --quiet --python $(RUN) --editable '.[bench]'
	$(RUN) benchmarks/step.py $(ARGS)
	$(RUN) benchmarks/growth.py $(ARGS)
	$(RUN) benchmarks/peers.py $(ARGS)

clean: ## Remove .venv, caches and builds
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo needs a small part of what the development tools do.
$(DEMO) $(DEV): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "clnp needs Python 3.11 or newer; '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name another one, for example: make $(or $(MAKECMDGOALS),test) PYTHON=python3.12" >&2; \
		exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check uv
	@$(RUN) tools/install.py $(@F:.%=%)
	@touch $@
