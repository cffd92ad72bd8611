"""Workers that copy a topic are killed or stopped during a backlog; each record is written once."""

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coterie.spark.checkpoint import last_batch_id_in_log
from coterie.spark.plugins import configured_source
from coterie.spark.sources.kafka import KafkaSource
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.spark.holders import TaskProcess, directories, wait_until
from tests.spark.sinks.kafka_rows import numbers, values

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]

ROUNDS = 6
ROWS = 1000
"""Records of a batch."""
BATCHES = ROUNDS * 8


def point(servers: str, checkpoint: Path) -> str:
    """The point at which the last worker was ended, from the checkpoint and the broker."""
    planned, committed = (last_batch_id_in_log(checkpoint / name) for name in ("offsets", "commits"))
    if planned == committed:
        return "before offsets"
    marks = [json.loads(value)["batch"] for value in values(servers, "copies-ledger") if value is not None]
    if planned in marks:
        return "after the transaction"
    has_open = len(values(servers, "copies", "read_uncommitted")) > len(values(servers, "copies"))
    return "inside the transaction" if has_open else "after offsets"


def test_each_record_is_written_once_although_workers_are_killed_and_stopped(
    spark_jars: Path, rig: object, embedded_broker: EmbeddedBroker, tmp_path: Path, print_line: Callable[[str], None]
) -> None:
    servers = embedded_broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in ("backlog", "copies")]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": servers})
    for row in range(BATCHES * ROWS):
        producer.produce("backlog", b"%d" % row)
        producer.poll(0)
    assert producer.flush(60) == 0
    config = {
        "connector.class": "KafkaSink",
        "trigger.interval.ms": "0",
        "source.topics": "backlog",
        "source.consumer.override.bootstrap.servers": servers,
        "source.max.offsets.per.trigger": str(ROWS),
        "value.converter": "ByteArrayConverter",
        "topic": "copies",
        "ledger.topic": "copies-ledger",
        "producer.override.bootstrap.servers": servers,
    }
    parts = KafkaSource.list_source_partitions(configured_source(config, {}).config)
    task = {"name": "fight", "task.class": "KafkaSink", "task.index": "0", "task.count": "1"}
    start = f"start {tmp_path.name} {json.dumps({**config, **task, 'task.parts': json.dumps(parts)})}"
    chance, met = random.Random(7), Counter[str]()
    stopped: TaskProcess | None = None
    with contextlib.ExitStack() as stack:
        for number in range(ROUNDS + 1):
            holder = TaskProcess(tmp_path, f"worker-{number}", stack, spark_jars)
            holder.jvm = int(holder.wait_for_line("ready").split()[1])
            holder.send_command(start)
            holder.wait_for_line("holds")
            (folder,) = directories(holder, tmp_path)
            if stopped is not None:
                for pid in (stopped.jvm, stopped.process.pid):
                    os.kill(pid, signal.SIGCONT)
                stopped.wait_for_line("taken")
                stopped.end()
                stopped = None
            if number == ROUNDS:
                break
            before = last_batch_id_in_log(folder / "offsets") or 0
            wait_until(lambda: (last_batch_id_in_log(folder / "offsets") or 0) > before + 2, "batches are planned")  # noqa: B023
            time.sleep(chance.uniform(0, 0.3))  # A random moment during the next batches.
            if number % 3 == 2:
                for pid in (holder.process.pid, holder.jvm):
                    os.kill(pid, signal.SIGSTOP)
                stopped = holder
            else:
                holder.kill()
            assert len(values(servers, "copies")) < BATCHES * ROWS, "the backlog was read before the end"
            met[point(servers, folder)] += 1
            print_line(f"round {number}: {dict(met)}")
        wait_until(lambda: len(values(servers, "copies")) >= BATCHES * ROWS, "all rows are there")
        holder.ask("stop", "stopped")
    assert numbers(servers, "copies") == list(range(BATCHES * ROWS))
    assert met.keys() - {"before offsets"}, met
