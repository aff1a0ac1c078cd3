# Needs Python 3.11 or newer and Linux. Everything is installed into .venv; nothing else of the machine changes,
# except for the few system packages that `make test` needs (as root; otherwise they are named).

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
# Another index for torch alone, such as one with CUDA builds: make demo TORCH_INDEX=URL
TORCH_INDEX ?=
SIZE ?= pilot
TARGET ?= smollm2-135m
MACHINE ?= cpu
# More arguments for pytest: make test ARGS="-k spec"
ARGS ?=
# With ARGS a part may hold none of the chosen tests (pytest's exit code 5); without, that is a failure.
IF_CHOSEN = $(if $(ARGS),|| [ $$? -eq 5 ])

BIN := .venv/bin
DONE := .venv/.done
LOG := .venv/log
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
PINS := requirements/container.txt requirements/server-cpu.txt requirements/console.txt requirements/dev.txt

.PHONY: help
help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: target $(DONE)/system-demo  ## The pilot on this machine, over a real SSH link, in the console
	@if [ -t 0 ] && [ -t 1 ] && [ -t 2 ]; then \
	    exec $(BIN)/eagle3-tui --local; \
	else \
	    exec $(BIN)/eagle3-tui launch --local --size $(SIZE) --target $(TARGET) --machine $(MACHINE) --watch --json 2>&1; \
	fi

.PHONY: test
test: lint target $(DONE)/system-test  ## Lint, types, import contracts and every test but the long ones
	@# The light ones mostly wait, so three at a time; what loads a real server or a real training has the machine to itself.
	@# In the folders' order, which ends with many quick ones: by number of tests, a file with four slow ones came last, alone.
	@$(BIN)/python -m pytest -m "not long and not slow" -n 3 --dist loadfile --no-loadscope-reorder --durations=10 $(ARGS) $(IF_CHOSEN)
	@$(BIN)/python -m pytest -m "slow and not long" --durations=10 $(ARGS) $(IF_CHOSEN)

.PHONY: test-long
test-long: target $(DONE)/system-test  ## The long tests: whole runs with a real server and a real training
	@$(BIN)/python -m pytest -m long --durations=10 $(ARGS)

.PHONY: bench
bench: target $(DONE)/system-test  ## Measure against the targets, beside the peers (ARGS="link --quick" for a look)
	@$(BIN)/python -m benchmarks $(ARGS)

.PHONY: bench-quality
bench-quality: target $(DONE)/system-demo  ## Served acceptance after a longer training, the pilot's and none: about 35 minutes
	@$(BIN)/python -m benchmarks quality $(ARGS)

.PHONY: target
target: install  ## Bring TARGET into the cache, once (demo and test do it too)
	@$(BIN)/eagle3 target $(TARGET)

.PHONY: lint
lint: install  ## ruff, mypy and the import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: install
install: $(DONE)/checked  ## Only the install, into .venv (demo and test do it too)
	@:

.PHONY: clean
clean:  ## Remove .venv and what tools left; runs, drafts and the cache stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
	find benchmarks eagle3 remote tui tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# Each step leaves a file, so that a second call costs nothing and a changed pin repeats only its step.

$(DONE)/python:
	@tools/make-venv "$(PYTHON)" .venv
	@mkdir -p $(DONE) && touch $@

# --no-deps: the lists are whole, and a resolver would add the CUDA builds that requirements/container.txt names.
$(DONE)/packages: $(PINS) | $(DONE)/python
	@tools/step $(LOG)/packages.txt "Installing packages into .venv (2.1 GB; about 3 minutes)." \
	    $(PIP) install --no-deps $(PINS:%=-r %)
	@touch $@

$(DONE)/torch: requirements/torch.txt $(DONE)/packages
	@tools/step $(LOG)/torch.txt "Installing torch (0.8 GB for a CPU build, several for a CUDA one; about 1 minute)." \
	    $(PIP) install $(if $(TORCH_INDEX),--index-url "$(TORCH_INDEX)") -r requirements/torch.txt
	@touch $@

$(DONE)/project: pyproject.toml $(DONE)/packages
	@tools/step $(LOG)/project.txt "Installing this project (editable)." \
	    $(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(DONE)/system-demo: | $(DONE)/python
	@tools/system-packages libnuma1
	@touch $@

$(DONE)/system-test: | $(DONE)/python
	@tools/system-packages libnuma1 openssh-server g++ fish tcsh
	@touch $@

$(DONE)/checked: $(DONE)/torch $(DONE)/project tools/check_install.py | $(DONE)/system-demo
	@tools/step $(LOG)/check.txt "Checking the install by importing it (about half a minute)." $(BIN)/python tools/check_install.py
	@touch $@
