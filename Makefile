# Every target sets up .venv first; where nothing changed that costs 0.1 s. What developers need
# besides the labs comes with the first target that needs it.
#   PYTHON=python3.12   the Python to build .venv from
#   TORCH=...           the torch to install: cpu, cuda, or what `pip install` takes
PYTHON ?= python3
BIN := .venv/bin
# Where your copies of the labs are, and what JupyterLab is started with besides, such as
# LAB_ARGS="--no-browser --port 8899"
DIR ?= my-lockstep
LAB_ARGS ?=
# make test WORKERS=8 runs as many tests at a time
WORKERS ?= 4
# make lock UPGRADE=--upgrade moves every version that pyproject.toml leaves open
UPGRADE ?=
UV_COMPILE := $(BIN)/uv pip compile --quiet --no-annotate --custom-compile-command "make lock" \
  --generate-hashes --only-binary :all: --emit-build-options
EVERYWHERE := --universal --fork-strategy fewest --python-version 3.11

export TORCH
# Each of hundreds of Pythons that the tests start would compile the package again: a second each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup tools labs test test-more check test-browser test-slurm test-hub test-long test-gpu lint format bench endings judge notebooks texts doctor lock clean

help:  ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST)

setup:  ## make or refresh .venv, with what the labs need
	@$(PYTHON) lib/setup_venv.py

tools:  ## the same, with what tests, benchmarks and `make notebooks` need
	@$(PYTHON) lib/setup_venv.py --all

labs: setup  ## copy the labs to my-lockstep/ once (DIR=...: elsewhere), and open them in JupyterLab
	@$(BIN)/lockstep labs $(DIR) -- $(LAB_ARGS)

# WORKERS tests at a time, two more than a small machine has cores: most wait for ranks, which they
# start themselves.
test: lint  ## check style and types, then test the labs and the package: 14 minutes on 2 cores
	$(BIN)/pytest -n $(WORKERS) --no-loadscope-reorder

test-more: tools  ## test further notebooks, what a browser shows, reports, several nodes, recorders
	$(BIN)/python tests/browser.py
	$(BIN)/pytest -n $(WORKERS) --no-loadscope-reorder -m "more and not long"

# No test runs after 80 s: what the last ones used has to end, too.
check: tools  ## check style and types, then run the tests that your change touches, for 90 s at most
	@began=$$(date +%s); $(MAKE) --no-print-directory lint \
	  && $(BIN)/python tests/touched.py --until $$((began + 80)) -n $(WORKERS)

test-browser: tools  ## only run every notebook in JupyterLab in a headless Chromium
	$(BIN)/python tests/browser.py
	PICTURES=build/screenshots $(BIN)/pytest -m "long or not long" tests/test_browser.py

test-slurm: tools  ## run jobs on a Slurm of two nodes on this machine, also on its GPUs; installs it (Debian, root)
	$(BIN)/python tests/slurm.py
	$(BIN)/pytest -m slurm tests/test_slurm.py tests/test_slurm_gpu.py

test-hub: tools  ## three learners at once on a JupyterHub of its own; installs it below build/
	$(BIN)/python tests/hub.py
	$(BIN)/pytest -m "long or not long" tests/test_hub.py

test-long: tools  ## run what `make test` leaves out: every notebook in one more way
	$(BIN)/pytest -m long

# It fails where there is no GPU: asked for, it must say something about GPUs.
test-gpu: tools  ## on a machine with GPUs: execute the course there, write data/course/, test ranks on them
	$(BIN)/pytest -m gpu tests/test_gpu.py

lint: tools  ## check style and types only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: tools  ## put the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: tools  ## time launching, traces, timelines and reports, beside other tools: data/COSTS.md
	$(BIN)/python tests/bench/launch.py --json data/costs/launch.json
	$(BIN)/python tests/bench/trace.py --json data/costs/trace.json
	$(BIN)/python tests/bench/timeline.py --json data/costs/timeline.json
	$(BIN)/python tests/bench/grading.py --learners 2 --json data/costs/grading.json
	$(BIN)/python tests/bench/costs.py

endings: tools  ## run programs that end in many ways, many times, here and under torchrun
	$(BIN)/python tests/endings.py
	$(BIN)/python tests/endings.py --family all --form script --elastic 1 --torchrun 1 --lanes 2 --limit 60

judge: tools  ## try the course's wrong and right answers with 20 seeds (LABS="02 03": of these labs)
	$(BIN)/python tests/judge.py $(LABS)

notebooks: tools  ## write the notebooks anew from their sources (LABS="02 03": of these labs)
	$(BIN)/python -m lockstep.author.build $(LABS)
	$(BIN)/python -m lockstep.author.claims

texts: tools  ## the same without a run, where only texts have changed
	$(BIN)/python -m lockstep.author.build --texts $(LABS)

doctor: setup  ## say what this machine can run
	$(BIN)/lockstep doctor

# labs.lock is the part of requirements.lock that the labs need. torch is locked apart, as the build
# that PyPI has, with CUDA on Linux and what that needs: which build a machine gets is chosen by
# setup. Binder has no room for CUDA; see binder/postBuild.
lock: tools  ## pin all versions and hashes anew in the four locks and binder/
	$(UV_COMPILE) $(UPGRADE) $(EVERYWHERE) pyproject.toml --all-extras --no-emit-package torch -o requirements.lock
	$(UV_COMPILE) $(EVERYWHERE) pyproject.toml --extra labs --no-emit-package torch -c requirements.lock -o labs.lock
	sed -n 's/.*"\(torch==[^"]*\)".*/\1/p' pyproject.toml \
	  | $(UV_COMPILE) $(UPGRADE) $(EVERYWHERE) --no-config -c requirements.lock -o torch.lock -
	$(UV_COMPILE) $(UPGRADE) $(EVERYWHERE) --group hub -c requirements.lock -o tests/hub.lock
	$(UV_COMPILE) pyproject.toml --extra labs --no-emit-package torch -c requirements.lock \
	  --python-version 3.12 --python-platform x86_64-unknown-linux-gnu -o binder/requirements.txt

clean:  ## remove .venv and all caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache build lib/*.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
