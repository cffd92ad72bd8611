"""Workers are killed while they separate randomly bad records; each record is written once, to one of two tables."""

import contextlib
import json
from pathlib import Path

import pytest

from coterie.spark.plugins import configured_source
from coterie.spark.sources.kafka import KafkaSource
from tests.spark.bad_records.sifting import RANDOMLY_BAD, good_and_bad, postgres_config
from tests.spark.holders import TaskProcess, has_batch_in_flight, last_committed_batch, wait_for_commits, wait_until
from tests.spark.sinks.postgres_server import PostgresServer
from tests.spark.sources.kafka_topics import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

BATCHES = 40
ROWS = 50
"""Rows of a batch."""
KILLS = 3


def test_each_record_is_in_one_table_once_although_workers_are_killed(
    spark_jars: Path, kafka: Kafka, postgres: PostgresServer, tmp_path: Path
) -> None:
    postgres.run("DROP TABLE IF EXISTS good, bad, coterie_ledger")
    kafka.create("killed-bad", 1)
    kafka.produce_rows("killed-bad", 1, each=BATCHES * ROWS)
    config = postgres_config(kafka, postgres, "killed-bad", max__offsets__per__trigger=str(ROWS), **RANDOMLY_BAD)
    parts = KafkaSource.list_source_partitions(configured_source(config, {}).config)
    task = {"name": "fight", "task.class": "PostgresSink", "task.index": "0", "task.count": "1"}
    start = f"start {tmp_path.name} {json.dumps({**config, **task, 'task.parts': json.dumps(parts)})}"
    in_flight: list[str] = []

    with contextlib.ExitStack() as stack:
        for number in range(KILLS + 1):
            holder = TaskProcess(tmp_path, f"worker-{number}", stack, spark_jars)
            holder.wait_for_line("ready")
            holder.send_command(start)
            in_flight.append(holder.wait_for_line("holds").split()[2])
            if number == KILLS:
                break
            wait_for_commits(holder, tmp_path, 5)
            wait_until(lambda: has_batch_in_flight(holder, tmp_path), "a batch is in flight")  # noqa: B023
            holder.kill()
            assert last_committed_batch(holder, tmp_path) < BATCHES - 1, "the backlog was read before the kill"
        wait_until(lambda: sum(map(len, good_and_bad(postgres))) >= BATCHES * ROWS, "all records are there")
        holder.ask("stop", "stopped")
    assert in_flight[1:] != ["-"] * KILLS, "no kill fell into a batch"
    good, bad = good_and_bad(postgres)
    assert min(len(good), len(bad)) > BATCHES * ROWS // 4
    assert sorted(good + bad) == list(range(BATCHES * ROWS))
