# pipelib: one target per thing to do. `make` alone lists them.

ENV := .venv
ENV_COMPILE := .venv-compile
ENV_JAX012 := .venv-jax012
ENV_FOREIGN := .venv-foreign
ENV_LAB := .venv-lab
ENV_LINT := .venv-lint
ENV_LOCK := .venv-lock
BIN := $(CURDIR)/$(ENV)/bin

# Where the book is built: $(OUT)/_build/html.
OUT ?= .
HTML = $(abspath $(OUT))/_build/html
PORT ?= 8000

# The GPU machine's own Python: it has JAX with CUDA, and needs no network.
GPU_PYTHON ?= python3
RECORD_SITE := .record-site
WHEELS := .wheels
PEER_SITE := .peer-site
PEER_WHEELS := .peer-wheels
WHEEL_TAGS := manylinux_2_28 manylinux_2_24 manylinux_2_17 manylinux2014 manylinux_2_12 \
	manylinux2010 manylinux_2_5 manylinux1
DOWNLOAD = $(BIN)/python -m pip download --quiet --no-deps --only-binary=:all: \
	--disable-pip-version-check --python-version 3.12 --implementation cp \
	$(foreach tag,$(WHEEL_TAGS),--platform $(tag)_x86_64)

# The tests in two tiers. `make test` runs the fast one, `make test-all` both. What is marked `slow`
# is of the slow one, as is what is marked `compiler`; `gpu` is for `make test-gpu`.
JOBS ?= 2
PATHS ?= tests
PYTEST = -m pytest -n $(JOBS) --dist loadgroup
FAST := not slow and not compiler and not gpu
SLOW := (slow or compiler) and not gpu
# CPU seconds that a test of the fast tier may take. `make test-all` looks for what is far from it: a
# busy machine, whose cores are shared, takes longer for the same.
BUDGET := 5
# Where the tests are that run with the second JAX too: what is marked `both_jax`.
BOTH_JAX := tests/emitters tests/kernels tests/pallascope/tracing tests/pallascope/test_launches.py

.DEFAULT_GOAL := help
.PHONY: help book test test-all test-slow test-jax012 test-foreign lint sync refresh lab mutants serve record wheels peers peer-site dist test-gpu \
	benchmark lock clean \
	env env-compile env-jax012 env-foreign env-lab env-lint

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / \
		{ printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Without Pyodide the book has all but its laboratory, whose page says so.
book: env ## Build the book into _build/html (no GPU needed).
	@$(BIN)/python -m pipelib_book.laboratory.pyodide .pyodide || true
	@rm -rf $(OUT)/_build
	@$(BIN)/jupyter-book build . --path-output $(OUT) -q -W -n --keep-going || { \
		echo "The book was not built: mend the warnings above (they count" \
		"as errors), then run 'make book' again." >&2; exit 1; }
	@echo "The book is built. Open $(HTML)/index.html in a browser," \
		"or run 'make serve'."

test: env lint ## Run what every change needs: the fast tests, style and types.
	@$(BIN)/python $(PYTEST) -m "$(FAST)" --budget $(BUDGET) $(PATHS)

test-all: ## Run all tests that need no GPU: the fast ones, the slow ones, the second JAX.
	@$(MAKE) --no-print-directory test BUDGET=20
	@$(MAKE) --no-print-directory test-jax012
	@$(MAKE) --no-print-directory test-slow

# Without what compiles kernels, the tests of it are skipped, and say so. So is the test of `make lab`
# where that has never run.
test-slow: env ## Run the slow tests: chapters, the site, ptxas, ... (PATHS=tests/book: those there).
	@$(MAKE) --no-print-directory env-compile || true
	@$(BIN)/python $(PYTEST) -m "$(SLOW)" $(PATHS) $(ARGS)

test-jax012: env-jax012 ## Run with JAX 0.12.0.1 what may differ between the two.
	@$(ENV_JAX012)/bin/python $(PYTEST) -q -m "both_jax and not gpu" $(BOTH_JAX)

# Another folder that has JAX's tests, where GitHub cannot be reached: FOREIGN=folder.
FOREIGN ?= .foreign
test-foreign: env-jax012 env-foreign ## Trace and check the kernels of others.
	@PYTHONPATH=$(CURDIR) $(ENV_FOREIGN)/bin/python -m tests.foreign \
		--checkouts $(FOREIGN) --jax012 $(ENV_JAX012)/bin/python $(ARGS)

lint: env-lint ## Check the code's style (ruff) and types (pyright).
	@$(ENV_LINT)/bin/ruff check --quiet
	@$(ENV_LINT)/bin/ruff format --check --quiet
	@$(ENV_LINT)/bin/basedpyright

sync: env ## Bring each chapter's .ipynb into step with its .md.
	@$(BIN)/python -m tools.notebooks sync

refresh: env ## Make anew, without a GPU, what chapters show that needs none.
	@$(BIN)/python -m tools.notebooks refresh

# Root is who one is in a container; JupyterLab asks to be told that this is meant.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
lab: env-lab ## Open copies of the chapters, in lab/, in JupyterLab.
	@$(ENV_LAB)/bin/python -m tools.copies
	@PYTHONPATH=$(CURDIR) $(ENV_LAB)/bin/jupyter lab --notebook-dir=lab \
		--LabApp.default_url=/lab/tree/$(notdir $(firstword $(wildcard book/01_*.ipynb))) \
		--LabApp.app_settings_dir=$(CURDIR)/tools/lab $(AS_ROOT) $(ARGS)

mutants: env ## Grade the mutants of all exercises: an hour or two. ARGS: as of tools.grade_mutants.
	@$(BIN)/python -m tools.grade_mutants --jobs $(JOBS) $(ARGS)

serve: ## Serve the built book at http://localhost:8000 (PORT=... for another).
	@test -f $(HTML)/index.html || { \
		echo "There is no book yet: run 'make book' first." >&2; exit 1; }
	@$(BIN)/python -m http.server --directory $(HTML) --bind 127.0.0.1 $(PORT)

record: ## On a Hopper GPU: run the chapters and store their outputs.
	@tools/record_env.sh $(GPU_PYTHON) $(RECORD_SITE) $(WHEELS)
	@PYTHONPATH=$(CURDIR):$(CURDIR)/$(RECORD_SITE) \
		$(GPU_PYTHON) -m tools.notebooks record $(ARGS)

wheels: env ## Fetch into .wheels what `make record` needs on a machine without network.
	@rm -rf $(WHEELS)
	@$(DOWNLOAD) --dest $(WHEELS) --requirement requirements-record.txt || { \
		echo "The wheels could not be fetched: connect to the network," \
		"and run 'make wheels' again." >&2; exit 1; }
	@du -sh $(WHEELS)

# What is larger than a part is cut, so that each piece may travel by itself.
PART := 40m
peers: env ## Fetch into .peer-wheels the kernels that benchmarks measure beside ours.
	@rm -rf $(PEER_WHEELS) && mkdir $(PEER_WHEELS)
	@while read -r pin; do $(DOWNLOAD) --dest $(PEER_WHEELS) "$$pin" || \
		echo "$$pin cannot be had, so it will not be measured." >&2; \
		done < requirements-peers.txt
	@cd $(PEER_WHEELS) && find . -name '*.whl' -size +$(PART:m=M) \
		-exec split -d -b $(PART) {} {}.part ';' -delete
	@cd $(PEER_WHEELS) && wc -c * | awk '{ printf "%6.1f MiB  %s\n", $$1 / 2 ^ 20, $$2 } \
		END { print "What takes 64 MiB at a time takes the pieces in turn." }'

# The pieces may come one after the other. CUTLASS is several wheels of one folder, which pip
# would not merge.
peer-site: ## Unpack into .peer-site what is there of .peer-wheels.
	@cd $(PEER_WHEELS) 2>/dev/null || exit 0; for first in *.part00; do \
		test ! -e "$$first" || cat "$${first%00}"* > "$${first%.part00}"; done
	@for wheel in $(PEER_WHEELS)/*.whl; do test ! -e "$$wheel" || \
		$(GPU_PYTHON) -m zipfile -e "$$wheel" $(PEER_SITE) 2>/dev/null || \
		echo "$$wheel is not whole, so it is not measured: bring all its parts." >&2; done

dist: env ## Build the wheels into dist/: pipelib, pallascope, and the book's kit.
	@$(BIN)/python -m hatchling build -t wheel -d $(CURDIR)/dist
	@for folder in pallascope pipelib_book; do (cd $$folder && \
		$(BIN)/python -m hatchling build -t wheel -d $(CURDIR)/dist) || exit 1; done

# Some tests import what executes chapters, which a GPU machine may lack; the book's need still more.
# Most of the time goes into compiling kernels, on a core each.
GPU_JOBS ?= 8
test-gpu: ## On a Hopper GPU: run the tests that need it, and record the run.
	@tools/record_env.sh $(GPU_PYTHON) $(RECORD_SITE) $(WHEELS)
	@PYTHONPATH=$(CURDIR):$(CURDIR)/$(RECORD_SITE) $(GPU_PYTHON) -m pytest -p no:benchmark -m gpu \
		-n $(GPU_JOBS) tests \
		--ignore tests/book --gpu-record tests/gpu_record.json $(ARGS)

# The folder of this GPU's records (nvidia-h200), and its model's file in the package.
GPU = $(shell nvidia-smi --query-gpu=name --format=csv,noheader | head -1 | tr 'A-Z ' 'a-z-')
RESULTS = benchmarks/results/$(GPU)
MACHINE = pallascope/machines/$(GPU:nvidia-%=%).json
# ARGS: options that tune, matmul and attention all have, as --resume.
benchmark: peer-site ## On a Hopper GPU: measure, and write the records of benchmarks/.
	@nvidia-smi > /dev/null || { \
		echo "There is no GPU here: run 'make benchmark' on an H100 or H200." >&2; exit 1; }
	@mkdir -p $(RESULTS)
	@set -e; export PYTHONPATH=$(CURDIR):$(CURDIR)/$(PEER_SITE); \
		$(GPU_PYTHON) -m benchmarks.tune $(ARGS); \
		$(GPU_PYTHON) -m benchmarks.matmul $(ARGS); \
		$(GPU_PYTHON) -m benchmarks.attention $(ARGS); \
		$(GPU_PYTHON) -m benchmarks.decode; \
		$(GPU_PYTHON) -m benchmarks.grouped --rounds 5; \
		$(GPU_PYTHON) -m benchmarks.search; \
		$(GPU_PYTHON) -m benchmarks.memory_bound; \
		$(GPU_PYTHON) -m benchmarks.frameworks; \
		$(GPU_PYTHON) -m benchmarks.machine; \
		$(GPU_PYTHON) -m benchmarks.profile measure $(RESULTS)/profile.json; \
		$(GPU_PYTHON) -m benchmarks.machine derive $(RESULTS)/machine.json > machine.part; \
		mv machine.part $(MACHINE); \
		$(GPU_PYTHON) -m benchmarks.hazards; \
		$(GPU_PYTHON) -m benchmarks.wild; \
		$(GPU_PYTHON) -m benchmarks.sanitized; \
		$(GPU_PYTHON) -m benchmarks.tools_seen

LOCK = $(ENV_LOCK)/bin/uv pip compile --quiet --upgrade --python-version 3.12 \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links
lock: ## Refresh the pinned requirements from pyproject.toml.
	@tools/make_env.sh $(ENV_LOCK) requirements-lock.txt
	@for pin in 0.11.2 0.12.0.1; do \
		echo "jax==$$pin" > $(ENV_LOCK)/jax-$$pin.txt; done
	$(LOCK) --universal pyproject.toml --extra book --extra dev \
		-c $(ENV_LOCK)/jax-0.11.2.txt -o requirements.txt
	$(LOCK) --universal pyproject.toml --extra test \
		-c $(ENV_LOCK)/jax-0.12.0.1.txt -o requirements-jax012.txt
	set -e; for extra in cuda12 cuda13 lab; do \
		$(LOCK) --universal pyproject.toml --extra $$extra \
			-c requirements.txt -o requirements-$$extra.txt; done
	set -e; for group in compile peers; do \
		$(LOCK) --no-deps --group $$group -o requirements-$$group.txt; done
	$(LOCK) --universal --group foreign -c $(ENV_LOCK)/jax-0.11.2.txt -o requirements-foreign.txt
	$(LOCK) --universal --group lint -c requirements.txt -o requirements-lint.txt
	$(LOCK) --group record -c requirements.txt -o requirements-record.txt

clean: ## Remove what was built (environments and wheels too).
	rm -rf _build $(ENV) $(ENV_COMPILE) $(ENV_JAX012) $(ENV_FOREIGN) $(ENV_LAB) $(ENV_LINT) \
		$(ENV_LOCK) .foreign $(RECORD_SITE) $(WHEELS) $(PEER_SITE) $(PEER_WHEELS) .pytest_cache .ruff_cache .hypothesis .jax-cache

env:
	@tools/make_env.sh $(ENV) requirements.txt

# Nothing runs in it: it is the folder with what compiles kernels without a GPU, 184 MB to fetch.
env-compile:
	@tools/make_env.sh $(ENV_COMPILE) requirements-compile.txt --no-deps --no-compile

env-jax012:
	@tools/make_env.sh $(ENV_JAX012) requirements-jax012.txt

env-foreign:
	@tools/make_env.sh $(ENV_FOREIGN) requirements-foreign.txt

env-lab:
	@tools/make_env.sh $(ENV_LAB) requirements-lab.txt

# Its libraries are read, not run, so pip need not compile them.
env-lint:
	@tools/make_env.sh $(ENV_LINT) requirements-lint.txt --no-compile
