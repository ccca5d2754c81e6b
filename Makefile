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
UV_COMPILE := $(BIN)/uv pip compile --quiet --no-annotate --custom-compile-command "make lock" \
  --generate-hashes --only-binary :all: --emit-build-options
EVERYWHERE := --universal --fork-strategy fewest --python-version 3.11

export TORCH

.DEFAULT_GOAL := help
.PHONY: help setup labs test check test-browser test-long lint format bench endings judge notebooks doctor lock clean

help:  ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST)

setup:  ## make or refresh .venv
	@$(PYTHON) lib/setup_venv.py

labs: setup  ## open the labs in JupyterLab
	$(BIN)/jupyter lab --notebook-dir=. $(ALLOW_ROOT) $(LAB_ARGS) labs/00_start_here.ipynb

# Two tests at a time, of two files: most wait for ranks, which they start themselves.
test: lint  ## check style and types, then run every test but the long ones
	$(BIN)/python tests/browser.py
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

check: lint  ## check style and types, then run the tests that your change touches, for 90 s at most
	$(BIN)/python tests/touched.py

test-browser: setup  ## only run every notebook in JupyterLab in a headless Chromium
	$(BIN)/python tests/browser.py
	$(BIN)/pytest -m "long or not long" tests/test_browser.py

test-long: setup  ## run what `make test` leaves out: every notebook in one more way
	$(BIN)/pytest -m long

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

endings: setup  ## run programs that end in many ways, many times, here and under torchrun
	$(BIN)/python tests/endings.py

judge: setup  ## try the course's wrong and right answers with 20 seeds (LABS="02 03": of these labs)
	$(BIN)/python tests/judge.py $(LABS)

notebooks: setup  ## write the notebooks anew from their sources (LABS="02 03": of these labs)
	$(BIN)/python -m lockstep.course.build $(LABS)
	$(BIN)/python -m lockstep.course.claims

doctor: setup  ## say what this machine can run
	$(BIN)/lockstep doctor

# torch is locked apart, as the build that PyPI has, with CUDA on Linux and what that needs: which
# build a machine gets is chosen by setup. Binder has no room for CUDA; see binder/postBuild.
lock: setup  ## pin all versions and hashes anew in requirements.lock, torch.lock and binder/
	$(UV_COMPILE) $(UPGRADE) $(EVERYWHERE) pyproject.toml --all-extras --no-emit-package torch -o requirements.lock
	sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml \
	  | $(UV_COMPILE) $(UPGRADE) $(EVERYWHERE) --no-config -c requirements.lock -o torch.lock -
	$(UV_COMPILE) pyproject.toml --extra labs --no-emit-package torch -c requirements.lock \
	  --python-version 3.12 --python-platform x86_64-unknown-linux-gnu -o binder/requirements.txt

clean:  ## remove .venv and all caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache build lib/*.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
