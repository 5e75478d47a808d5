# A fresh machine needs Python 3.11 or newer and make; everything else is installed here.
# Nothing asks questions. TORCH_INDEX=URL takes torch from another index (CUDA builds, say).

PYTHON ?= python3
TORCH_INDEX ?=
TORCH := torch==2.13.0
VENV := .venv
LINT := .venv-lint
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export OMP_NUM_THREADS ?= 1
PIP := $(BIN)/python -m pip install --quiet --no-input
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate

.PHONY: install demo test up check lint types contracts openapi deploy-lint bench locks clean

install: $(VENV)/.installed

# torch stands first and alone: resolved together with opacus it drags in CUDA builds.
$(VENV)/.installed: pyproject.toml requirements/dev.txt requirements/worker.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	sed -n '/^pip==/,/[^\\]$$/p' requirements/dev.txt > $(VENV)/pip.txt
	$(PIP) --require-hashes -r $(VENV)/pip.txt
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(PIP) --require-hashes -r requirements/dev.txt
	$(PIP) -r requirements/worker.txt
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

$(LINT)/.installed: requirements/lint.txt
	$(PYTHON) -m venv $(LINT)
	$(LINT)/bin/python -m pip install --quiet --no-input --require-hashes -r requirements/lint.txt
	touch $@

up: install
	$(BIN)/dpledger up

demo: install
	$(BIN)/dpledger demo --embedded

# The whole suite, then the two coverage gates: of everything, and of core and operations.
test: install
	$(BIN)/python -m coverage erase
	$(BIN)/python -m pytest -n auto --cov --cov-report=
	$(BIN)/python -m coverage report --skip-covered --fail-under=85
	$(BIN)/python -m coverage report --skip-covered --fail-under=95 \
		--include='service/core/*,service/operations/*'

check: lint types contracts openapi deploy-lint test

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/pyright --pythonpath $(BIN)/python

contracts: install
	$(BIN)/lint-imports

# The document of this tree against the schema of OpenAPI 3.1.
OPENAPI := import json, sys; from service.app import make_app; from service.settings import Settings; \
	json.dump(make_app(Settings()).openapi(), sys.stdout)
openapi: install $(LINT)/.installed
	DPLEDGER_DATA_DIR=$(VENV)/openapi $(BIN)/python -c '$(OPENAPI)' > $(VENV)/openapi.json
	$(LINT)/bin/openapi-spec-validator --schema 3.1 --validation-errors all $(VENV)/openapi.json

deploy-lint: $(LINT)/.installed
	$(LINT)/bin/hadolint deploy/Dockerfile.gateway deploy/Dockerfile.worker
	$(LINT)/bin/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(LINT)/bin/yamllint --strict docker-compose.yml .yamllint

# Each program of benchmarks/ prints its figures and the machine that gave them.
bench: install
	for program in benchmarks/*.py; do $(BIN)/python $$program || exit 1; done

# Rewrites all locks from pyproject.toml. worker.txt goes without hashes (a CPU build of
# torch may be a local one) and without the CUDA libraries, which come with the build.
locks: install
	$(LOCK) --upgrade --generate-hashes --extra service --extra dev pyproject.toml \
		-o requirements/dev.txt
	$(LOCK) --generate-hashes --extra service -c requirements/dev.txt pyproject.toml \
		-o requirements/service.txt
	$(LOCK) --extra service --extra worker -c requirements/dev.txt pyproject.toml \
		| grep -Ev '^(nvidia|cuda|triton)' > $(VENV)/worker.txt
	mv $(VENV)/worker.txt requirements/worker.txt
	$(LOCK) --upgrade --generate-hashes requirements/lint.in -o requirements/lint.txt

clean:
	rm -rf $(VENV) $(LINT) .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage*
