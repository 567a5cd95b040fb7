# diskq's front door: `make help` lists what it does.
# Needs Python 3.11 or newer, make and a C compiler. Everything else is installed into .venv.

VENV ?= .venv
PYTHON ?=
ARGS ?=
QUICK ?=
FUZZ_SECONDS ?= 3600
FUZZ_JOBS ?= $(shell nproc 2>/dev/null || echo 1)

PY := $(VENV)/bin/python
PIP := $(PY) -m pip --quiet --no-input --disable-pip-version-check
STAMPS := $(VENV)/stamps
COMPILED_FROM := setup.py $(foreach kind,pyx pxd h,$(wildcard diskq/_native/*/*.$(kind)))
STUBBED := $(subst /,.,$(basename $(wildcard diskq/_native/*/*.pyi)))

# A test run starts hundreds of interpreters: each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

# Not by `$(MAKE)` in the recipe: such a line is run by `make -n`, too.
MAKE_SPARK = $(MAKE) --no-print-directory $(STAMPS)/demo

# What an extra needs; diskq is there, and installing it again would compile it again.
require = $(PY) scripts/requirements.py $(1) > $(VENV)/$(1).txt && $(PIP) install -r $(VENV)/$(1).txt

say = @printf '  %-9s %s\n' $(1) $(2)

.PHONY: help demo test test-all soak torture build docs lint format types wheel-check release-check spark-check bench instructions clean distclean
.DELETE_ON_ERROR:

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "  ARGS=... goes to the program that a target runs: make test ARGS='-k torn -x'"

# Spark is 400 MB: the queue and the stream run while it is fetched.
demo: $(STAMPS)/compiled ## 336,776 real messages through a queue and a stream, killed midway, and Spark
	@$(PY) examples/demo.py --meanwhile '$(MAKE_SPARK)' $(ARGS)

# Three at once: on two cores, too, what waits for a disk or for a JVM leaves one idle; ARGS='-n 0' is one by one.
test: $(STAMPS)/dev $(STAMPS)/compiled ## run the tests: each promise once
	@$(PY) -m pytest -n 3 $(ARGS)

# The level is of tests/sampling.py; ARGS="-m 'exhaustive or sampled or hypothesis'" is what `make test` left of it.
test-all: $(STAMPS)/dev $(STAMPS)/compiled ## run every test, with larger samples
	@DISKQ_EXHAUSTIVE=1 $(PY) -m pytest -n 3 -m "" $(ARGS)

build: $(STAMPS)/compiled ## install into .venv and compile what changed
	@:

soak: $(STAMPS)/dev $(STAMPS)/compiled ## the long runs: 100 x 1,000 rolls, a minute of retention, 490 processes killed (an hour)
	@DISKQ_SOAK_RUNS=100 DISKQ_SOAK_ROLLS=1000 DISKQ_SOAK_SECONDS=60 DISKQ_SOAK_KILLS=20 \
	    DISKQ_SOAK_SPOOL_MESSAGES=100000 DISKQ_SOAK_SPOOL_KILLS=50 DISKQ_SOAK_SPOOL_LIVES=200 DISKQ_SOAK_RECORDS=1000000 \
	    DISKQ_SOAK_HUB_SECONDS=1800 DISKQ_SOAK_TABLE_KILLS=200 \
	    $(PY) -m pytest -m "" tests/soak tests/channels/spool/test_web_workers.py tests/tables/test_killed.py \
	        tests/spark/test_tables.py $(ARGS)

# Where a rig cannot work (strace may not attach), it says so and fails. The peers' rows want Go for one of them.
# One after the other, each whether or not those before it failed; it fails if one did.
TORTURES := $(if $(QUICK),,torture-crashes) torture-rigs torture-killed torture-peers torture-disks torture-truth torture-fuzz \
    torture-leaks
.PHONY: $(TORTURES)

torture: $(STAMPS)/dev $(STAMPS)/bench $(STAMPS)/fuzz $(STAMPS)/compiled ## every crash, fault and flipped byte, ours and the peers' (days on one core); QUICK=1: minutes
	@$(MAKE) --no-print-directory --keep-going -j1 $(TORTURES)

torture-crashes:
	@DISKQ_EVERY_FAULT=1 $(PY) -m pytest -m "" tests/contract tests/crash tests/engine tests/torture tests/spark/test_cluster.py tests/cli/test_standard_streams.py

torture-rigs:
	@$(PY) -m tests.torture $(if $(QUICK),--short --only ours,--out benchmarks/results) $(ARGS)
	$(if $(QUICK),,@$(PY) -m scripts.readme_table)

torture-killed:
	@$(PY) -m tests.torture.killed --cases $(if $(QUICK),300,5000)

# The real go-diskqueue, go-diskq and sej; what cannot be built or mounted here is left out, with a sentence.
torture-peers:
	@$(PY) -m tests.torture.peer_first --cases $(if $(QUICK),63,630)

torture-disks:
	@$(PY) -m tests.torture.real_disks --cuts $(if $(QUICK),20,100)

torture-truth:
	@$(PY) -m tests.torture.truth --seeds $(if $(QUICK),300,3000)

# An hour for each decoder, on all cores: FUZZ_SECONDS and FUZZ_JOBS are others.
torture-fuzz:
ifneq ($(QUICK),)
	@$(PY) -m tests.torture.fuzz --seconds 30
else
	@$(PY) -m tests.torture.fuzz --guided try --each $(FUZZ_SECONDS) --jobs $(FUZZ_JOBS)
endif

torture-leaks:
	@$(PY) -m tests.torture.leaks --messages $(if $(QUICK),200000,10000000)

lint: $(STAMPS)/dev ## style and likely bugs (ruff)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check --quiet --diff .

format: $(STAMPS)/dev ## lay the code out as `make lint` wants it
	@$(PY) -m ruff check --fix-only --quiet $(or $(ARGS),.)
	@$(PY) -m ruff format $(or $(ARGS),.)

types: $(STAMPS)/dev $(STAMPS)/compiled ## types (mypy), and the .pyi files against the compiled modules
	@$(PY) -m mypy
	$(if $(STUBBED),@$(PY) -m mypy.stubtest --mypy-config-file pyproject.toml --ignore-disjoint-bases \
	    --ignore-unused-allowlist --allowlist scripts/stubtest_allowlist.txt $(STUBBED))

docs: $(STAMPS)/docs $(STAMPS)/compiled ## these documents as a site, with a reference of everything: build/docs/index.html
	@rm -rf build/docs
	@$(PY) -m sphinx -q -W --keep-going -j auto -d build/doctrees -b html $(ARGS) docs build/docs

wheel-check: $(STAMPS)/dev ## build sdist and wheel, and use the wheel in an empty environment
	@$(PY) scripts/wheel_check.py

release-check: wheel-check ## is this commit fit to be released?
	@rm -rf build/release
	@$(PY) -m build --outdir build/release . >/dev/null
	@$(PY) -m twine check --strict build/release/*
	@$(PY) -m scripts.release_check

spark-check: $(STAMPS)/dev ## Spark from the wheel in empty environments, one without Java (some minutes)
	@$(PY) -m scripts.spark_check $(ARGS)

bench: $(STAMPS)/bench $(STAMPS)/compiled ## measure, beside the peers, and report (45 minutes); QUICK=1: five minutes
	@$(PY) -m benchmarks $(if $(QUICK),--quick) $(ARGS)
	$(if $(QUICK)$(ARGS),,@$(PY) -m scripts.readme_table)

instructions: $(STAMPS)/install $(STAMPS)/compiled ## instructions a message, against what is recorded (needs valgrind)
	@$(PY) -m benchmarks.instructions --check $(ARGS)

clean: ## remove what builds and tests leave (.venv stays)
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@rm -f diskq/_native/*/*.so diskq/_native/*/*.c diskq/_native/*/*.html $(STAMPS)/compiled
	@find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean ## ... and .venv
	@rm -rf $(VENV)

# --- stamps: each is one step that need not be done again ---------------------------------

# wheel: an old pip complains at length about pyspark where it is missing.
$(STAMPS)/venv:
	@python=$$(PYTHON='$(PYTHON)' sh scripts/check_tools.sh) || exit 1; \
	printf '  %-9s %s with %s\n' create '$(VENV)' "$$python"; \
	"$$python" -m venv $(VENV)
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
	    > $(VENV)/build-requires.txt
	@$(PIP) install wheel -r $(VENV)/build-requires.txt
	@mkdir -p $(STAMPS) && touch $@

# Without build isolation: the compiler's inputs are in .venv already. Without modules: $(STAMPS)/compiled makes them.
$(STAMPS)/install: $(STAMPS)/venv pyproject.toml
	$(call say,install,'diskq with its command')
	@DISKQ_NO_MODULES=1 $(PIP) install --no-build-isolation -e '.[cli]'
	@touch $@

$(STAMPS)/dev: $(STAMPS)/install
	$(call say,install,'test and lint tools')
	@$(call require,dev)
	@touch $@

# Only for who has the Java that it runs on.
$(STAMPS)/demo: $(STAMPS)/install
	@if command -v java >/dev/null || [ -n "$$JAVA_HOME" ]; then \
	    printf '  %-9s %s\n' install "Spark, for the demo's last part, while the others run"; \
	    $(call require,demo); \
	fi
	@touch $@

$(STAMPS)/docs: $(STAMPS)/install
	$(call say,install,'what makes the site')
	@$(call require,docs)
	@touch $@

$(STAMPS)/bench: $(STAMPS)/install
	$(call say,install,'the peers to measure against')
	@$(call require,bench)
	@touch $@

# Without it, and without clang, fuzzing changes bytes at random, and says so.
$(STAMPS)/fuzz: $(STAMPS)/install
	$(call say,install,'what guides the fuzzing')
	@$(call require,fuzz) || echo '  atheris cannot be installed here'
	@touch $@

$(STAMPS)/compiled: $(STAMPS)/install $(COMPILED_FROM)
	$(call say,compile,'diskq/_native')
	@$(PY) setup.py --quiet build_ext --inplace
	@touch $@
