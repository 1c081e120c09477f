# Needs Python 3.11 or newer with venv, and make. Everything else is installed into .venv, again
# only when pyproject.toml or what is compiled has changed. The tests say themselves when Java 17 is
# missing.

PYTHON ?= python3
TAILER_TORTURE_ROUNDS ?= 1000
HISTORIES ?= 10000
HOURS ?= 1
ARGS ?=

VENV := .venv
RUN := $(VENV)/bin/python -m
DEMO := $(VENV)/.installed-demo
DEV := $(VENV)/.installed-dev
VALE := $(or $(shell command -v vale),$(CURDIR)/.cache/bin/vale)
# Builds in half the time, and with the flags of the tests' servers, which share the standard library.
GO_INSTALL := go install -trimpath -gcflags="all=-N -l -dwarf=false"
ACTIONLINT := $(or $(shell command -v actionlint),$(CURDIR)/.cache/bin/actionlint)
BUILT_FROM := pyproject.toml hatch_build.py tailer/native/_rowbytes.c

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo native catalog-server test test-slow test-all check test-lowest test-highest lint format docs \
	site pictures golden bench bench-quick torture soak fuzz prose simulate wheel release clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(DEMO) ## watch the changes of a real Delta table arrive
	@$(RUN) tools.demo $(ARGS)

native: $(DEV) ## build what decodes Parquet (needs cargo; without it pyarrow does, slower)
	$(RUN) tests.prepare native

catalog-server: ## build the Unity Catalog server that the tests use where it is (most of an hour)
	cargo install olai-uc-server --version 0.0.11 --features bin --root .cache/catalog-server-0.0.11

test: $(DEV) ## run the tests with a sample of their cases, in parts side by side (ARGS="-k feed" for some, in one)
	$(RUN) $(if $(ARGS),pytest $(ARGS),tests)

test-slow: $(DEV) ## run the slow tests, and all cases of the others
	$(RUN) tests slow

test-all: $(DEV) ## run all tests
	$(RUN) tests all

check: lint ## what a pull request must pass: lint, and the tests that start no server and no Java
	$(RUN) pytest -q -n auto -m "not programs and not java" $(ARGS)

test-lowest: $(DEV) ## the core of the tests with the lowest versions of what this needs
	$(RUN) tests.versions lowest $(ARGS)

test-highest: $(DEV) ## the same with the highest ones
	$(RUN) tests.versions highest $(ARGS)

lint: $(DEV) ## check style, types, spelling, scripts, workflows and prose
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) codespell_lib
	$(RUN) tests.support.crate
	$(VENV)/bin/shellcheck .ci/run tests/*.sh
	$(VENV)/bin/zizmor --quiet --offline .github
	@if $(MAKE) --silent $(ACTIONLINT) >/dev/null 2>&1; then \
	$(ACTIONLINT) -shellcheck $(VENV)/bin/shellcheck; else \
	echo "the workflows' syntax is not checked: there is no actionlint, and Go cannot build it here"; fi
	@if $(MAKE) --silent $(VALE) >/dev/null 2>&1; then $(MAKE) --no-print-directory prose; \
	else echo "the prose is not checked: there is no vale, and Go cannot build it here"; fi

prose: $(VALE) ## check the language of the pages with Vale, which Go builds once if it is missing
	$(VALE) --output=line README.md CONTRIBUTING.md SECURITY.md tests/README.md tests/golden/README.md docs

$(CURDIR)/.cache/bin/vale:
	GOBIN=$(@D) CGO_ENABLED=1 $(GO_INSTALL) github.com/vale-cli/vale/v3/cmd/vale@v3.21.0

$(CURDIR)/.cache/bin/actionlint:
	GOBIN=$(@D) CGO_ENABLED=0 $(GO_INSTALL) github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

format: $(DEV) ## put the code into its one form
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

docs: $(DEV) ## write the tables of options in docs/ from the code
	$(RUN) tools.docs_tables

site: $(DEV) ## build the documentation as a site into build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict --quiet

pictures: $(DEV) ## make the docs' drawings, and pictures of the demo and the console (needs Chromium)
	$(RUN) tools.drawings
	$(RUN) tools.pictures

golden: $(DEV) ## write tests/golden anew with Spark (needs Java 17)
	$(RUN) tests.golden.generate $(ARGS)

bench: $(DEV) ## measure against peers and bounds (ARGS="start read" for some of them)
	$(RUN) tests.benchmarks $(ARGS)

bench-quick: $(DEV) ## run the benchmarks that can on tiny data, without bounds
	$(RUN) tests.benchmarks --quick $(ARGS)

torture: $(DEV) ## TAILER_TORTURE_HOURS (1) of random rounds, then the tests' long runs, TAILER_TORTURE_ROUNDS (1000)
	$(RUN) tests.torture
	TAILER_TORTURE_ROUNDS=$(TAILER_TORTURE_ROUNDS) $(RUN) pytest --timeout=0 -m "slow or sampled" $(ARGS)

soak: $(DEV) ## watch a daemon with 200 feeds for HOURS=4: memory, descriptors, disk must not grow
	$(RUN) tests.soak $(if $(filter command line,$(origin HOURS)),--hours $(HOURS)) $(ARGS)

fuzz: $(DEV) ## read random legal logs and compare with a naive reader: HISTORIES (10000), on all cores
	$(RUN) tests.fuzz $(HISTORIES) $(ARGS)

simulate: $(DEV) ## look for schedules that break a promise, for HOURS=1 on all cores
	$(RUN) tests.simulation --hours $(HOURS) $(ARGS)

wheel: $(DEV) ## build the wheel into dist/
	$(RUN) build --wheel

release: $(DEV) ## build the release into dist/, twice, and prove it with each Python that is there
	$(RUN) pip install --quiet --disable-pip-version-check --editable '.[release]'
	$(RUN) tools.release $(ARGS)

clean: ## remove what make has made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# $(1) is the extra that is wanted.
define install
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "delta-tailer needs Python 3.11 or newer, and $(PYTHON) is" \
    "$$($(PYTHON) --version 2>/dev/null || echo missing): run make PYTHON=/path/to/python3.11" >&2; \
  exit 1; }
$(PYTHON) -m venv $(VENV)
$(RUN) pip install --quiet --disable-pip-version-check --editable '.[$(1)]'
endef

$(DEMO): $(BUILT_FROM)
	$(call install,demo)
	@touch $@

# Development holds all that the demo needs.
$(DEV): $(BUILT_FROM)
	$(call install,dev)
	@touch $(DEMO) $@
