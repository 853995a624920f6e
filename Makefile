# Everything sets up .venv when it is missing or out of date, and reuses it otherwise.
#   make demo    BEER against three other methods on embedded data (no network once installed)
#   make test    the default tests; with CI=1 the slow ones too
#   make lint    ruff and mypy (strict)
#   make docs    the documentation, warnings are errors
#   make bench   all speeds, on the CPU and on a GPU if there is one; writes docs/results/speed.* (AGAINST=COMMIT compares)
#   make bench-short   few speeds; fails if one got much worse than the committed results
#   make clean   remove what the others made, .venv included

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

MARKERS := $(if $(CI),not long,not slow and not long)
# Real data sets for the tests that want them; the folder beside the checkout unless $GOSSAMER_DATA says otherwise.
export GOSSAMER_DATA ?= $(abspath $(wildcard ../shared/data))

.PHONY: demo test lint docs bench bench-short clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Gossamer needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) --version); set PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $(READY)

demo: $(READY)
	$(BIN)/gossamer demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "$(MARKERS)" $(ARGS)

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/sphinx-build -W -q -b doctest docs docs/_build/doctest

bench: $(READY)
	$(BIN)/python benchmarks/speed.py --write $(if $(AGAINST),--against $(AGAINST)) $(ARGS)

bench-short: $(READY)
	$(BIN)/python benchmarks/speed.py --short $(ARGS)

clean:
	rm -rf $(VENV) docs/_build build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis gossamer-demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
