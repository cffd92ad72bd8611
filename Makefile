# The words of this house. CI runs the same ones (.ci/run).

.DEFAULT_GOAL := help
.PHONY: help setup check fmt test soak demo sim digests bench fuzz
BIN := .venv/bin

help:  ## say what the words mean
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/dev.stamp  ## make .venv with everything for work on Coterie; find or fetch Java

check: .venv/dev.stamp  ## format, lint, types, contracts between the rooms
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: .venv/dev.stamp  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: .venv/dev.stamp  ## every test
	-$(BIN)/python -m tests.class_archives
	PYTHONDEVMODE=1 $(BIN)/python -m pytest -q -n 3 --dist loadgroup

soak: .venv/dev.stamp  ## the tests that take minutes each: sinks' owners killed again and again, rolling updates, clusters with Kafka Connect
	@echo "One test after the other, each told as it runs. All of them take hours; -k of pytest chooses some."
	$(BIN)/python -X dev -m pytest -v -p no:randomly -m soak

demo: .venv/run.stamp  ## broker, three workers, real data, one worker killed in the middle of a batch
	$(BIN)/coterie demo

sim: .venv/dev.stamp  ## the simulator; SEEDS="1 2 3" or SEEDS=1-40, PLAY=fleet, clients or producers
	$(BIN)/python -m coterie.lab.simulator --jobs 2 $(if $(PLAY),--play $(PLAY)) $(if $(SEEDS),--seeds "$(SEEDS)")

digests: .venv/dev.stamp  ## compare the simulator's digests with tests/lab/digests; WRITE=yes writes those of seeds 1-2000
	for play in fleet clients producers; do \
		$(BIN)/python -m coterie.lab.simulator --jobs 2 --quiet --play $$play \
			$(if $(WRITE),--seeds 1-2000 --write,--compare) tests/lab/digests/$$play.txt || exit 1; \
	done

fuzz: .venv/dev.stamp  ## hostile frames: a million decoded, 50,000 sent to a broker; FRAMES=… SEED=…
	$(BIN)/python -m tests.wire.fuzzing --frames $(or $(FRAMES),1000000) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.broker.fuzzing --frames $(or $(FRAMES),50000) --seed $(or $(SEED),1)
	$(BIN)/python -m tests.broker.fuzzing --frames $(or $(FRAMES),50000) --seed $(or $(SEED),1) --protocol SASL_PLAINTEXT

bench: .venv/dev.stamp  ## the benchmarks, beside Apache Kafka and plain Spark: JSON lines (docs/benchmarks.md)
	$(BIN)/python -m benchmarks.bench_group
	$(BIN)/python -m benchmarks.bench_log
	$(BIN)/python -m benchmarks.bench_assignor
	$(BIN)/python -m benchmarks.bench_rebalance
	$(BIN)/python -m benchmarks.bench_pipeline
	$(BIN)/python -m benchmarks.bench_latency
	$(BIN)/python -m benchmarks.bench_resplit
	$(BIN)/python -m benchmarks.bench_density
	$(BIN)/python -m benchmarks.bench_small_batch
	$(BIN)/python -m benchmarks.bench_neighbours
	$(BIN)/python -m benchmarks.bench_move

# `demo` needs what Coterie itself needs and no more; the tools come with the other words.
.venv/run.stamp: pyproject.toml tools/setup.sh
	sh tools/setup.sh run
.venv/dev.stamp: pyproject.toml tools/setup.sh
	sh tools/setup.sh dev
