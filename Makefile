# dibs on a machine that has Python 3.11 or newer and make, nothing else: `make run`, `make race`, `make test`.
#
#   make run                 install into .venv, then run the whole stack in the foreground; Ctrl-C ends it
#                            (DIBS_PORT, DIBS_STATE, DIBS_WEB, DIBS_WORKERS are read from the environment)
#   make race RACE="..."     race agents against the running stack; RACE holds options of `dibs race`
#   make test                lint, then every suite
#   make lock                bring requirements.lock up to pyproject.toml; UPGRADE=--upgrade takes newer releases
#   make clean               remove what was built; the state in .dibs stays
#   PYTHON=...               the interpreter to build .venv with

SHELL := /bin/sh
BIN := .venv/bin
READY := .venv/.ready
LOCK_TOOL := uv==0.13.9
TESTS := $(BIN)/python -m pytest

.PHONY: run race test lint unit integration acceptance install lock clean

run: install
	@exec $(BIN)/dibs up

race: install
	@exec $(BIN)/dibs race $(RACE)

# One after the other also under -j: the suites share the cores, and a lint error should end the run early.
test: install
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory integration
	@$(MAKE) --no-print-directory acceptance

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: install
	$(TESTS) tests/unit -n auto

integration: install
	$(TESTS) tests/integration tests/migration -n 2

acceptance: install
	$(TESTS) tests/acceptance -n 2

install: $(READY)
	@:

# The interpreters to try, and what one must have: a version, and the module that puts pip into a new environment
# (Debian packages it apart). Each is run, not looked up: a version manager's shim may be there and lead nowhere.
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3.13 python3.12 python3.11 python3)
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
HAS_VENV := import ensurepip, venv
define FIND_PYTHON
found=; bare=; \
for each in $(CANDIDATES); do \
    "$$each" -c '$(NEW_ENOUGH)' 2>/dev/null || continue; \
    if "$$each" -c '$(HAS_VENV)' 2>/dev/null; then found=$$each; break; fi; \
    bare=$$each; \
done; \
if [ -z "$$found" ] && [ -n "$$bare" ]; then \
    echo "$$bare has no venv module: apt install python3-venv, or name another interpreter with PYTHON=..." >&2; \
    exit 1; \
elif [ -z "$$found" ]; then \
    echo "dibs needs Python 3.11 or newer (tried: $(CANDIDATES)): install one, or name it with PYTHON=..." >&2; \
    exit 1; \
fi
endef
PIP_FLAGS := --quiet --disable-pip-version-check --no-input

# The stamp is written last, so an environment whose making was cut short is made anew, from an empty folder.
$(READY): requirements.lock pyproject.toml
	@$(FIND_PYTHON); \
	echo "installing into .venv with $$found (about a minute the first time)"; \
	"$$found" -m venv --clear .venv
	@$(BIN)/python -m pip install $(PIP_FLAGS) --require-hashes --only-binary :all: -r requirements.lock
	@$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --no-build-isolation --no-index -e .
	@touch $@

# Hashes of the wheels for every platform and Python, and no index address. The tool stays out of .venv.
lock:
	@$(FIND_PYTHON); "$$found" -m venv --clear build/lock
	@build/lock/bin/python -m pip install $(PIP_FLAGS) --only-binary :all: '$(LOCK_TOOL)'
	@build/lock/bin/uv pip compile pyproject.toml --extra dev --output-file requirements.lock --quiet \
	    --universal --python-version 3.11 --generate-hashes --only-binary :all: --no-annotate \
	    --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' $(UPGRADE)
	@if grep -n '://' requirements.lock; then echo 'requirements.lock holds an address' >&2; exit 1; fi

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.dibs/*' -prune -exec rm -rf {} +
