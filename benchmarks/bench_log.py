"""How fast a broker's log is for an ordinary client: Coterie's embedded broker, and for comparison Apache Kafka.

``python -m benchmarks.bench_log`` prints one JSON line; `docs/benchmarks.md` explains its keys.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks import brokers
from benchmarks.brokers import MeasuredBroker, print_progress
from benchmarks.light_groups import milliseconds
from tests.kafka.real_kafka import ProgramUnavailableError

TOPIC = "bench"
PARTITIONS = 4
WARM_UP_RECORDS = 5_000
BATCH_SIZE = 131_072
LINGER_MS = 5
"""The Java producer's default since Kafka 4.0. Its batches have at most 16 KB; in this benchmark they may be larger."""
FETCHED_AT_ONCE = 1_000
DEADLINE_S = 120

KAFKA_PROPERTIES = "log.flush.interval.messages=1\n"
"""By default Kafka acknowledges a batch in the page cache; Coterie's broker acknowledges a batch on disk. With this
setting Kafka also flushes every batch before it acknowledges the batch."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_log", description=__doc__)
    parser.add_argument("--records", type=int, default=100_000, help="produced and fetched (default: %(default)s)")
    parser.add_argument("--size", type=int, default=500, help="bytes of a record's value (default: %(default)s)")
    parser.add_argument("--singles", type=int, default=200, help="records written one by one (default: %(default)s)")
    parser.add_argument("--core", type=int, default=0, help="the broker's core (default: %(default)s)")
    parser.add_argument("--no-peer", action="store_true", help="leave Apache Kafka out")
    options = parser.parse_args(arguments)
    try:
        result = measure(options)
    except ProgramUnavailableError as reason:
        print_progress(f"bench_log: {reason}")
        return 1
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def measure(options: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {
        "benchmark": "log",
        "records": options.records,
        "record_bytes": options.size,
        "partitions": PARTITIONS,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
    }
    with (
        tempfile.TemporaryDirectory(prefix="bench-log-") as folder,
        brokers.pinned_to_core(brokers.other_core(options.core)),
    ):
        with brokers.embedded(Path(folder), core=options.core, connections_max=100) as broker:
            result["embedded"] = measure_system(broker, "embedded", options)
        if not options.no_peer:
            (Path(folder) / "kafka").mkdir()
            with brokers.kafka(Path(folder) / "kafka", core=options.core, properties=KAFKA_PROPERTIES) as broker:
                result["kafka"] = measure_system(broker, "kafka", options)
    result["load_after"] = os.getloadavg()[0]
    if "kafka" in result:
        result["embedded_to_kafka"] = brokers.ratios(result["embedded"], result["kafka"])
    return result


def measure_system(broker: MeasuredBroker, name: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure all figures of one broker; ``name`` is printed with the progress."""
    bootstrap = f"127.0.0.1:{broker.port}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(DEADLINE_S)
    value = os.urandom(options.size)
    print_progress(f"{name}: warm-up, then {options.records} records of {options.size} bytes are produced ...")
    produce(bootstrap, WARM_UP_RECORDS, value)
    cpu_s = broker.cpu_s
    produced_s = produce(bootstrap, options.records, value)
    produced_cpu_s = broker.cpu_s - cpu_s
    print_progress(f"{name}: ... fetched ...")
    cpu_s = broker.cpu_s
    fetched_s = fetch(bootstrap, options.records)
    fetched_cpu_s = broker.cpu_s - cpu_s
    print_progress(f"{name}: ... and {options.singles} written one by one ...")
    latencies_s = one_by_one(bootstrap, options.singles, value)
    megabytes = options.records * options.size / 1e6
    return {
        "produced_records_per_s": round(options.records / produced_s),
        "produced_mb_per_s": round(megabytes / produced_s, 2),
        "produced_records_per_cpu_s": brokers.per_cpu_s(options.records, produced_cpu_s),
        "fetched_records_per_s": round(options.records / fetched_s),
        "fetched_mb_per_s": round(megabytes / fetched_s, 2),
        "fetched_records_per_cpu_s": brokers.per_cpu_s(options.records, fetched_cpu_s),
        "single_p50_ms": milliseconds(latencies_s, 0.5),
        "single_p99_ms": milliseconds(latencies_s, 0.99),
        "resident_mb": round(broker.resident_mb, 1),
    }


def produce(bootstrap: str, count: int, value: bytes) -> float:
    """Produce ``count`` records; returns the seconds until the last record is acknowledged."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": LINGER_MS, "batch.size": BATCH_SIZE}
    )
    failures: list[object] = []
    started_s = time.monotonic()
    for number in range(count):
        while True:
            try:
                producer.produce(
                    TOPIC, value, partition=number % PARTITIONS, on_delivery=lambda error, _: _note(failures, error)
                )
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    left = producer.flush(DEADLINE_S)
    took_s = time.monotonic() - started_s
    assert not left, f"{left} records were not acknowledged within {DEADLINE_S} s"
    assert not failures, failures[0]
    return took_s


def fetch(bootstrap: str, count: int) -> float:
    """Fetch ``count`` records, without those of the warm-up; returns the seconds from the consumer's start."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    try:
        started_s = time.monotonic()
        consumer.assign([TopicPartition(TOPIC, number, WARM_UP_RECORDS // PARTITIONS) for number in range(PARTITIONS)])
        fetched = 0
        while fetched < count:
            # `consume` returns when it has the requested number of records, not earlier.
            messages = consumer.consume(min(FETCHED_AT_ONCE, count - fetched), timeout=DEADLINE_S)
            assert messages, f"{fetched} of {count} records came within {DEADLINE_S} s"
            for message in messages:
                assert message.error() is None, message.error()
            fetched += len(messages)
        return time.monotonic() - started_s
    finally:
        consumer.close()


def one_by_one(bootstrap: str, count: int, value: bytes) -> list[float]:
    """Produce ``count`` records, one in flight at a time; returns the seconds until each was acknowledged.

    Ten more records before these are not counted.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    latencies_s: list[float] = []
    for number in range(count + 10):
        started_s = time.monotonic()
        producer.produce(TOPIC, value, partition=number % PARTITIONS)
        left = producer.flush(DEADLINE_S)
        assert not left, f"a record was not acknowledged within {DEADLINE_S} s"
        if number >= 10:  # the first few connect
            latencies_s.append(time.monotonic() - started_s)
    return latencies_s


def _note(failures: list[object], error: object) -> None:
    if error is not None:
        failures.append(error)


if __name__ == "__main__":
    sys.exit(main())
