# SPDX-License-Identifier: Apache-2.0
# make demo    set up .venv, build, and convert a real model
# make test    set up and run everything: base suite on two Pythons, peer suite on one
# make help    the rest
#
# PYTHON and SECOND_PYTHON choose the interpreters. torch, which the peer suite needs, has wheels for 3.11 only, so that
# is looked for first.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= $(or $(shell scripts/find_python.sh 3.11),python3)
SECOND_PYTHON ?= $(shell scripts/find_python.sh 3.13 3.14 3.12)
VENV := .venv
SECOND := .venv-second
BIN := $(VENV)/bin
PIP := -m pip --disable-pip-version-check --quiet
NATIVE := native/CMakeLists.txt $(wildcard native/*.cpp native/*.h native/kernels/*.h native/quants/*.cpp native/quants/*.h)
PYTEST := -m pytest -n 2 --dist loadgroup
FUZZ_SECONDS ?= 60

.PHONY: help demo test test-base test-aarch64 test-peers test-second check format bench fuzz vectors docs build clean

help:
	@echo "make demo          set up, build, and convert a real model"
	@echo "make test          everything: base suite on two Pythons, peer suite on one (under 40 minutes)"
	@echo "make test-base     the base suite alone (under 5 minutes)"
	@echo "make test-aarch64  the kernels on NEON by a cross compiler and qemu: the same bytes"
	@echo "make check         lint, formatting, types, generated docs"
	@echo "make format        apply formatting and safe fixes"
	@echo "make bench         all benchmarks, each with ours, the peer's and their ratio"
	@echo "make fuzz          FUZZ_SECONDS=$(FUZZ_SECONDS) for each reader"
	@echo "make vectors       write the golden files anew, by the real tools"
	@echo "make docs          write the generated parts of docs/ and README anew"
	@echo "make build         sdist, and the wheel from it, into dist/"
	@echo "make clean         remove what was built, and the environments"

# Environments: each stamp is one step, so that a second run does nothing.

%/.created:
	@$($(if $(filter $(VENV),$*),PYTHON,SECOND_PYTHON)) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tael needs Python 3.11 or later: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	$($(if $(filter $(VENV),$*),PYTHON,SECOND_PYTHON)) -m venv $*
	@touch $@

%/.built: %/.created pyproject.toml $(NATIVE)
	$*/bin/python scripts/requirements.py build > $*/build.txt
	$*/bin/python $(PIP) install -r $*/build.txt
	$*/bin/python $(PIP) install --no-build-isolation -e .
	@touch $@

%/.dev: %/.built
	$*/bin/python scripts/requirements.py dev > $*/dev.txt
	$*/bin/python $(PIP) install -r $*/dev.txt
	@touch $@

%/.peers: %/.dev
	$*/bin/python scripts/requirements.py peers > $*/peers.txt
	$*/bin/python $(PIP) install -r $*/peers.txt || { \
		echo "The peer suite could not be set up. torch 2.13.0 has wheels for Python 3.11 only; this is" \
			"$$($*/bin/python -V). Try: make clean; make PYTHON=/path/to/python3.11 test" >&2; exit 1; }
	@touch $@

%/.fuzz: %/.dev
	$*/bin/python scripts/requirements.py fuzz > $*/fuzz.txt
	$*/bin/python $(PIP) install -r $*/fuzz.txt
	@touch $@

.PRECIOUS: %/.created %/.built %/.dev %/.peers %/.fuzz

# What the README promises.

demo: $(VENV)/.built
	bash scripts/demo.sh $(BIN)/python

test: test-second test-peers

test-base: $(VENV)/.dev
	$(BIN)/python $(PYTEST) -m "not peer"

test-peers: $(VENV)/.peers $(VENV)/.fuzz
	$(BIN)/python $(PYTEST)

ifneq ($(SECOND_PYTHON),)
test-second: $(SECOND)/.dev
	$(SECOND)/bin/python $(PYTEST) -m "not peer"
else
test-second:
	@echo "!!! NOT TESTED on a second Python: none of 3.13, 3.14, 3.12 was found; name one by SECOND_PYTHON=" >&2
	@if [ "$${CI:-}" = true ]; then exit 1; fi
endif

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/generate.py --check

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.peers
	for benchmark in $(filter-out benchmarks/measure.py,$(wildcard benchmarks/*.py)); do echo "== $$benchmark"; $(BIN)/python "$$benchmark"; done

fuzz: $(VENV)/.fuzz
	$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS)

test-aarch64:
	native/check.sh

vectors: $(VENV)/.peers
	for script in tests/vectors/make_*.py; do echo "== $$script"; $(BIN)/python "$$script"; done

docs: $(VENV)/.dev
	$(BIN)/python docs/generate.py

build: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf build dist $(VENV) $(SECOND) .pytest_cache .mypy_cache .ruff_cache .hypothesis
