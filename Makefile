# Short words for everything a person does here. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

# Python's imports are three times slower without bytecode, in each of a cluster's processes.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
PINS := requirements/cpu.txt requirements/dev.txt
# Names what was installed: changed pins make another stamp, so the environment is brought up to
# date, and an unchanged one costs nothing and no network.
STAMP := $(VENV)/.installed-$(shell cat $(PINS) pyproject.toml | cksum | cut -d' ' -f1)
# Unpacks 200 wheels in 10 s, where pip takes 70 s.
UV := uv==0.13.9

.PHONY: help
help: ## list these words
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(STAMP) ## make .venv with everything that runs on a CPU machine
	@:

$(STAMP):
	@for python in $${PYTHON:-} python3.11 python3.12 python3.13 python3 none; do
	    $$python -c 'import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	        2>/dev/null && break
	done
	if [ $$python = none ]; then
	    echo "make install: needs Python 3.11, 3.12 or 3.13 with venv, and found none in PATH." >&2
	    echo "  Debian and Ubuntu: apt-get install python3 python3-venv, or set PYTHON=/path/to/python3.11" >&2
	    exit 1
	fi
	# pip's own warnings are left out (-qq): a missing index folder is named once per package.
	pip="$(BIN)/python -m pip install -qq --no-deps"
	echo "install 1/5: $(VENV), with $$($$python --version)"
	$$python -m venv $(VENV)
	rm -f $(VENV)/.installed-*
	# torch comes through pip, because pip's configuration says where the CPU build is.
	echo "install 2/5: torch"
	$$pip --no-compile $(UV) $$(grep '^torch==' requirements/cpu.txt)
	echo "install 3/5: $$(cat $(PINS) | grep -c '==') other packages"
	grep -hv '^torch==' $(PINS) | $(BIN)/uv pip install -q --no-deps --python $(BIN)/python -r - || {
	    echo "  uv could not; pip does it, which takes longer"
	    $$pip $(PINS:%=-r %)
	}
	echo "install 4/5: paceline, editable"
	$$pip --no-build-isolation -e .
	echo "install 5/5: first import, which writes bytecode"
	for module in vllm.entrypoints.openai.api_server ray.serve.llm; do
	    $(BIN)/python -c "import $$module" >$(VENV)/import-$$module.log 2>&1 &
	    imports="$${imports:-} $$!:$(VENV)/import-$$module.log"
	done
	for import in $$imports; do
	    wait $${import%%:*} || { cat $${import#*:} >&2; exit 1; }
	done
	touch $@

.PHONY: redis
redis: ## install redis-server if it is missing (needs root or sudo)
	@sh requirements/redis-server.sh

.PHONY: model
model: install ## make the small builtin model that configs/local.yaml serves
	@$(BIN)/python -m cluster.models smollm2-135m-instruct

.PHONY: check
check: install ## lint, types, import order, and every example config
	@$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=tests/support:tests/benchmarks $(BIN)/mypy --explicit-package-bases --no-warn-return-any tests/benchmarks/*.py
	$(BIN)/lint-imports
	for config in configs/*.yaml; do $(BIN)/paceline check $$config; done

.PHONY: test
TESTS ?= -m "not long"
test: install redis ## run the tests; TESTS="-m 'not line' tests/kvstore" picks some
	@$(BIN)/python -m pytest $(TESTS)

.PHONY: test-long
test-long: install redis ## the tests that take minutes each: several nodes, scaling, new weights
	@$(BIN)/python -m pytest -m long tests/line

.PHONY: chart
chart: install ## make the chart's schema and table of values anew, after a change of the config
	@$(BIN)/python helm/describe.py

.PHONY: chart-test
chart-test: install redis ## the Helm chart's tests, with Helm 3 and 4; no cluster needed
	@$(BIN)/python -m pytest -m "not line" tests/helm

.PHONY: serve
serve: install redis model ## from nothing to a first answer: environment, Redis, model, cluster
	@$(BIN)/paceline up configs/local.yaml --ask

.PHONY: stop
stop: ## stop the local cluster
	@$(BIN)/paceline down

bench-%: install ## run tests/benchmarks/%.py (- is _); QUICK=1 for the short version
	@$(BIN)/python tests/benchmarks/$(subst -,_,$*).py $(if $(QUICK),--quick)

.PHONY: gpu-check
MODEL := builtin:smollm2-135m-instruct
gpu-check: install ## is the plug-in free on this machine's GPU? at most 8 minutes; MODEL=folder
	@$(BIN)/python tests/benchmarks/gpu_check.py --model $(MODEL)

# A file called router.py would hide the room of that name from itself.
bench-router: install
	@$(BIN)/python tests/benchmarks/routing.py $(if $(QUICK),--quick)

# The trace is of the Azure public dataset (CC-BY 4.0), data/AzureLLMInferenceTrace_conv.csv.
TRACE := build/traces/AzureLLMInferenceTrace_conv.csv
bench-autoscale: install
	@$(BIN)/python tests/benchmarks/autoscale.py $(TRACE) $(if $(QUICK),--quick)

.PHONY: clean
clean: ## remove .venv and all caches of this folder
	@rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
