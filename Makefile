# The commands of this project. CI runs the same ones (.ci/run).

.DEFAULT_GOAL := help
.PHONY: help install setup check fmt test soak demo sim digests bench fuzz
BIN := .venv/bin

help:  ## show these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: .venv/run.stamp  ## create .venv with Coterie alone; find or fetch Java

setup: .venv/dev.stamp  ## create .venv with everything for work on Coterie; find or fetch Java

check: .venv/dev.stamp  ## check format, lint, types and the import contracts of the packages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: .venv/dev.stamp  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: .venv/dev.stamp  ## run all tests except those of `soak`
	-$(BIN)/python -m tests.class_archives
	@# Hundreds of processes import the same modules: without compiled ones each would compile them.
	@# Python's development mode without its debug allocator, which only finds faults in extensions written in C.
	PYTHONDONTWRITEBYTECODE= PYTHONDEVMODE=1 PYTHONMALLOC=pymalloc $(BIN)/python -m pytest -q -n 3 --dist loadgroup --no-loadscope-reorder

soak: .venv/dev.stamp  ## run the tests that take minutes each: repeated kills of sinks' owners, rolling updates, clusters with Kafka Connect
	@echo "Runs one test after the other and shows each as it runs. All of them take hours; pytest's option -k selects some."
	$(BIN)/python -X dev -m pytest -v -p no:randomly -m soak

demo: .venv/run.stamp  ## run a broker and three workers on real data, and kill one worker in the middle of a batch
	$(BIN)/coterie demo

sim: .venv/dev.stamp  ## run the simulator; SEEDS="1 2 3" or SEEDS=1-40, PLAY=fleet, connect, clients or producers
	$(BIN)/python -m coterie.lab.simulator --jobs 2 $(if $(PLAY),--play $(PLAY)) $(if $(SEEDS),--seeds "$(SEEDS)")

digests: .venv/dev.stamp  ## compare the simulator's digests with tests/lab/digests; WRITE=yes writes those of seeds 1-2000
	for play in fleet connect clients producers; do \
		$(BIN)/python -m coterie.lab.simulator --jobs 2 --quiet --play $$play \
			$(if $(WRITE),--seeds 1-2000 --write,--compare) tests/lab/digests/$$play.txt || exit 1; \
	done

fuzz: .venv/dev.stamp  ## fuzz with hostile frames: decode a million, send 50,000 to a broker; FRAMES=… SEED=…
	$(BIN)/python -m tests.wire.fuzzing --frames $(or $(FRAMES),1000000) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.broker.fuzzing --frames $(or $(FRAMES),50000) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.broker.fuzzing --frames $(or $(FRAMES),50000) --seed $(or $(SEED),1) --protocol SASL_PLAINTEXT

bench: .venv/dev.stamp  ## run the benchmarks, also of Apache Kafka and plain Spark; prints JSON lines (docs/benchmarks.md)
	$(BIN)/python -m benchmarks.bench_group
	$(BIN)/python -m benchmarks.bench_log
	$(BIN)/python -m benchmarks.bench_assignor
	$(BIN)/python -m benchmarks.bench_rebalance
	$(BIN)/python -m benchmarks.bench_rest
	$(BIN)/python -m benchmarks.bench_rest --case metrics --requests 50
	$(BIN)/python -m benchmarks.bench_pipeline
	$(BIN)/python -m benchmarks.bench_latency
	$(BIN)/python -m benchmarks.bench_resplit
	$(BIN)/python -m benchmarks.bench_density
	$(BIN)/python -m benchmarks.bench_small_batch
	$(BIN)/python -m benchmarks.bench_neighbours
	$(BIN)/python -m benchmarks.bench_move

# `demo` needs only Coterie's own dependencies; the other commands also need the tools.
.venv/run.stamp: pyproject.toml tools/setup.sh
	sh tools/setup.sh run
.venv/dev.stamp: pyproject.toml tools/setup.sh
	sh tools/setup.sh dev
