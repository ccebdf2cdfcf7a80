# On a fresh machine with Python 3.11+ and Java 17+: `make demo` shows it at work, `make test` tests it.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test prove matrix smoke conformance lint docs audit dist release format bench bench-quick servers \
	clean

help: ## say what there is to make
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 14

# Twice the two cores of a small machine: much of it is waiting, and with three of them a tenth of the time is idle. Long
# files begin first (tests/conftest.py).
AT_ONCE = -n 4 --dist loadfile --no-loadscope-reorder

setup: .venv/.dev ## make .venv with everything for development

demo: .venv/.demo ## run the example jobs, their state in a folder or elsewhere (ROOT=gs://bucket/path)
	@scripts/run python -m examples.flights $(if $(ROOT),--root $(ROOT))

test: servers ## run the tests; those whose server is missing are skipped by name
	@scripts/run python -m pytest $(AT_ONCE) --durations 25

PROOFS ?= tests

prove: servers ## run the long proofs, for hours, or some (PROOFS=files), and write docs/proof.md
	@CHECKPOINTER_REQUIRE_SERVERS=1 CHECKPOINTER_PROVE=docs/proof.md scripts/run python -m pytest -o faulthandler_timeout=10800 $(PROOFS)

# With PYTHON=python3.12 on another Python that is on the PATH.
SPARKS ?=
PYTHON ?=
TESTS ?= tests/spark tests/admin/streaming tests/table tests/proof/test_table_spark.py

matrix: servers ## run Spark's tests on other versions of PySpark, or on some (SPARKS=versions)
	@scripts/run python scripts/matrix $(SPARKS) $(if $(PYTHON),--python $(PYTHON)) -- $(AT_ONCE) $(TESTS)

# Maps and tables, a replay, a rewind, an undo and a fork.
SMOKE ?= tests/spark/test_versions.py tests/spark/test_maps.py tests/spark/test_sink.py tests/spark/test_rewind.py \
	tests/spark/test_table.py -k "test_versions or test_maps or goes_on or forgot or replay or undo_puts or fork_and \
	or committed_together or swallowed"

smoke: .venv/.dev ## run a few of Spark's tests on the oldest PySpark
	@scripts/run python scripts/matrix oldest --no-kafka -- $(SMOKE)

conformance: servers ## run the tests of stores on other servers of S3's protocol, and write the table of docs/stores.md
	@scripts/run python -m tests.s3_servers

lint: .venv/.dev ## check formatting, style and types
	.venv/bin/python scripts/unasync --check
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

docs: .venv/.dev ## build the site into build/docs; a warning is an error
	@.venv/bin/python scripts/draw-batch --check
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict
	@echo "build/docs/index.html"

audit: .venv/.dev ## ask whether a dependency is known to be vulnerable
	@.venv/bin/python scripts/audit

dist: .venv/.dev ## build the wheel and its bill of materials of the last commit, twice, into dist
	@.venv/bin/python scripts/dist

release: .venv/.dev ## make a signed release of a clean clone, up to the upload
	@.venv/bin/python scripts/release

format: .venv/.dev ## format the sources, and generate the blocking faces
	.venv/bin/python scripts/unasync
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

bench: .venv/.bench ## run the benchmarks
	@scripts/run python -m benchmarks

bench-quick: .venv/.bench ## run the benchmarks at a small size
	@scripts/run python -m benchmarks --quick

servers: .venv/.dev ## install the servers and the browser that the tests start
	@# At once: most of each is waiting for the network. What is missing is said by the tests that need it.
	@.venv/bin/python -m tests.servers & .venv/bin/python -m tests.proof.checker & .venv/bin/python -m tests.browser & \
	scripts/run python -m tests.kafka & scripts/run python -m tests.jvm & wait

clean: ## remove everything that is made here
	rm -rf .venv .cache build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -rf metastore_db derby.log spark-warehouse

.venv/.%: pyproject.toml scripts/setup
	@scripts/setup $*
	@touch $@
