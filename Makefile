# Needs only GNU make and Python >= 3.10. Every verb makes its virtual environment, .venv, by itself.

PYTHON ?= python3
PYTEST_ARGS ?=
FUZZ_ARGS ?=
SOAK_ARGS ?=
CONSTRAINTS ?= -c constraints.txt
# --no-compile: a third of the time; Python compiles a module when it is first imported
PIP_INSTALL = .venv/bin/python -m pip install --quiet --no-compile --disable-pip-version-check $(CONSTRAINTS)
PACKAGING = setup.cfg constraints.txt

.DEFAULT_GOAL = help
.NOTPARALLEL:
.PHONY: help demo test lint format types docs notebooks bench fuzz soak clean

help:  ## list the verbs
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

demo: .venv/demo  ## watch a remote environment being trained on
	.venv/bin/openenv-gym demo

test: .venv/dev  ## run the tests; PYTEST_ARGS="-n 0 -x tests/server" adds arguments
	.venv/bin/pytest -n 2 --dist loadfile $(PYTEST_ARGS)

lint: .venv/dev  ## check style and format
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

format: .venv/dev  ## repair style and format
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

# An installed copy, because neither mypy nor mkdocs follows the import hook of an editable install.
COPY = rm -rf build && $(PIP_INSTALL) --no-deps --no-build-isolation --target build/package .

types: .venv/dev  ## check the types
	$(COPY)
	cd build/package && ../../.venv/bin/mypy --strict -p openenv_gym \
	  --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache

docs: .venv/dev  ## build the pages of docs/ into build/docs
	$(COPY)
	.venv/bin/mkdocs build --strict --quiet

notebooks: .venv/dev  ## execute the notebooks, and store them with their plots
	.venv/bin/python notebooks/run.py

bench: .venv/dev  ## measure the speed
	.venv/bin/python benchmarks/run.py

fuzz: .venv/fuzz  ## look for crashes and hangs; FUZZ_ARGS="--inputs 50000 --seconds 60" is a short look
	.venv/bin/python endurance/fuzz.py $(FUZZ_ARGS)

soak: .venv/dev  ## ten minutes of faults, then see that nothing leaked; SOAK_ARGS="--minutes 1"
	.venv/bin/python endurance/soak.py $(SOAK_ARGS)

clean:  ## remove everything that is made
	rm -rf .venv build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/made:
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "openenv-gym needs Python >= 3.10 with the module venv, and '$(PYTHON)' is not that." \
	       "Name another: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/demo: .venv/made $(PACKAGING)  # no more than the demo needs, to be quick
	$(PIP_INSTALL) -e '.[server,sb3]'
	@touch $@

.venv/dev: .venv/made $(PACKAGING)
	$(PIP_INSTALL) -e '.[all,test,dev]'
	@touch .venv/demo $@

.venv/fuzz: .venv/dev
	$(PIP_INSTALL) -e '.[fuzz]'
	@touch $@
