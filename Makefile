# Every target does its own set-up: Python 3.10 or newer and make are all that has to be there.
# PYTHON names the interpreter to use; ARGS is handed on to pytest or to the benchmarks.

PYTHON ?= python3
ARGS ?=
export PYTHON
# Set in many container images; without bytecode, each of thousands of commands would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

TOOL := build/tool
DEV := build/venv
TRAINERS := build/trainers
# Its CPU build is of one size; the default one brings a GPU stack of gigabytes. Empty: tests that need it are skipped.
TORCH ?= torch==2.13.0+cpu
# Files of tests at a time: on two cores three more than those, since a test waits a part of its time.
WORKERS ?= 5
.PHONY: help demo test quick pythons coverage parts emulated soak lint fence work bench pictures site reference relock clean tool dev trainers notebook

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

tool:
	@lockfiles/venv.sh $(TOOL) tool project

dev:
	@lockfiles/venv.sh $(DEV) test project

demo: tool ## capture an environment, train on the host and in the image, compare every output (about 2 minutes)
	@lockfiles/venv.sh build/demo/project/.venv example
	@$(TOOL)/bin/python examples/digits/demo.py

trainers: dev
	@test -z "$(TORCH)" || UV=$(DEV)/bin/uv lockfiles/venv.sh $(TRAINERS) trainers || echo "no $(TRAINERS): tests that need it say so"
	@test ! -d $(TRAINERS) || test -z "$(TORCH)" || $(TRAINERS)/bin/python -c "import torch" 2>/dev/null || \
		{ $(TRAINERS)/bin/python -m pip --disable-pip-version-check install -qq --no-compile "$(TORCH)" && \
		$(TRAINERS)/bin/python -c "import torch" ; } || \
		echo "no $(TORCH) to be had: tests that need it say so"

notebook: dev
	@for name in notebook jupyterlab; do \
		UV=$(DEV)/bin/uv lockfiles/venv.sh build/$$name $$name || echo "no build/$$name: tests that need it say so" ; done

WITH = REPRO_ENV_TEST_PYTHONS=$(CURDIR)/$(TRAINERS)/bin/python REPRO_ENV_TEST_TRAINERS=$(CURDIR)/$(TRAINERS)/bin/python \
	REPRO_ENV_TEST_NOTEBOOK=$(CURDIR)/build/notebook/bin/python REPRO_ENV_TEST_JUPYTERLAB=$(CURDIR)/build/jupyterlab/bin/python

test: trainers notebook ## the whole test suite but the long counts
	$(WITH) $(DEV)/bin/python -m pytest -m "not soak" -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

# Almost half of all tests, in a fifteenth of the time: they start little but Python.
# These start pytest again.
OF_THE_SUITE := tests/test_markers.py tests/test_workers.py
QUICK := schema oci io runs compare launch cli

quick: dev ## the tests that need no engine and no torch (under a minute on two cores)
	$(DEV)/bin/python -m pytest -q -m "not soak and not docker and not slurm and not torch" -n 2 --dist loadfile \
		--ignore tests/runs/execution $(filter-out $(OF_THE_SUITE),$(wildcard tests/test_*.py)) $(QUICK:%=tests/%) $(ARGS)

# Fast, and most of what may depend on the version of Python: formats, processes, reading of other tools' files.
PORTABLE := oci schema io runs/records environment/python environment/wheels

pythons: trainers ## the tests of formats and processes under the oldest and the newest other Python of this machine
	@set -e; for python in $$($(DEV)/bin/python -m tests.pythons); do \
		venv=build/pythons/$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		PYTHON=$$python UV=$(DEV)/bin/uv lockfiles/venv.sh $$venv test project; \
		echo "under $$($$venv/bin/python --version):"; \
		$(WITH) $$venv/bin/python -m pytest -q -m "not soak" -n $(WORKERS) $(PORTABLE:%=tests/%) $(ARGS); \
	done

# Without the tests that start the installed command hundreds of times: under measurement they would take an hour.
coverage: trainers ## which statements the tests run, by module, without end-to-end tests (about 15 minutes)
	$(WITH) $(DEV)/bin/python -m pytest -q -m "not soak" -n $(WORKERS) --dist loadfile --no-loadscope-reorder --cov --cov-report=term \
		$(foreach part,e2e fidelity hostile isolation,--ignore tests/$(part)) $(ARGS)

parts: dev ## tests with real parts of another Debian in a root of its own, as uid 0 (ARGS: a group, --keep)
	$(DEV)/bin/python -m tests.roots check $(ARGS)

emulated: dev ## capture, rebuild, run and verify numpy on an emulated arm64, as uid 0 (about 5 minutes; ARGS: --keep)
	$(DEV)/bin/python -m tests.emulation $(ARGS)

# Two files at a time: the counts of some take an hour, and need most of two cores.
soak: trainers ## the long counts (over an hour); results go to benchmarks/results/
	$(WITH) $(DEV)/bin/python -m pytest -m soak --timeout 1800 -n 2 --dist loadfile $(ARGS)

lint: dev ## ruff and mypy --strict
	$(DEV)/bin/ruff check .
	$(DEV)/bin/ruff format --check --quiet .
	$(DEV)/bin/mypy

fence: dev ## count the code and write docs/fence.md; what went up needs ARGS='--reason "..."'
	@$(DEV)/bin/python -m tests.fence $(ARGS)

work: dev ## count what commands make the machine do and write docs/work.md; what went up needs ARGS='--reason "..."'
	$(DEV)/bin/python -m tests.work $(ARGS)

bench: dev ## every ratio of benchmarks/README.md, measured here
	$(DEV)/bin/python benchmarks/all.py $(ARGS)

pictures: dev ## draw docs/pictures: run the commands of the tutorial, and show their output and pages (a minute; needs Chromium)
	@$(DEV)/bin/python -m tests.pictures

reference: dev ## write docs/commands.md and docs/records.md from the help texts and the stored types (some seconds)
	@$(DEV)/bin/python -m tests.reference

# Strict: a link without a target is an error.
site: dev ## the documents as a site in build/site, which needs no network
	@$(DEV)/bin/python -m sphinx -q -W --keep-going -b html -c docs . build/site
	@echo '<!doctype html><title>repro-env</title><meta http-equiv="refresh" content="0; url=docs/index.html">' >build/site/index.html

relock: dev ## write lockfiles/ with pip-tools; pins stay where they fit, but with ARGS=--upgrade
	@lockfiles/relock.sh $(ARGS)

clean: ## remove what make has made here; the store of images stays
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
