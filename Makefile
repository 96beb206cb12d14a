# One set-up for everything: each goal below depends on the stamp, so a second call starts at once.
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ENV ?= Maze
AGENT ?= react
REPEAT ?= 1
EPISODES ?= $(REPEAT)
# A file with variables such as API keys for the commands below. Neither make nor the set-up reads it.
ENV_FILE ?= $(wildcard .env)
WITH_ENV = $(if $(ENV_FILE),$(BIN)/python scripts/with_env.py "$(ENV_FILE)" )
# Half of the time of the fast tests is waiting, so two cores finish sooner with three processes.
TEST_WORKERS ?= 3
# Half of the time of the tests of real processes is waiting, too.
LONG_WORKERS ?= 5
SOAK_S ?= 600
FUZZ_S ?= 600
FUZZ_JOBS ?= 2
FUZZ_STAMP := $(VENV)/.installed-fuzz
RAY_STAMP := $(VENV)/.installed-ray
ARE_VENV := .venv-are
ARE_STAMP := $(ARE_VENV)/.installed

.PHONY: help launch test test-long test-failed test-ray install check run run-lightweight results agentgym-run agentgym-run-lightweight agentgym-results faults soak fuzz bench bench-full sbom clean test-are test-formats test-agentgym mutants golden fuzz-formats
.DEFAULT_GOAL := help

help:
	@printf '%s\n' 'make launch            open the console' 'make test              run the tests' 'make test-long         run the tests of real processes (terminals, faults, commands, gateway, wheel) and the property tests in full' 'make test-ray          install Ray and run the tests on a cluster of it' 'make test-are          install ARE (600 MB) into .venv-are and run the tests of its scenarios' \
	  'make run ENV=BabyAI AGENT=oracle EPISODES=3' 'make run-lightweight   every lightweight environment once' \
	  'make results           what has run so far; agentgym-run, agentgym-run-lightweight and agentgym-results are the same' \
	  'make … ENV_FILE=FILE   with the variables of a file, e.g. API keys; by default those of .env' 'make check             lint, spelling, types, import directions' \
	  'make faults            every fault in its long form' 'make soak              record a history under faults and check it (SOAK_S=600 SEED=drawn)' 'make test-formats      round trips of exports and imports through the packages of the formats' 'make test-agentgym     AgentGym'"'"'s own Evaluator on our servers (AGENTGYM=<checkout>)' 'make golden            record anew what files, events, exports and commands look like' 'make mutants           plant a fault at a time, and see whether a test fails (MUTANTS=secret for one kind)' 'make fuzz FUZZ_S=600   fuzz every decoder; FUZZ_TARGET=sse for one' 'make fuzz-formats      fuzz the readers of foreign files for FUZZ_S seconds' 'make bench             measured ratios' 'make bench-full        the console under load and with big files' 'make sbom              write sbom.cdx.json: packages, licences and hashes of the default install' 'make install           set up .venv and stop' 'make clean             remove .venv and .venv-are'

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo 'Python 3.11 or newer is needed and none was found; install one, or run: make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) scripts/set_up.py $(VENV) requirements.lock --editable .
	@touch $@

install: $(STAMP)

launch: $(STAMP)
	@$(WITH_ENV)$(BIN)/agentgym-tui launch

run agentgym-run: $(STAMP)
	@$(WITH_ENV)$(BIN)/agentgym-runner --run "$(ENV)" --agent "$(AGENT)" --repeat "$(EPISODES)"

run-lightweight agentgym-run-lightweight: $(STAMP)
	@$(WITH_ENV)$(BIN)/agentgym-runner --battery lightweight --agent "$(AGENT)" --repeat "$(EPISODES)"

results agentgym-results: $(STAMP)
	@$(WITH_ENV)$(BIN)/agentgym-runner --results

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml
	$(BIN)/mypy
	$(BIN)/lint-imports

PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

test: $(STAMP)
	$(PYTEST) --forks=$(TEST_WORKERS) -m "not long" -p no:schemathesis

test-long: $(STAMP)
	AGENTGYM_EXAMPLES=full $(PYTEST) --forks=$(LONG_WORKERS) -m "long or hypothesis"

test-failed: $(STAMP)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --last-failed --last-failed-no-failures=none

$(RAY_STAMP): $(STAMP) tests/ray/requirements.lock
	@$(BIN)/python scripts/set_up.py $(VENV) tests/ray/requirements.lock
	@touch $@

test-ray: $(RAY_STAMP)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest tests/ray

$(ARE_STAMP): tests/are/requirements.lock
	@test -n "$(PYTHON)" || { echo 'Python 3.11 or newer is needed and none was found; install one, or run: make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) scripts/set_up.py $(ARE_VENV) tests/are/requirements.lock --no-compile
	@# compile only what the tests import: all packages would take as long as their installation
	PYTHONDONTWRITEBYTECODE= $(ARE_VENV)/bin/python -c 'import are.simulation.scenario_runner; from are.simulation.scenarios.utils.registry import registry; registry.get_all_scenarios()'
	@touch $@

test-are: $(STAMP) $(ARE_STAMP)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest tests/are

test-agentgym: $(STAMP)
	@$(BIN)/python -m tests.agentgym "$(AGENTGYM)"

test-formats: $(STAMP)
	@$(BIN)/python -m tests.foreign_packages

golden: $(STAMP)
	@$(BIN)/python -m tests.golden

mutants: $(STAMP)
	@$(BIN)/python -m tests.mutants $(MUTANTS)

fuzz-formats:
	@$(MAKE) fuzz FUZZ_TARGET="$(basename $(notdir $(wildcard tests/fuzz/targets/foreign_*.py)))" FUZZ_JOBS=1

faults: $(STAMP)
	AGENTGYM_FAULTS=full $(BIN)/python -m pytest tests/faults tests/history tests/tui/terminal/test_pty_safety.py

soak: $(STAMP)
	@$(BIN)/python -m tests.history --seconds $(SOAK_S) $(if $(SEED),--seed $(SEED))

$(FUZZ_STAMP): $(STAMP) tests/fuzz/requirements.lock
	@$(BIN)/python scripts/set_up.py $(VENV) tests/fuzz/requirements.lock
	@touch $@

fuzz: $(FUZZ_STAMP)
	@$(BIN)/python -m tests.fuzz run --seconds $(FUZZ_S) --jobs $(FUZZ_JOBS) $(FUZZ_TARGET:%=--target %)

bench: $(STAMP)
	@$(BIN)/python -m tests.benchmarks

bench-full: $(STAMP)
	@$(BIN)/python -m tests.benchmarks --full

sbom: $(STAMP)
	$(BIN)/python -m scripts.build_sbom sbom.cdx.json

clean:
	rm -rf $(VENV) $(ARE_VENV)
