"""From files and Kafka to topics with real Spark; records are counted by a plain client."""

import json
import random
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coterie.config.security import KafkaSecurity
from coterie.kafka.security import prepare_java_settings
from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.arrow import arrow_batches_to_internal_rows
from coterie.spark.checkpoint import last_batch_id_in_log
from coterie.spark.plugins import configured_sink, configured_source
from coterie.spark.prefixed_config import SINK_PREFIX, PrefixedConfig
from coterie.spark.seams import Batch
from coterie.spark.sinks import kafka
from coterie.spark.sinks.kafka import KafkaSink
from coterie.spark.sinks.kafka_target import KafkaTarget
from coterie.spark.sinks.kafka_writer import check_ledger_and_find_partition
from coterie.spark.sources.files import FileSource
from coterie.spark.sources.kafka_client import kafka_admin
from tests.broker.secured import PASSWORD, USER, secured_broker
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.ports import free_port
from tests.spark.conftest import Rig, write_file
from tests.spark.sinks.kafka_rows import LINEAGE, await_expiration, records, values

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

JSON = "org.apache.kafka.connect.json.JsonConverter"
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


@pytest.fixture
def servers(spark_jars: Path, rig: Rig, embedded_broker: EmbeddedBroker) -> str:
    return embedded_broker.bootstrap_servers


def config_of(rig: Rig, servers: str, folder: Path, topic: str, **changes: str) -> dict[str, str]:
    """A source connector without a sink, as in Connect."""
    return {
        **{key: value for key, value in rig.config(folder).items() if not key.startswith("sink.")},
        "topic": topic,
        "value.converter": JSON,
        "value.converter.schemas.enable": "false",
        "producer.override.bootstrap.servers": servers,
        "topic.creation.default.partitions": "3",
        "topic.creation.default.replication.factor": "-1",
    } | {key.replace("__", "."): value for key, value in changes.items()}


def create(servers: str, topic: str, partitions: int = 1, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    config = {key.replace("__", "."): value for key, value in configs.items()}
    for future in admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values():
        future.result(30)


def rows(servers: str, topic: str) -> list[int]:
    if topic not in AdminClient({"bootstrap.servers": servers}).list_topics(timeout=30).topics:
        return []
    return sorted(json.loads(value)["row"] for value in values(servers, topic) if value is not None)


@pytest.mark.parametrize("read", ["at once", "by partition", "stored"])
async def test_rows_of_files_are_written_once_over_stops_and_replays(
    rig: Rig, servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    monkeypatch.setattr(FileSource, "is_batch_small", lambda *_: read == "at once")
    monkeypatch.setattr(FileSource, "has_bounded_spark_partitions", lambda *_: read == "by partition")
    topic = f"files-{read.replace(' ', '-')}"
    config = config_of(rig, servers, tmp_path, topic, key__fields="distance", exactly__once__support="required")
    assert await rig.config_errors(config, ()) == {}
    for number in range(3):
        write_file(tmp_path / "in", f"{number}.csv", [(number * 10 + i, None, i) for i in range(10)])
        start = await rig.start(config, topic)
        await rig.wait_until(lambda expected=(number + 1) * 10: len(rows(servers, topic)) >= expected)  # type: ignore[misc]
        held = rig.spark_runtime.held_checkpoint(start.task)
        await rig.runtime.stop(start.task, grace_ms=10_000)
        assert held is not None
        if number == 1:
            # The last batch is committed in Kafka and not in the checkpoint, as after a kill at that point.
            last = last_batch_id_in_log(held.path / "commits")
            assert last == 1
            (held.path / "commits" / str(last)).unlink()
    assert rows(servers, topic) == list(range(30))
    assert (b"3", b'{"row":13,"delay":null,"distance":3}', []) in records(servers, topic)


@pytest.mark.parametrize(
    ("count", "size"),
    [(700, 160_000), pytest.param(3_000, 900_000, marks=[pytest.mark.soak, pytest.mark.timeout(1_200)])],
)
async def test_a_batch_larger_than_the_memory_is_read_in_pieces(rig: Rig, servers: str, count: int, size: int) -> None:
    """The larger batch is three times as large as the JVM's memory."""
    create(servers, f"large-{size}")
    create(servers, f"copy-{size}")
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.kbytes": 8_000})
    for number in range(count):
        body = b"%d " % number + random.Random(number).randbytes(size)
        while True:
            try:
                producer.produce(f"large-{size}", body)
                break
            except BufferError:
                producer.poll(1)
    assert producer.flush(120) == 0
    config = {
        "connector.class": "KafkaSink",
        "trigger.interval.ms": "0",
        "source.topics": f"large-{size}",
        "source.consumer.override.bootstrap.servers": servers,
        "value.converter": BYTES,
        "producer.override.bootstrap.servers": servers,
        "topic": f"copy-{size}",
    }
    start = await rig.start(config, f"large-{size}")
    died = await rig.end_of(start.task)
    assert "the query starts again, to read at most" in died.trace
    # As the herder does with a failed query.
    await rig.runtime.restart(start.task)
    held = rig.spark_runtime.held_checkpoint(start.task)
    assert held is not None
    await rig.wait_until(lambda: last_batch_id_in_log(held.path / "commits") == 0, within_s=600)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    copied = [int(value.split(b" ", 1)[0]) for value in values(servers, f"copy-{size}") if value is not None]
    assert copied == list(range(count))


async def test_records_are_copied_with_their_keys_headers_topics_and_partitions(
    rig: Rig, servers: str, tmp_path: Path
) -> None:
    create(servers, "copied", 2)
    producer = Producer({"bootstrap.servers": servers})
    sent = [(b"k", b"\xff\0"), (None, b""), (b"", None)]
    headers: list[tuple[str, str | bytes | None]] = [("h", b"\xfe"), ("n", None)]
    for key, value in sent:
        producer.produce("copied", value, key=key, partition=1, headers=headers)
    assert producer.flush(30) == 0
    create(servers, "copy", 2)
    config = {
        "connector.class": "KafkaSink",
        "trigger.interval.ms": "0",
        "source.topics": "copied",
        "source.columns": "key,value,headers,partition,topic",
        "source.consumer.override.bootstrap.servers": servers,
        "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "producer.override.bootstrap.servers": servers,
        "transforms": "f",
        "transforms.f.type": "Filter",
        "transforms.f.condition": "partition = 1",
    }
    assert await rig.config_errors(config | {"topic": "copy"}, ()) == {}
    # Without a topic, the rows name it: these are appended to the topic from which they were read.
    start = await rig.start(config | {"source.max.offsets.per.trigger": "3"}, "copy")
    await rig.wait_until(lambda: len(records(servers, "copied")) >= 6)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert records(servers, "copied")[:6] == [(key, value, headers) for key, value in sent * 2]


async def test_a_copied_record_is_routed_by_transforms_with_its_key_its_headers_and_its_null_value(
    rig: Rig, servers: str
) -> None:
    create(servers, "orders")
    create(servers, "orders-copy")
    producer = Producer({"bootstrap.servers": servers})
    for value in (b'{"row": 1}', b"no JSON", None):
        producer.produce("orders", value, key=b"k", headers=[("h", b"1")])
    assert producer.flush(30) == 0
    config = {
        "connector.class": "KafkaSink",
        "trigger.interval.ms": "0",
        "source.topics": "orders",
        "source.consumer.override.bootstrap.servers": servers,
        "source.value.converter": JSON,
        "source.value.converter.schemas.enable": "false",
        "source.value.schema": "row BIGINT",
        "value.converter.schemas.enable": "false",
        "producer.override.bootstrap.servers": servers,
        "transforms": "routed,marked",
        "transforms.routed.type": "RegexRouter",
        "transforms.routed.regex": "(.*)",
        "transforms.routed.replacement": "$1-copy",
        "transforms.marked.type": "InsertHeader",
        "transforms.marked.header": "by",
        "transforms.marked.value.literal": "coterie",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "orders-bad",
        "errors.deadletterqueue.topic.replication.factor": "1",
    }
    assert await rig.config_errors(config, ()) == {}
    start = await rig.start(config, "orders")
    await rig.wait_until(lambda: len(records(servers, "orders-copy")) >= 2)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    headers = [("h", b"1"), ("by", b"coterie")]
    assert records(servers, "orders-copy") == [(b"k", b'{"row":1}', headers), (b"k", None, headers)]
    assert records(servers, "orders-bad") == [(b"k", b"no JSON", [("h", b"1")])]


@pytest.mark.parametrize("expiring_servers", ["embedded"], indirect=True)
@pytest.mark.parametrize("read", ["at once", "by partition", "stored"])
async def test_a_task_continues_by_itself_after_its_transactional_id_has_expired(
    rig: Rig,
    kafka_clients: Any,
    expiring_servers: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    read: str,
) -> None:
    """The batch is evaluated a second time, and its bad records are counted once."""
    caplog.set_level("INFO", logger="coterie.spark.sinks.kafka_writer")
    monkeypatch.setattr(FileSource, "is_batch_small", lambda *_: read == "at once")
    monkeypatch.setattr(FileSource, "has_bounded_spark_partitions", lambda *_: read == "by partition")
    topic = f"idle-{read.replace(' ', '-')}"
    config = config_of(
        rig,
        expiring_servers,
        tmp_path,
        topic,
        errors__tolerance="all",
        errors__log__enable="true",
        errors__restart__max="0",
        errors__deadletterqueue__topic__name=f"{topic}-bad",
        errors__deadletterqueue__topic__replication__factor="1",
    )
    assert await rig.config_errors(config, ()) == {}
    write_file(tmp_path / "in", "0.csv", [(row, None, row) for row in range(10)])
    start = await rig.start(config, topic)
    await rig.wait_until(lambda: rows(expiring_servers, topic) == list(range(10)))
    await_expiration(kafka_clients, expiring_servers)
    path = write_file(tmp_path / "aside", "1.csv", [(row, None, row) for row in range(10, 20)])
    path.write_text(f"{path.read_text()}no number,1.0,1\n")
    path.rename(tmp_path / "in" / "1.csv")
    await rig.wait_until(lambda: rows(expiring_servers, topic) == list(range(20)))
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert len(records(expiring_servers, f"{topic}-bad")) == 1
    assert f"Task {topic}-0: its transactional id" in caplog.text
    (line,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert line.startswith(f"Task {topic}-0: 1 bad records were left out, 1 since the task started")


async def test_a_connector_that_would_read_its_own_records_is_refused(rig: Rig, servers: str) -> None:
    create(servers, "circle")
    create(servers, "line")
    config = {
        "connector.class": "KafkaSink",
        "source.consumer.override.bootstrap.servers": servers,
        "source.key.converter": BYTES,
        "source.value.converter": BYTES,
        "value.converter": BYTES,
        "producer.override.bootstrap.servers": servers,
    }
    routed = {
        "transforms": "r",
        "transforms.r.type": "RegexRouter",
        "transforms.r.regex": "circle",
        "transforms.r.replacement": "line",
    }
    topics, regex = {"source.topics": "line,circle"}, {"source.topics.regex": "circ.*"}
    elsewhere = {"producer.override.bootstrap.servers": servers.replace("127.0.0.1", "localhost")}
    assert elsewhere["producer.override.bootstrap.servers"] != servers
    for reads in (topics, regex):
        (key,) = reads
        for changes, sentence in [
            ({"topic": "circle"}, f"{key} names this topic, on the same cluster"),
            ({}, "without topic each record is written to the topic from which it was read"),
            ({"source.columns": "key,value,topic"}, "without topic each record is written to the topic from which"),
            (
                {"transforms": "f", "transforms.f.type": "Filter", "transforms.f.condition": "value IS NOT NULL"},
                "without",
            ),
            (
                {
                    "transforms": "h",
                    "transforms.h.type": "InsertHeader",
                    "transforms.h.header": "by",
                    "transforms.h.value.literal": "coterie",
                    "transforms.h.predicate": "null",
                    "transforms.h.negate": "true",
                    "predicates": "null",
                    "predicates.null.type": "RecordIsTombstone",
                },
                "without",
            ),
        ]:
            errors = await rig.config_errors(config | reads | changes, ())
            assert set(errors) == {"topic"}, (changes, errors)
            assert sentence in errors["topic"][0]
            assert key in errors["topic"][0]
            assert await rig.config_errors(config | reads | changes | elsewhere, ()) == {}
        assert await rig.config_errors(config | reads | routed, ()) == {}
    assert await rig.config_errors(config | regex | {"topic": "line"}, ()) == {}


async def test_at_least_once_needs_no_ledger_and_is_refused_if_exactly_once_is_required(
    rig: Rig, servers: str, tmp_path: Path
) -> None:
    weaker = {"delivery.guarantee": "at-least-once", "ledger.topic": "never-made"}
    config = config_of(rig, servers, tmp_path, "weaker") | weaker
    assert set(await rig.config_errors(config | {"exactly.once.support": "required"}, ())) == {"exactly.once.support"}
    assert await rig.config_errors(config, ()) == {}
    write_file(tmp_path / "in", "a.csv", [(i, None, i) for i in range(10)])
    start = await rig.start(config, "weaker")
    await rig.wait_until(lambda: len(rows(servers, "weaker")) >= 10)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert rows(servers, "weaker") == list(range(10))
    assert "never-made" not in AdminClient({"bootstrap.servers": servers}).list_topics(timeout=30).topics


async def test_a_task_waits_for_an_unreachable_cluster_and_not_for_one_that_refuses_the_request(
    rig: Rig, servers: str
) -> None:
    """With errors.retry.timeout=-1 a refused request would be repeated forever without an error."""
    with kafka_admin({"bootstrap.servers": servers}) as admin, pytest.raises(WorldError) as refused:
        admin.create_topic_if_absent("thrice", 1, 3, {})
    assert not isinstance(refused.value, UnreachableError)
    assert "rejected the request: " in str(refused.value)
    assert "InvalidReplicationFactorException" in str(refused.value)


async def test_an_error_at_least_once_is_either_an_unreachable_cluster_or_invalid_rows(rig: Rig, servers: str) -> None:
    create(servers, "away-or-wrong")
    unreachable = f"127.0.0.1:{free_port()}"
    for at, column, expected in [
        (unreachable, "'x'", UnreachableError),
        (servers, "CAST(CAST(concat('x', id) AS INT) AS STRING)", PySparkException),
    ]:
        config = {
            "topic": "away-or-wrong",
            "delivery.guarantee": "at-least-once",
            "value.converter": "StringConverter",
            "producer.override.bootstrap.servers": at,
            "producer.override.max.block.ms": "1000",
        }
        sink = KafkaSink.of(PrefixedConfig(config=config, prefix=SINK_PREFIX, is_prefix_optional=True))
        batch = rig.session.range(1).select(F.expr(column).alias("value"))
        staged = sink.stage(Batch(task_lineage=LINEAGE, batch_id=0, rows=batch, is_small=True))
        with pytest.raises((PySparkException, UnreachableError)) as caught:
            staged.commit()
        assert isinstance(caught.value, expected), caught.value


def sink_of_small_requests(servers: str, topic: str) -> KafkaSink:
    """A sink of the new topic ``topic`` that cannot send records of 5,000 bytes."""
    create(servers, topic)
    config = {
        "topic": topic,
        "ledger.topic": f"{topic}-ledger",
        "value.converter": "StringConverter",
        "producer.override.bootstrap.servers": servers,
        "producer.override.max.request.size": "5000",
    }
    return KafkaSink.of(PrefixedConfig(config=config, prefix=SINK_PREFIX, is_prefix_optional=True))


async def test_stored_rows_of_a_batch_are_removed_after_it_is_staged_or_has_failed(rig: Rig, servers: str) -> None:
    java: Any = rig.session._jvm
    allocator = getattr(getattr(java.org.apache.spark.sql.util, "ArrowUtils$"), "MODULE$").rootAllocator()
    sink = sink_of_small_requests(servers, "from-stored-rows")
    length = F.when(F.col("id") == 3_500, 9_000).otherwise(100)
    lines = rig.session.range(0, 5_000, 1, 2).select("id", F.repeat(F.lit("x"), length).alias("value"))

    def stage(batch_id: int, rows: DataFrame) -> None:
        batch = Batch(task_lineage=LINEAGE, batch_id=batch_id, rows=rows.select("value"), is_small=False)
        staged = sink.stage(batch)
        assert rig.session.sparkContext._jsc.getPersistentRDDs().size() == 0
        staged.commit()

    sink.take_over(LINEAGE, 1)
    stage(0, lines.where("id != 3500"))
    stage(1, lines.where("id < 0"))
    with pytest.raises(WorldError, match="For larger records raise"):
        stage(2, lines)
    assert rig.session.sparkContext._jsc.getPersistentRDDs().size() == 0
    assert allocator.getAllocatedMemory() == 0
    sink.close()
    assert len(values(servers, "from-stored-rows")) == 4_999


async def test_after_a_record_that_cannot_be_sent_no_more_stored_rows_are_converted(
    rig: Rig, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_of_small_requests(servers, "first-row-too-large")
    length = F.when(F.col("id") == 0, 9_000).otherwise(100)
    lines = rig.session.range(0, 5_000, 1, 2).select(F.repeat(F.lit("x"), length).alias("value"))
    converted = 0

    def counted(rows: DataFrame, record_batches: Any) -> Generator[Any, None, None]:
        nonlocal converted
        for piece in arrow_batches_to_internal_rows(rows, record_batches):
            converted += 1
            yield piece

    monkeypatch.setattr(kafka, "arrow_batches_to_internal_rows", counted)
    sink.take_over(LINEAGE, 1)
    with pytest.raises(WorldError, match="For larger records raise"):
        sink.stage(Batch(task_lineage=LINEAGE, batch_id=0, rows=lines, is_small=False))
    sink.close()
    assert converted == 1


async def test_each_wrong_key_is_named(rig: Rig, servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(servers, "no-ledger")
    override = "producer.override."
    wrong: list[tuple[dict[str, str | None], str, str]] = [
        ({"topic": None}, "topic.creation.default.partitions", "only the topic that the config key topic names"),
        ({"topic.creation.default.partitions": None}, "topic.creation.default.partitions", "if any key"),
        ({"topic.creation.default.partitions": "0"}, "topic.creation.default.partitions", "-1"),
        ({"value.converter": "AvroConverter"}, "value.converter", "Class AvroConverter could not be found"),
        ({"key.fields": "row,delay"}, "key.fields", "only a JsonConverter can write several columns as one key"),
        ({"delivery.guarantee": "at-most-once"}, "delivery.guarantee", "exactly-once, at-least-once"),
        ({f"{override}transactional.id": "mine"}, f"{override}transactional.id", "is made of ledger.topic"),
        ({f"{override}key.serializer": "x"}, f"{override}key.serializer", "key.converter determines"),
        ({f"{override}acks": "1"}, f"{override}acks", "needs acks=all; or set delivery.guarantee=at-least-once"),
        ({f"{override}linger": "1"}, f"{override}linger", "Kafka's producer has no property linger"),
        ({f"{override}transaction.timeout.ms": "1"}, f"{override}transaction.timeout.ms", "at least 1000"),
        ({"ledger.topic": "no-ledger"}, "ledger.topic", "cleanup.policy=delete and must have compact"),
        (
            {f"{override}bootstrap.servers": f"127.0.0.1:{free_port()}"},
            f"{override}bootstrap.servers",
            "did not answer",
        ),
    ]
    for changes, key, sentence in wrong:
        config = {
            name: value
            for name, value in {**config_of(rig, servers, tmp_path, "refused"), **changes}.items()
            if value is not None
        }
        if sentence == "did not answer":
            monkeypatch.setattr("coterie.spark.sources.kafka_client.RESPONSE_TIMEOUT_MS", 500)
        errors = await rig.config_errors(config, ())
        assert set(errors) == {key}, changes
        assert sentence in errors[key][0], changes


def config_without_topic_creation(rig: Rig, servers: str, folder: Path, topic: str, **changes: str) -> dict[str, str]:
    config = config_of(rig, servers, folder, topic, **changes)
    return {name: value for name, value in config.items() if not name.startswith("topic.creation.")}


async def test_a_missing_topic_is_refused_if_neither_config_nor_broker_creates_it(
    rig: Rig, spark_jars: Path, broker_without_auto_creation: EmbeddedBroker, tmp_path: Path
) -> None:
    servers = broker_without_auto_creation.bootstrap_servers
    errors = await rig.config_errors(config_without_topic_creation(rig, servers, tmp_path, "refused"), ())
    assert set(errors) == {"topic"}
    assert "has no topic refused; create it, or set topic.creation.default" in errors["topic"][0]
    assert errors["topic"][0].endswith("its config auto.create.topics.enable is false")


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
async def test_a_missing_topic_is_created_if_the_broker_creates_topics(
    rig: Rig, servers: str, tmp_path: Path, guarantee: str
) -> None:
    topic = f"created-{guarantee}"
    config = config_without_topic_creation(rig, servers, tmp_path, topic, delivery__guarantee=guarantee)
    assert await rig.config_errors(config, ()) == {}
    assert topic not in AdminClient({"bootstrap.servers": servers}).list_topics(timeout=30).topics
    start = await rig.start(config, topic)
    # No batch has run: the start creates the topic.
    created = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=30).topics[topic]
    assert len(created.partitions) == 1
    write_file(tmp_path / "in", "0.csv", [(row, None, row) for row in range(10)])
    await rig.wait_until(lambda: len(rows(servers, topic)) == 10)
    await rig.runtime.stop(start.task, grace_ms=10_000)


@pytest.mark.parametrize(("policy", "is_valid"), [("compact,compact", True), ("compact,delete", False)])
async def test_a_ledger_that_a_start_uses_is_valid_in_the_config_too(
    rig: Rig, servers: str, tmp_path: Path, policy: str, is_valid: bool
) -> None:
    ledger = f"ledger-{'valid' if is_valid else 'invalid'}"
    create(servers, ledger, cleanup__policy=policy)
    config = config_of(rig, servers, tmp_path, f"to-{ledger}", ledger__topic=ledger)
    errors = await rig.config_errors(config, ())
    target = KafkaTarget.of(PrefixedConfig(config=config, prefix=SINK_PREFIX, is_prefix_optional=True))
    with kafka_admin(target.producer_properties) as admin:
        if is_valid:
            assert errors == {}
            check_ledger_and_find_partition(admin, target, "task")
            return
        (error,) = errors["ledger.topic"]
        assert f"has cleanup.policy={policy} and must have compact" in error
        with pytest.raises(WorldError, match=f"has cleanup.policy={policy} and must have compact"):
            check_ledger_and_find_partition(admin, target, "task")


async def test_rows_that_cannot_become_records_fail_the_task_with_the_column(
    rig: Rig, servers: str, tmp_path: Path
) -> None:
    write_file(tmp_path / "in", "a.csv", [(1, None, 1)])
    for number, (changes, sentence) in enumerate(
        [
            ({"value.converter": "StringConverter"}, "Column row is not a field of a record"),
            ({"key.fields": "id"}, "key.fields: the rows have no column id; they have: row, delay, distance"),
            ({"key.fields": "row", "key.converter": "ByteArrayConverter"}, "Column row has type bigint"),
        ]
    ):
        start = await rig.start(config_of(rig, servers, tmp_path, "unfit") | changes, f"unfit-{number}")
        died = await rig.end_of(start.task)
        assert sentence in died.trace
        assert not died.can_restart
        await rig.runtime.stop(start.task, grace_ms=0)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
async def test_a_row_that_is_too_large_names_the_keys_to_raise(
    rig: Rig, servers: str, tmp_path: Path, guarantee: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text(f"row,delay,distance\n1,,{'x' * (2 << 20)}\n")
    name = f"large-{guarantee}"
    changes = {"source.schema": "row BIGINT, delay DOUBLE, distance STRING", "delivery.guarantee": guarantee}
    start = await rig.start(config_of(rig, servers, tmp_path, name) | changes, name)
    died = await rig.end_of(start.task)
    assert "raise producer.override.max.request.size and producer.override.buffer.memory" in died.trace
    assert not died.can_restart
    await rig.runtime.stop(start.task, grace_ms=0)
    assert rows(servers, name) == []


async def test_the_other_end_is_kafka_if_a_config_names_none(tmp_path: Path) -> None:
    source = {"connector.class": "FileSource", "topic": "t", "value.converter": "StringConverter"}
    end = configured_sink(source, {})
    assert end.plugin.__name__ == "KafkaSink"
    assert end.config.user_key("value.converter") == "value.converter"
    assert configured_sink(source | {"sink.format": "json"}, {}).plugin.__name__ == "FileSink"
    # If both ends are Kafka, a key without a prefix belongs to the end that connector.class names.
    sink = {"connector.class": "KafkaSink", "topic": "t", "value.converter": "StringConverter"}
    assert configured_source(sink, {}).plugin.__name__ == "KafkaSource"
    assert configured_source(sink, {}).config.user_key("value.converter") == "source.value.converter"
    assert configured_sink(sink, {}).config.user_key("value.converter") == "value.converter"
    copied = {"connector.class": "KafkaSource", "topics": "t", "value.converter": "StringConverter"}
    assert configured_sink(copied, {}).config.user_key("value.converter") == "sink.value.converter"
    assert configured_source(copied, {}).config.user_key("value.converter") == "value.converter"


RIGHTS = {
    "write": "allow User:alice write,describe,create topic:secured",
    "ledger": "allow User:alice read,write,describe,create,describe_configs topic:coterie-ledger",
    "id": "allow User:alice write,describe transactional_id:coterie-ledger/*",
}
"""The rights in docs/connectors.md, and CREATE, since neither topic exists before."""


@pytest.mark.parametrize("may_read", [True, False])
async def test_without_the_right_to_read_the_brokers_config_a_missing_topic_is_refused(
    rig: Rig, servers: str, tmp_path: Path, may_read: bool
) -> None:
    rules = [*RIGHTS.values(), *(["allow User:alice describe_configs cluster"] if may_read else [])]
    with secured_broker(tmp_path, "SASL_PLAINTEXT", rules="".join(f"{line}\n" for line in rules)) as broker:
        security = KafkaSecurity(protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-512", username=USER, password=PASSWORD)
        overrides = {
            f"producer.override.{name}": value for name, value in prepare_java_settings(security, tmp_path).items()
        }
        config = config_without_topic_creation(rig, f"127.0.0.1:{broker.port}", tmp_path, "secured") | overrides
        errors = await rig.config_errors(config, ())
        if may_read:
            assert errors == {}
            return
        assert set(errors) == {"topic"}
        assert "has no topic secured; create it, or set topic.creation.default" in errors["topic"][0]
        assert "auto.create.topics.enable, for which its user needs DESCRIBE_CONFIGS" in errors["topic"][0]
        assert PASSWORD not in errors["topic"][0]


@pytest.mark.parametrize("lacking", [None, *RIGHTS])
async def test_a_sink_needs_the_rights_that_its_page_names_and_no_others(
    rig: Rig, servers: str, tmp_path: Path, lacking: str | None
) -> None:
    rules = "".join(f"{line}\n" for name, line in RIGHTS.items() if name != lacking)
    with secured_broker(tmp_path, "SASL_PLAINTEXT", rules=rules) as broker:
        address = f"127.0.0.1:{broker.port}"
        security = KafkaSecurity(protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-512", username=USER, password=PASSWORD)
        topic_keys = {"topic.creation.default.partitions": "1"}
        overrides = {
            f"producer.override.{name}": value for name, value in prepare_java_settings(security, tmp_path).items()
        }
        config = config_of(rig, address, tmp_path, "secured") | topic_keys | overrides
        write_file(tmp_path / "in", "0.csv", [(row, None, row) for row in range(10)])
        errors = await rig.config_errors(config, ())
        if lacking is not None and errors:
            assert "uthoriz" in str(errors)
            assert PASSWORD not in str(errors)
            return
        assert errors == {}
        name = f"secured-{lacking}"
        start = await rig.start(config, name)
        if lacking is None:
            await rig.wait_until(
                lambda: (
                    (held := rig.spark_runtime.held_checkpoint(start.task)) is not None
                    and last_batch_id_in_log(held.path / "commits") == 0
                )
            )
        else:
            died = await rig.end_of(start.task)
            assert "uthoriz" in died.trace.partition("\n\n")[0]
            assert "WRITE" in died.trace.partition("\n\n")[0], "the trace must name the missing right"
            assert PASSWORD not in died.trace
        await rig.runtime.stop(start.task, grace_ms=10_000)
