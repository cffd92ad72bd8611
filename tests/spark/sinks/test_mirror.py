"""A topic of Debezium's change events, mirrored into a table of a real PostgreSQL; the table is read by psycopg."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from coterie.spark.checkpoint import last_batch_id_in_log
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.spark.conftest import Rig
from tests.spark.sinks.postgres_server import PostgresServer
from tests.spark.sources.kafka_topics import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

JSON = "org.apache.kafka.connect.json.JsonConverter"


class Users:
    """The current rows of a table, and the topic to which Debezium would send its changes."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self.rows: dict[int, str | None] = {}
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": kafka.servers})
        kafka.create(topic, 2)

    def put(self, id_: int, name: str | None) -> None:
        self._send(id_, "u" if id_ in self.rows else "c", self._row(id_), {"id": id_, "name": name})
        self.rows[id_] = name

    def delete(self, id_: int) -> None:
        """Send the deletion's event and the tombstone."""
        self._send(id_, "d", self._row(id_), None)
        self._produce(id_, None)
        del self.rows[id_]

    def flush(self) -> None:
        assert self._producer.flush(30) == 0

    def _row(self, id_: int) -> dict[str, Any] | None:
        return {"id": id_, "name": self.rows[id_]} if id_ in self.rows else None

    def _send(self, id_: int, op: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        source = {"connector": "postgresql", "table": "users", "lsn": 24023128}
        event = {"before": before, "after": after, "source": source, "op": op, "ts_ms": 1767322800000}
        self._produce(id_, json.dumps(event).encode())

    def _produce(self, id_: int, value: bytes | None) -> None:
        self._producer.produce(self._topic, value, key=json.dumps({"id": id_}).encode(), partition=id_ % 2)


@pytest.fixture
def kafka(spark_jars: Path, rig: Rig, embedded_broker: EmbeddedBroker, tmp_path: Path) -> Kafka:
    return Kafka(embedded_broker.bootstrap_servers, tmp_path)


def config_of(kafka: Kafka, server: PostgresServer, topic: str) -> dict[str, str]:
    """A sink connector's config of Connect with another class."""
    return server.keys | {
        "connector.class": "PostgresSink",
        "tasks.max": "2",
        "trigger.interval.ms": "0",
        "topics": topic,
        "consumer.override.bootstrap.servers": kafka.servers,
        "key.converter": JSON,
        "key.converter.schemas.enable": "false",
        "key.schema": "id BIGINT",
        "value.converter": JSON,
        "value.converter.schemas.enable": "false",
        "value.schema": (
            "before STRUCT<id: BIGINT, name: STRING>, after STRUCT<id: BIGINT, name: STRING>, op STRING, ts_ms BIGINT, "
            "source STRUCT<`table`: STRING, lsn: BIGINT>"
        ),
        "transforms": "unwrap",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.unwrap.add.fields": "source.lsn",
        "table.name.format": "users",
        "insert.mode": "upsert",
        "pk.mode": "record_key",
        "pk.fields": "id",
        "delete.enabled": "true",
        "auto.create": "true",
    }


async def test_inserts_updates_and_deletions_are_applied_also_after_a_replay(
    rig: Rig, kafka: Kafka, postgres: PostgresServer
) -> None:
    postgres.run("DROP TABLE IF EXISTS users, coterie_ledger")
    users, config = Users(kafka, "shop.users"), config_of(kafka, postgres, "shop.users")

    def table() -> dict[object, object]:
        if not postgres.rows("SELECT 1 WHERE to_regclass('users') IS NOT NULL"):
            return {}
        return dict(row for row in postgres.rows("SELECT id, name FROM users"))  # type: ignore[misc]

    assert await rig.config_errors(config, ()) == {}
    for id_ in range(10):
        users.put(id_, f"user {id_}")
    users.put(1, None)
    users.delete(3)
    users.flush()
    starts = [await rig.start(config, "mirror", index) for index in range(2)]
    await rig.wait_until(lambda: table() == users.rows)
    # One batch deletes a row and inserts it again, and inserts another row again and deletes it.
    users.delete(4)
    users.put(4, "again")
    users.put(3, "back")
    users.delete(3)
    users.delete(5)
    users.flush()
    await rig.wait_until(lambda: table() == users.rows)
    held = [rig.spark_runtime.held_checkpoint(start.task) for start in starts]
    for start in starts:
        await rig.runtime.stop(start.task, grace_ms=0)
    for one in held:
        assert one is not None
        if (last := last_batch_id_in_log(one.path / "commits")) is not None:
            # The last batch was written and not committed, as after a kill at that point.
            (one.path / "commits" / str(last)).unlink()
    users.put(5, "returned")
    users.delete(6)
    users.flush()
    starts = [await rig.start(config, "mirror", index) for index in range(2)]
    await rig.wait_until(lambda: table() == users.rows)
    for start in starts:
        await rig.runtime.stop(start.task, grace_ms=10_000)
    assert table() == users.rows
    assert postgres.rows("SELECT DISTINCT __source_lsn FROM users") == [(24023128,)]


@pytest.mark.parametrize(
    ("changes", "key", "words"),
    [
        ({"pk.fields": "number"}, "pk.fields", "key has no field number; it has id"),
        ({"key.converter": "StringConverter", "pk.fields": "a,b"}, "pk.fields", "key is one string"),
        ({"pk.mode": "record_value"}, "delete.enabled", "deletes need pk.mode=record_key"),
        ({"insert.mode": "insert"}, "delete.enabled", "and insert.mode=upsert"),
        ({"transforms.unwrap.add.fields": "sauce"}, "transforms.unwrap.add.fields", "no such column: sauce"),
    ],
)
async def test_contradicting_values_are_refused_by_key(
    rig: Rig, kafka: Kafka, postgres: PostgresServer, changes: dict[str, str], key: str, words: str
) -> None:
    topic = "shop.refused"
    if topic not in kafka.admin.list_topics(timeout=30).topics:
        kafka.create(topic, 1)
    config = config_of(kafka, postgres, topic) | {"table.name.format": "refused"} | changes
    if "StringConverter" in changes.values():
        config = {name: config[name] for name in config if name not in ("key.schema", "key.converter.schemas.enable")}
    errors = await rig.config_errors(config, ())
    assert set(errors) == {key}
    assert words in errors[key][0]


async def test_rows_of_files_have_no_record_key_for_a_table(rig: Rig, postgres: PostgresServer, tmp_path: Path) -> None:
    config = {key: value for key, value in rig.config(tmp_path).items() if not key.startswith("sink.")}
    sink = postgres.keys | {
        "table.name.format": "t",
        "auto.create": "true",
        "pk.mode": "record_key",
        "pk.fields": "row",
    }
    config |= {"sink.class": "PostgresSink"} | {f"sink.{key}": value for key, value in sink.items()}
    errors = await rig.config_errors(config, ())
    assert "the rows have no key" in errors["sink.pk.mode"][0]
    keyed = {"transforms": "k", "transforms.k.type": "ValueToKey", "transforms.k.fields": "row"}
    assert await rig.config_errors(config | keyed, ()) == {}
