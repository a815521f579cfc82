# Everything sets up what it needs in .venv and is quick when that is there already.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt
RUN := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
ALL := $(VENV)/.installed-all
DOCS := $(VENV)/.installed-docs
TL4 := .venv-tl4
NEWEST := .venv-newest

# On a busy machine, threads that wait by spinning keep each other from working: measured up to 30 times slower.
export OMP_WAIT_POLICY ?= PASSIVE
export GOMP_SPINCOUNT ?= 0

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-exhaustive test-tl4 test-newest lint docs bench bench-quick clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(RUN)  ## make .venv and install anchorlens in it

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14))' || \
		{ echo "anchorlens needs Python 3.10 to 3.13; choose one: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 2; }
	@echo "Making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

$(RUN): pyproject.toml constraints.txt | $(PY)
	@echo "Installing anchorlens and what it needs (some minutes the first time) ..."
	@$(PIP) -e .
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(PY)
	@echo "Installing anchorlens, what it needs and the tools for tests (some minutes the first time) ..."
	@$(PIP) -e '.[dev]'
	@touch $(RUN) $@

$(ALL): $(DEV)
	@$(PIP) -e '.[dev,ray,docs]'
	@touch $(DOCS) $@

$(DOCS): pyproject.toml constraints.txt | $(PY)
	@echo "Installing anchorlens and the tools for its site (some minutes the first time) ..."
	@$(PIP) -e '.[docs]'
	@touch $(RUN) $@

demo: $(RUN)  ## ΔP curves of SmolLM2-135M on the embedded questions; figure and report at the end
	@$(PY) examples/demo.py

lint: $(DEV)  ## ruff and pyright
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/pyright

test: lint  ## lint, types and the fast tests
	@OMP_NUM_THREADS=1 $(PY) -m pytest -q -m "not slow" -n 2 --dist worksteal

test-all: $(ALL) test-tl4  ## the slow tests: wheel in an empty environment, examples, notebook, browser, Ray, site; and test-tl4
	@# One process more than cores: many of these tests wait for browsers, Ray or a disk.
	@OMP_NUM_THREADS=1 $(PY) -m pytest -q -m "slow and not exhaustive" -n 3 --dist worksteal

test-exhaustive: $(ALL)  ## further families, functions and faults of kinds that the slow tests have; simulations (an hour or two on two cores)
	@OMP_NUM_THREADS=1 $(PY) -m pytest -q -m exhaustive -n 2 --dist worksteal --timeout 7200

$(TL4)/.installed: pyproject.toml constraints-tl4.txt | $(PY)
	@echo "Installing anchorlens beside transformer-lens 4 in $(TL4) (some minutes the first time) ..."
	@$(PY) -m venv $(TL4)
	@$(TL4)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-tl4.txt -e . pytest pytest-timeout pytest-xdist beartype
	@touch $@

test-tl4: $(DEV) $(TL4)/.installed  ## the contract suite with transformer-lens 4, in an environment of its own
	@OMP_NUM_THREADS=1 $(PY) -m tests.contract.smollm2 $(TL4)/hooked.json
	@OMP_NUM_THREADS=1 ANCHORLENS_HOOKED_NUMBERS=$(TL4)/hooked.json $(TL4)/bin/python -m pytest -q -m "not exhaustive" -n 2 --dist worksteal tests/contract

test-newest: | $(PY)  ## the fast tests with the newest versions that pyproject.toml allows, then the contract suite with transformer-lens 4
	@rm -rf $(NEWEST)
	@$(PY) -m venv $(NEWEST)
	@# Most tests build HookedTransformer models, which transformer-lens 4 has not.
	@$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade -e '.[dev]' 'transformer-lens<4'
	@$(NEWEST)/bin/python -m pip check
	@OMP_NUM_THREADS=1 $(NEWEST)/bin/python -m tests.contract.smollm2 $(NEWEST)/hooked.json
	@OMP_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest -q -m "not slow" -n 2 --dist worksteal
	@$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade transformer-lens
	@$(NEWEST)/bin/python -m pip check
	@OMP_NUM_THREADS=1 ANCHORLENS_HOOKED_NUMBERS=$(NEWEST)/hooked.json $(NEWEST)/bin/python -m pytest -q -n 2 --dist worksteal tests/contract

docs: $(DOCS)  ## the site, into site/: a broken link or anchor fails
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --site-dir site
	@echo "site/index.html"

bench: $(RUN)  ## sweeps beside TransformerLens and other libraries, their bound, checks and growth; generation, knockout (an hour on two cores)
	@$(PY) benchmarks/compare.py --markdown docs/benchmarks.md
	@$(PY) benchmarks/bound.py --markdown docs/benchmarks.md
	@$(PY) benchmarks/cost.py --prompts qa 'fewshot(5)' --rows 14 --rounds 2 --donors 1 --label 'one donor' --markdown docs/benchmarks.md
	@$(PY) benchmarks/scaling.py --questions 1 8 --rounds 2
	@$(PY) benchmarks/equality.py --questions 2
	@$(PY) benchmarks/generation.py
	@$(PY) benchmarks/knockout.py --limit 100

bench-quick: $(RUN)  ## two small cases beside TransformerLens (five minutes at most on two cores)
	@$(PY) benchmarks/compare.py --quick --out runs/benchmarks-quick.json

clean:  ## remove .venv, caches and built files (not the models in the user's cache)
	rm -rf $(VENV) $(TL4) $(NEWEST) build dist runs site .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
