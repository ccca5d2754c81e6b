# Every target sets up .venv first; where nothing changed that costs 0.1 s.
#   PYTHON=python3.12   the Python to build .venv from
#   TORCH=...           the torch to install: cpu, cuda, or what `pip install` takes
PYTHON ?= python3
BIN := .venv/bin
# What JupyterLab is started with besides, such as LAB_ARGS="--no-browser --port 8899"
LAB_ARGS ?=
# JupyterLab does not run as root unless told to; in a container one often is.
ALLOW_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
# make lock UPGRADE=--upgrade moves every version that pyproject.toml leaves open
UPGRADE ?=
UV_COMPILE := $(BIN)/uv pip compile --quiet --no-annotate --custom-compile-command "make lock" pyproject.toml

export TORCH

.DEFAULT_GOAL := help
.PHONY: help setup labs test test-browser lint format bench notebooks doctor lock clean

help:  ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST)

setup:  ## make or refresh .venv
	@$(PYTHON) lib/setup_venv.py

labs: setup  ## open the labs in JupyterLab
	$(BIN)/jupyter lab --notebook-dir=. $(ALLOW_ROOT) $(LAB_ARGS) labs/00_start_here.ipynb

test: lint  ## check style and types, then run every test
	$(BIN)/pytest

test-browser: setup  ## only run every notebook in JupyterLab in a headless Chromium
	$(BIN)/pytest tests/test_browser.py

lint: setup  ## check style and types only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## put the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## time launching, reading traces and drawing them, beside other tools
	$(BIN)/python tests/bench/launch.py
	$(BIN)/python tests/bench/trace.py
	$(BIN)/python tests/bench/timeline.py

notebooks: setup  ## write the notebooks anew from their sources (LABS="02 03": of these labs)
	$(BIN)/python -m lockstep.labs.build $(LABS)

doctor: setup  ## say what this machine can run
	$(BIN)/lockstep doctor

# The CPU build is named outright for Binder: it has no room for CUDA.
lock: setup  ## pin all versions anew in requirements.lock and binder/
	$(BIN)/pip install --quiet uv==0.13.8
	$(UV_COMPILE) $(UPGRADE) --universal --fork-strategy fewest --python-version 3.11 --all-extras -o requirements.lock
	{ echo "--extra-index-url https://download.pytorch.org/whl/cpu"; \
	  $(UV_COMPILE) --python-version 3.12 --python-platform x86_64-unknown-linux-gnu --extra labs -c requirements.lock \
	    | sed 's/^torch==.*/&+cpu/'; } > binder/requirements.txt

clean:  ## remove .venv and all caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache build lib/*.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
