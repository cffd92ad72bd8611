"""Workers that read from Kafka are killed during a backlog; each record is written once."""

import contextlib
import json
from pathlib import Path

import pytest

from coterie.spark.plugins import configured_source
from coterie.spark.sources.kafka import KafkaSource
from tests.spark.holders import TaskProcess, has_batch_in_flight, last_committed_batch, wait_for_commits, wait_until
from tests.spark.sources.kafka_topics import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(600)]

BATCHES = 40
ROWS = 50
"""Records of a batch."""


def test_each_record_is_written_once_although_workers_are_killed(
    spark_jars: Path, kafka: Kafka, tmp_path: Path
) -> None:
    kafka.create("killed", 2)
    kafka.produce_rows("killed", 2, each=BATCHES * ROWS // 2)
    config = kafka.config("killed", max__offsets__per__trigger=str(ROWS), format="parquet")
    parts = KafkaSource.list_source_partitions(configured_source(config, {}).config)
    task = {"name": "fight", "task.class": "FileSink", "task.index": "0", "task.count": "1"}
    start = f"start {tmp_path.name} {json.dumps({**config, **task, 'task.parts': json.dumps(parts)})}"
    in_flight: list[str] = []

    with contextlib.ExitStack() as stack:
        for number in range(3):
            holder = TaskProcess(tmp_path, f"worker-{number}", stack, spark_jars)
            holder.wait_for_line("ready")
            holder.send_command(start)
            in_flight.append(holder.wait_for_line("holds").split()[2])
            if number == 2:
                break
            wait_for_commits(holder, tmp_path, 8)
            wait_until(lambda: has_batch_in_flight(holder, tmp_path), "a batch is in flight")  # noqa: B023
            holder.kill()
            assert last_committed_batch(holder, tmp_path) < BATCHES - 1, "the backlog was read before the kill"
        wait_until(lambda: len(kafka.rows("killed")) >= BATCHES * ROWS, "all rows are there")
        holder.ask("stop", "stopped")
    assert in_flight[0] == "-"
    assert in_flight[1:] != ["-", "-"], "no kill fell into a batch"
    assert kafka.rows("killed") == list(range(BATCHES * ROWS))
