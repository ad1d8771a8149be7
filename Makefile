# Every target below works on a machine that has only Python 3.11 and make: .venv is made when it is missing.
PROFILE ?= laptop
DEVICE  ?= auto
SEEDS   ?=
ONLY    ?=
JOBS    ?=
FRESH   ?=
DRY     ?=
PYTHON  ?= python3

export PIP_DISABLE_PIP_VERSION_CHECK = 1
RUN     = .venv/bin/python -m fedbcgd_lite
OPTIONS = --profile $(PROFILE) --device $(DEVICE) $(if $(JOBS),--jobs $(JOBS))
CHOICE  = $(if $(SEEDS),--seeds $(SEEDS)) $(if $(ONLY),--only $(ONLY)) $(if $(filter-out 0,$(FRESH)),--fresh) $(if $(filter-out 0,$(DRY)),--dry)

.PHONY: help setup figures smoke test lab status replay notebooks bench gpu-check clean
.DEFAULT_GOAL := help

help:  ## print this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "variables: PROFILE=laptop|smoke|paper  SEEDS=<how many>  DEVICE=auto|cpu|cuda  ONLY=<notebook,...>  JOBS=<runs at a time>  FRESH=1 (compute again)  DRY=1 (only say what it takes)"

setup: .venv/.stamp  ## make .venv with everything in it (the other targets do it when it is needed)

.venv/.stamp: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(None if sys.version_info[:2] >= (3, 11) else 'error: Python 3.11 or newer is needed, this is ' + sys.version)"
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[all]"
	@touch $@

figures: .venv/.stamp  ## execute the notebooks: figures/PROFILE/*.png, *.pdf, *.csv and claims.csv
	@$(RUN) figures $(OPTIONS) $(CHOICE)

smoke: .venv/.stamp  ## compute everything from nothing at the smallest size
	@rm -rf figures/smoke
	@$(RUN) figures --profile smoke --device $(DEVICE) --seeds 1 $(if $(JOBS),--jobs $(JOBS))

test: .venv/.stamp  ## run the test suite
	.venv/bin/python -m pytest

lab: .venv/.stamp  ## open the notebooks in JupyterLab
	.venv/bin/jupyter lab --notebook-dir=. notebooks

status: .venv/.stamp  ## what is computed, what is in progress, which verdicts stand
	@$(RUN) status $(OPTIONS)

replay: .venv/.stamp  ## compute the first rounds of the kept records again and compare
	@$(RUN) replay $(OPTIONS)

notebooks: .venv/.stamp  ## execute the notebooks with their own parameters and keep the outputs in notebooks/ (before a commit)
	@$(RUN) figures --publish $(if $(ONLY),--only $(ONLY)) $(if $(JOBS),--jobs $(JOBS))

bench: .venv/.stamp  ## time rounds beside a plain PyTorch loop, or with METHODS=1 beside FedAvg's: tests/benchmarks/<host class>.csv
	@.venv/bin/python tests/benchmarks/bench.py $(if $(ONLY),--only $(ONLY)) $(if $(filter-out 0,$(METHODS)),--methods)

gpu-check: .venv/.stamp  ## on a GPU: agreement with the CPU, speed, and Table 6 on IMAGES=<folder with train/ and test/>
	@.venv/bin/python tests/benchmarks/gpu_check.py $(if $(IMAGES),--images $(IMAGES))

clean:  ## remove .venv, caches and what the smoke profile made (records and figures stay)
	rm -rf .venv figures/smoke figures/*/executed .pytest_cache .ruff_cache build dist *.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
