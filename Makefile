# shardsrv: `make serve` runs a node, `make test` checks everything; both do all of their own set-up, once.
#
#   make serve [DATA=./local_data] [ARGS="--shards 4"]   run node 0 in the foreground (root iggy/iggy: for development)
#   make cluster [CLUSTER=./local_cluster]               run the three nodes of docs/cluster.toml on this machine
#   make test                                            lint, types, tests; ends with the count
#   make test-long, make test-clients                    full counts of what takes long; released clients (network)
#   make test-rows [ROWS="--row S2-19"]                   mutations: the tests that docs/seed-rows.md names must notice
#   make build, make wheel, make bench, make clean
#
# PYTHON=python3.12 chooses an interpreter; SHARDSRV_DEBUG=1 and SHARDSRV_PURE=1 choose a build (after `make clean`).

OLDEST := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,\
            $(shell $(name) -c '$(OLDEST)' 2>/dev/null && echo $(name))))
VENV := .venv
BIN := $(VENV)/bin
DATA ?= ./local_data
CLUSTER ?= ./local_cluster
ARGS ?=
TESTS ?=
ROWS ?=
JOBS ?= $(shell nproc 2>/dev/null || echo 1)

# Ordinary modules too: setup.py compiles some of them, and looks by itself at what has changed.
COMPILED := setup.py $(shell find shardsrv -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.py')
REQUIREMENTS := import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
                print(*p["build-system"]["requires"], *p["project"]["dependencies"], \
                *p["project"]["optional-dependencies"]["test"], sep="\n")

.PHONY: serve cluster build test lint types test-long test-clients test-rows bench wheel clean
.NOTPARALLEL:
.DELETE_ON_ERROR:

serve: build
	@exec $(BIN)/shardsrv --node 0 --data $(DATA) --with-default-root-credentials $(ARGS)

cluster: build
	@exec $(BIN)/python tools/run_cluster.py --data $(CLUSTER) $(ARGS)

build: $(VENV)/.built

test: lint types
	@$(BIN)/python -m pytest $(TESTS)

lint: build
	@$(BIN)/ruff check .

types: build
	@$(BIN)/mypy

test-long: build
	@$(BIN)/python -m pytest --long $(TESTS)

test-clients: build
	@$(BIN)/python -m pytest --clients tests/clients $(TESTS)

test-rows: build
	@$(BIN)/python tools/mutate_rows.py $(ROWS)

bench: build
	@$(BIN)/python -m pytest bench $(TESTS)

wheel: $(VENV)/.requirements
	@$(BIN)/python -m pip --disable-pip-version-check wheel --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks
	find shardsrv \( -name '*.so' -o -name '*.c' -o -name '*.html' -o -name __pycache__ \) -prune -exec rm -rf {} +

# --- set-up, each step once ------------------------------------------------------------------------------------------

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "shardsrv: no Python 3.11 or later was found; install one, for example the package \
	python3 (or python3.11), or name it with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c '$(OLDEST)' || { echo "shardsrv: $(PYTHON) is not Python 3.11 or later; install one, for example the \
	package python3.11, or name it with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "shardsrv: $(PYTHON) lacks the module venv or \
	ensurepip; install the package python3-venv." >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.requirements: pyproject.toml $(VENV)/.created
	@$(BIN)/python -c '$(REQUIREMENTS)' > $(VENV)/requirements.txt
	@echo "shardsrv: installing what is needed into $(VENV)"
	@$(BIN)/python -m pip --disable-pip-version-check install -q -r $(VENV)/requirements.txt
	@touch $@

$(VENV)/.built: $(VENV)/.requirements $(COMPILED)
	@echo "shardsrv: compiling what has changed"
	@$(BIN)/python setup.py -q build_ext --inplace --parallel $(JOBS)
	@test -x $(BIN)/shardsrv || \
	    SHARDSRV_BUILT=1 $(BIN)/python -m pip --disable-pip-version-check install -q --no-build-isolation --no-deps -e .
	@touch $@
