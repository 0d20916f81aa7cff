# Every target sets itself up: `make demo` on a fresh machine needs Python 3.11 or later and make, nothing else.
PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
WORKERS ?= 2
ALSO ?=
BENCH_ARGS ?=
SEED ?= 1
BASE ?= HEAD
CASES ?= 20000
KILLS ?= 200
BIN := $(VENV)/bin
COMMA := ,
# A worker that dies, by a test that hangs (tests/conftest.py) or crashes, is not begun again: its test would be too.
# Files begin in the order of tests/conftest.py, the costliest first.
RUN_TESTS := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

.PHONY: demo test test-rest test-further test-fast test-line test-full slowest slowest-cold golden fuzz crash notebooks docs bench lint types clean

demo: $(VENV)/.demo-ready
	$(BIN)/nmf-zoo demo --folder demo --force

# The package, in minutes: kernels beside their slow twins, contracts, oracles, and checks of distributions at reduced size.
# With ALSO=rest the rest, too, in the same run: what both compile is compiled once.
IN_MINUTES := not rest and not further
test: $(VENV)/.test-ready
	$(RUN_TESTS) -m "$(if $(filter rest,$(ALSO)),not further,$(IN_MINUTES))" $(PYTEST_ARGS)

# What is beside it: further cases of checks of distributions, tests that take long, pages and notebooks, planted
# errors, which are tests of the checks, other samplers, campaigns, tools.
test-rest: $(VENV)/.test-ready
	$(RUN_TESTS) -m rest $(PYTEST_ARGS)

# Further cases that are not quick: for a change of an engine, a kernel or a check.
test-further: $(VENV)/.test-ready
	$(RUN_TESTS) -m further $(PYTEST_ARGS)

test-fast: $(VENV)/.test-ready
	$(RUN_TESTS) -m "not statistical and $(IN_MINUTES)" $(PYTEST_ARGS)

# On a second PyMC line: without the rest, kernels beside their slow twins, what engines compute, and what is asked of the
# source text, which are the first's.
ON_THE_FIRST := oracle contract/test_imports.py contract/test_names.py
test-line: $(VENV)/.test-ready
	$(RUN_TESTS) -m "not statistical and not engines and $(IN_MINUTES)" $(ON_THE_FIRST:%=--ignore=tests/%) $(PYTEST_ARGS)

# All tests, the statistical ones at full size.
test-full: $(VENV)/.test-ready
	NMF_ZOO_TEST_SIZE=full $(RUN_TESTS) $(PYTEST_ARGS)

# The 30 tests and files that cost most, in CPU seconds: what `make test` spends. With kernels and PyMC's functions compiled
# before, or, as on a new machine, not.
slowest: $(VENV)/.test-ready
	$(BIN)/nmf-zoo compile
	$(RUN_TESTS) $(PYTEST_ARGS); $(BIN)/python -m tests.durations

slowest-cold: export NMF_ZOO_TEST_COSTS := $(CURDIR)/build/cold/durations.json
slowest-cold: $(VENV)/.test-ready
	rm -rf build/cold
	NMF_ZOO_CACHE='$(CURDIR)/build/cold' PYTENSOR_FLAGS=base_compiledir='$(CURDIR)/build/cold/pytensor' $(RUN_TESTS) $(PYTEST_ARGS); \
	  $(BIN)/python -m tests.durations

# What every engine gives at fixed seeds, from a commit and from the working tree: the same bits, or a table of what differs.
golden: $(VENV)/.test-ready
	$(BIN)/python -m tests.golden --base $(BASE)

# Damaged files for every reader, bad command lines, random models on every engine; SEED=2 makes others. The last goes on
# where it was stopped.
fuzz: $(VENV)/.test-ready
	$(BIN)/python -m tests.property.files --seed $(SEED)
	$(BIN)/python -m tests.property.command_lines --seed $(SEED)
	mkdir -p build
	$(BIN)/python -m tests.property.fuzz --cases $(CASES) --seed $(SEED) --resume build/fuzz-$(SEED).jsonl
	$(BIN)/python -m tests.property.fuzz --models overdispersed errors blocks powers_in_blocks --cases $(CASES) --seed $(SEED) --resume build/fuzz-newer-$(SEED).jsonl

# Kills at random moments, signals, full disks, damaged and forbidden files.
crash: $(VENV)/.test-ready
	$(BIN)/python -m tests.crash --kills $(KILLS) --interrupt 23 --terminate 23 --full 21 --damage 42 --forbid 42 --seed $(SEED)

notebooks: $(VENV)/.notebooks-ready
	$(BIN)/python -m notebooks.run

# The site, in build/site/index.html; a warning is an error. Pages of names that are gone would stay.
docs: $(VENV)/.docs-ready
	rm -rf docs/reference/generated
	$(BIN)/python -m sphinx -W --keep-going docs build/site

# The standard table, written into its page; parts that take long run by name, as `make bench BENCH_ARGS=scaling`.
bench: $(VENV)/.bench-ready
	$(BIN)/python -m benchmarks --write docs/benchmarks.md $(BENCH_ARGS)

lint: $(VENV)/.dev-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev-ready
	$(BIN)/mypy

clean:
	rm -rf .venv .venv-other build dist demo docs/notebooks docs/reference/generated *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find nmf_zoo tests -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per extra, also where pip installs several, `.venv/.dev,docs-ready`; it runs again only when pyproject.toml
# changes. Python compiles a module that it imports, and keeps that: to compile all modules of all packages, of which a run
# imports a third, takes pip longer than all else that it does.
$(VENV)/.%-ready: pyproject.toml | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[$*]'
	@touch $(patsubst %,$(VENV)/.%-ready,$(subst $(COMMA), ,$*))

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "nmf_zoo needs Python 3.11 or later; $(PYTHON) is '$$($(PYTHON) --version 2>&1)'. Try: make PYTHON=python3.13" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@
