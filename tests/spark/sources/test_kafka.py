"""The Kafka source on a real Spark session and the embedded broker; rows are counted without Spark."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions

from coterie.config.security import KafkaSecurity
from coterie.herder.seams import RuntimeDied, TaskDied, TaskRetrying
from coterie.kafka.security import librdkafka_settings, prepare_java_settings
from coterie.nouns.errors import ConfigError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName
from coterie.spark.checkpoint import last_batch_id_in_log
from coterie.spark.plugins import configured_source
from coterie.spark.seams import Batch, StagedBatch, TaskInput
from coterie.spark.sinks.files import FileSink
from coterie.spark.sources.kafka import KafkaSource
from coterie.spark.sources.kafka_batch import spark_consumer_options
from coterie.spark.sources.kafka_client import may_kafka_retry_succeed
from coterie.spark.sources.kafka_positions import TopicIdPartition
from tests.broker.secured import PASSWORD, USER, secured_broker
from tests.certificates import Authority
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.ports import free_port
from tests.sink_files import batch_of, take_back, visible_files
from tests.spark.conftest import Rig, rows_of
from tests.spark.sources.kafka_topics import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


def initial_positions(config: Mapping[str, str], *, is_new_connector: bool = True) -> list[int]:
    """The initial position of a connector, by partition."""
    own = configured_source(config, {}).config
    found = KafkaSource.initial_positions(
        own, KafkaSource.list_source_partitions(own), is_new_connector=is_new_connector
    )
    return [found[name] for name in sorted(found, key=TopicIdPartition.parse)]


async def refusal(rig: Rig, config: Mapping[str, str], name: str, index: int = 0) -> str:
    """The error of a task's start."""
    start = await rig.start(config, name, index)
    died = await rig.end_of(start.task)
    await rig.runtime.stop(start.task, grace_ms=0)
    return died.trace


async def test_each_record_is_read_once_over_stops_and_replays_and_a_re_split_adds_new_partitions(
    rig: Rig, kafka: Kafka
) -> None:
    kafka.create("once", 3)
    kafka.produce_rows("once", 3)
    config = kafka.config("once", tasks__max="2")
    assert await rig.config_errors(config, ()) == {}
    for graceful in (True, False):
        begun = [await rig.start(config, "once", index) for index in range(2)]
        await rig.wait_until(lambda: len(kafka.rows("once")) >= kafka.next_row)
        kafka.produce_rows("once", 3)
        await rig.wait_until(lambda: len(kafka.rows("once")) >= kafka.next_row)
        held = [rig.spark_runtime.held_checkpoint(start.task) for start in begun]
        for start in begun:
            await rig.runtime.stop(start.task, grace_ms=20_000 if graceful else 0)
        for one in held:
            assert one is not None
            if not graceful and (last := last_batch_id_in_log(one.path / "commits")) is not None:
                # The last batch was written and not committed, as after a kill at that point.
                (one.path / "commits" / str(last)).unlink()
        kafka.produce_rows("once", 3)
    begun = [await rig.start(config, "once", index) for index in range(2)]
    await rig.wait_until(lambda: len(kafka.rows("once")) >= kafka.next_row)
    before = kafka.next_row
    for future in kafka.admin.create_partitions([NewPartitions("once", 4)]).values():
        future.result(30)
    kafka.produce("once", 3, [b'{"row": -1}'])
    kafka.produce_rows("once", 3)
    await rig.wait_until(lambda: len(kafka.rows("once")) >= kafka.next_row)
    for start in begun:
        await rig.runtime.stop(start.task, grace_ms=20_000)
    assert kafka.rows("once") == list(range(before + 60))
    # The next split has the new partition, from its beginning.
    begun = [await rig.start(config, "once", index) for index in range(2)]
    await rig.wait_until(lambda: -1 in kafka.rows("once"))
    kafka.produce_rows("once", 4)
    await rig.wait_until(lambda: len(kafka.rows("once")) >= kafka.next_row + 1)
    for start in begun:
        await rig.runtime.stop(start.task, grace_ms=20_000)
    assert kafka.rows("once") == list(range(-1, kafka.next_row))


async def test_a_small_batch_of_many_partitions_has_a_spark_partition_for_each_core(
    rig: Rig, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_partitions: list[int] = []
    stage = FileSink.stage

    def count_and_stage(sink: FileSink, batch: Batch) -> StagedBatch:
        assert batch.is_small
        spark_partitions.append(batch.rows.rdd.getNumPartitions())
        return stage(sink, batch)

    monkeypatch.setattr(FileSink, "stage", count_and_stage)
    kafka.create("merged", 5)
    kafka.produce_rows("merged", 5)
    start = await rig.start(kafka.config("merged"), "merged")
    await rig.wait_until(lambda: len(kafka.rows("merged")) >= kafka.next_row)
    await rig.runtime.stop(start.task, grace_ms=20_000)
    assert kafka.rows("merged") == list(range(kafka.next_row))
    assert spark_partitions
    assert max(spark_partitions) == 2, "the session of the rig has 2 cores"


async def test_each_wrong_key_is_named(rig: Rig, kafka: Kafka) -> None:
    kafka.create("wrong", 2)
    override = "consumer.override."
    wrong: list[tuple[dict[str, str | None], str, str]] = [
        ({"topics": "absent,wrong"}, "topics", "There is no topic absent;"),
        ({"topics": None, "topics.regex": "nothing.*"}, "topics.regex", "no topic matches"),
        ({"topics": None, "topics.regex": "("}, "topics.regex", "Unclosed group"),
        (
            {f"{override}bootstrap.servers": f"127.0.0.1:{free_port()}"},
            f"{override}bootstrap.servers",
            "did not answer",
        ),
        ({f"{override}group.id": "mine"}, f"{override}group.id", "no group is joined"),
        ({f"{override}fetch.min.byte": "1"}, f"{override}fetch.min.byte", "has no property fetch.min.byte"),
        ({f"{override}auto.offset.reset": "first"}, f"{override}auto.offset.reset", "earliest, latest, none"),
        ({"value.schema": "row BIGINTT"}, "value.schema", "BIGINTT"),
        ({"value.schema": None}, "value.schema", "There is no record whose value is a JSON object"),
        # Without the wrong key the columns could be inferred, or the error would be another one.
        ({"value.schema": None, f"{override}key.deserializer": "x"}, f"{override}key.deserializer", "cannot be set"),
        ({"value.schema": None, f"{override}fetch.min.byte": "1"}, f"{override}fetch.min.byte", "has no property"),
        ({"value.converter": "AvroConverter"}, "value.converter", "Class AvroConverter could not be found"),
        ({"columns": "value,size"}, "columns", "list of different columns"),
        (
            {"columns": "value,offset", "value.schema": "Offset INT"},
            "columns",
            "two columns of a row would have the name offset",
        ),
        ({"start.offsets": '{"wrong": {"0": -1}}'}, "start.offsets", "Must be offsets by topic and partition"),
        ({"start.offsets": '{"wrong": {"0": 7}}'}, "start.offsets", "wrong-0 has no offset 7"),
        ({"max.offsets.per.trigger": "0"}, "max.offsets.per.trigger", "at least 1"),
    ]
    without_topics = {name: value for name, value in kafka.config("wrong").items() if name != "topics"}
    for config, sentence in (
        (without_topics, "Must configure one of topics or topics.regex"),
        (
            {**kafka.config("wrong"), "topics.regex": "w.*"},
            "topics and topics.regex are mutually exclusive options, but both are set.",
        ),
    ):
        assert await rig.config_errors(config, ()) == {"topics": [sentence], "topics.regex": [sentence]}
    for changes, key, sentence in wrong:
        config = {name: value for name, value in {**kafka.config("wrong"), **changes}.items() if value is not None}
        started = time.monotonic()
        errors = await rig.config_errors(config, ())
        assert set(errors) == {key}, changes
        assert sentence in errors[key][0], changes
        assert time.monotonic() - started < 30
    # With a prefix, and a matching regular expression.
    prefixed = {
        f"source.{name}" if name.startswith(("topics", "value", "consumer")) else name: value
        for name, value in kafka.config("wrong").items()
        if name != "topics"
    }
    prefixed |= {"source.class": "KafkaSource", "source.topics.regex": "wron[g]"}
    assert await rig.config_errors(prefixed, ()) == {}
    assert set(await rig.config_errors({**prefixed, "source.topic": "x"}, ())) == {"source.topic"}


async def test_a_connector_begins_at_the_position_in_its_config(rig: Rig, kafka: Kafka) -> None:
    kafka.create("begin", 2)
    kafka.produce("begin", 0, [b"a", b"b"], timestamp_ms=1_000_000)
    kafka.produce("begin", 0, [b"c"], timestamp_ms=2_000_000)
    kafka.delete_before("begin", 0, 1)
    config = kafka.config("begin")
    reset = "consumer.override.auto.offset.reset"
    assert initial_positions(config) == [1, 0]
    assert initial_positions({**config, reset: "latest"}) == [3, 0]
    assert initial_positions({**config, reset: "latest"}, is_new_connector=False) == [1, 0]
    assert initial_positions({**config, "start.timestamp.ms": "1500000"}) == [2, 0]
    assert initial_positions({**config, "start.timestamp.ms": "1500000", "start.offsets": '{"begin": {"0": 3}}'}) == [
        3,
        0,
    ]
    with pytest.raises(ConfigError, match="no position in begin-0, begin-1"):
        initial_positions({**config, reset: "none"})
    assert initial_positions({**config, reset: "none", "start.offsets": '{"begin": {"0": 3, "1": 0}}'}) == [3, 0]
    with pytest.raises(ConfigError, match="begin-0 has no offset 0: a start offset must be 1 to 3"):
        initial_positions({**config, "start.offsets": '{"begin": {"0": 0}}'})


async def test_partitions_are_distributed_over_at_most_tasks_max_tasks_with_at_least_one_each(
    rig: Rig, kafka: Kafka
) -> None:
    kafka.create("spread", 5)
    for tasks_max, sizes in ((1, [5]), (2, [3, 2]), (9, [1] * 5)):
        config = kafka.config("spread", tasks__max=str(tasks_max))
        tasks = (await rig.split(ConnectorName(f"spread-{tasks_max}"), Incarnation("i"), config, ())).task_configs
        parts = [json.loads(task["task.parts"]) for task in tasks]
        assert [len(one) for one in parts] == sizes
        assert {TopicIdPartition.parse(part).partition for one in parts for part in one} == set(range(5))


async def test_records_deleted_by_retention_are_counted_and_handled_as_the_config_states(
    rig: Rig, kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.create("gone", 1)
    kafka.produce_rows("gone", 1)
    none = kafka.config("gone", consumer__override__auto__offset__reset="none", start__offsets='{"gone": {"0": 0}}')
    start = await rig.start(none, "gone")
    await rig.wait_until(lambda: len(kafka.rows("gone")) == 20)
    await rig.runtime.stop(start.task, grace_ms=20_000)
    kafka.produce_rows("gone", 1)
    kafka.delete_before("gone", 0, 27)
    assert "start.offsets" in str(await rig.config_errors(none, ())), "a new connector cannot begin there"
    assert await rig.config_errors(none, [start.config]) == {}, "one that has begun does not begin again"
    reason = await refusal(rig, none, "gone")
    assert "cannot continue: records were deleted before they were read: 7 in gone-0. With" in reason
    assert "with latest at the end, and the records that still exist are skipped too: 13 in gone-0" in reason
    for reset in ("earliest", "latest"):
        start = await rig.start({**none, "consumer.override.auto.offset.reset": reset}, "gone")
        kafka.produce_rows("gone", 1)
        await rig.wait_until(lambda: kafka.next_row - 1 in kafka.rows("gone"))
        await rig.runtime.stop(start.task, grace_ms=20_000)
        kafka.produce_rows("gone", 1)
        kafka.delete_before("gone", 0, kafka.next_row - 15)
    messages = [record.getMessage() for record in caplog.records if "continues" in record.message.split(": records")[0]]
    assert messages == [
        "Task gone-0 continues at the earliest offset of the partitions in which records are missing, because records "
        "were deleted before they were read: 7 in gone-0",
        "Task gone-0 continues at the latest offset of the partitions in which records are missing, because records "
        "were deleted before they were read: 5 in gone-0. consumer.override.auto.offset.reset is latest, and the "
        "records that still exist are skipped too: 15 in gone-0",
    ]
    assert kafka.rows("gone") == [*range(20), *range(27, 60), *range(80, 100)]


async def test_a_recreated_topic_is_not_read_at_the_old_positions(rig: Rig, kafka: Kafka) -> None:
    kafka.create("again", 1)
    kafka.produce_rows("again", 1)
    config = kafka.config("again")
    start = await rig.start(config, "again")
    await rig.wait_until(lambda: len(kafka.rows("again")) == 20)
    await rig.runtime.stop(start.task, grace_ms=20_000)
    kafka.delete("again")
    kafka.create("again", 1)
    kafka.produce_rows("again", 1, each=40)
    await rig.runtime.start(start)
    assert "again-0 is not the partition that the task has read" in (await rig.end_of(start.task)).trace
    await rig.runtime.stop(start.task, grace_ms=0)


async def test_a_record_that_cannot_be_parsed_fails_the_task_by_its_offset(rig: Rig, kafka: Kafka) -> None:
    kafka.create("bad", 1)
    kafka.produce("bad", 0, [b'{"row": 1}', None, b'{"row": "many"}'])
    config = kafka.config("bad", max__offsets__per__trigger="2")
    start = await rig.start(config, "bad")
    died = await rig.end_of(start.task)
    assert died.trace == (
        "Topic bad, partition 0, offset 2: the record's value is not JSON with the columns of value.schema"
    )
    assert not died.can_restart
    await rig.runtime.stop(start.task, grace_ms=0)
    lines = [line for path in visible_files(kafka.out / "bad") for line in path.read_text().splitlines()]
    assert [json.loads(line) for line in lines] == [{"row": 1}, {}]


async def test_batches_wait_for_the_minimum_of_rows_of_a_file_sink(rig: Rig, kafka: Kafka) -> None:
    kafka.create("rotated", 2)
    kafka.produce_rows("rotated", 2, each=10)
    config = kafka.config("rotated", rotate__interval__ms="600000", flush__size="50")
    assert await rig.config_errors(config, ()) == {}
    start = await rig.start(config, "rotated")
    await rig.wait_until(lambda: len(kafka.rows("rotated")) == 20)
    kafka.produce_rows("rotated", 2, each=10)
    await asyncio.sleep(1.5)  # The task reads the end offsets meanwhile.
    kafka.produce_rows("rotated", 2, each=20)
    await rig.wait_until(lambda: len(kafka.rows("rotated")) == 80)
    await rig.runtime.stop(start.task, grace_ms=20_000)
    assert {batch_of(path)[1] for path in visible_files(kafka.out / "rotated")} == {0, 1}


async def test_rows_have_the_configured_columns(rig: Rig, kafka: Kafka) -> None:
    kafka.create("columns", 1)
    kafka.produce("columns", 0, ["grün".encode()], timestamp_ms=1_700_000_000_000)
    config = kafka.config(
        "columns",
        columns="key,value,headers,topic,partition,offset,timestamp",
        value__converter="StringConverter",
        key__converter="StringConverter",
    )
    del config["value.schema"], config["value.converter.schemas.enable"]
    assert await rig.config_errors(config, ()) == {}
    start = await rig.start(config, "columns")
    await rig.wait_until(lambda: len(rows_of(kafka.out / "columns", "offset")) == 1)
    await rig.runtime.stop(start.task, grace_ms=20_000)
    (file,) = visible_files(kafka.out / "columns")
    assert json.loads(file.read_text()) == {
        "key": "k",
        "value": "grün",
        "headers": [{"key": "h", "value": "MQ=="}],
        "topic": "columns",
        "partition": 0,
        "offset": 0,
        "timestamp": "2023-11-14T22:13:20.000Z",
    }


async def test_columns_are_inferred_from_the_newest_records(rig: Rig, kafka: Kafka) -> None:
    kafka.create("inferred", 2)
    config = kafka.config("inferred")
    del config["value.schema"]
    kafka.produce("inferred", 1, [b"no json", None, b'{"row": 7, "name": "n", "more": {"at": [1.5]}}'])
    assert await rig.config_errors(config, ()) == {}
    (task,) = (await rig.split(ConnectorName("inferred"), Incarnation("i"), config, ())).task_configs
    assert task["value.schema"] == "more STRUCT<at: ARRAY<DOUBLE>>,name STRING,row BIGINT"
    # With an envelope the payload is used; the key has its own columns, here under the prefix that the config uses.
    kafka.create("enveloped", 1)
    kafka.produce(
        "enveloped", 0, [b'{"schema": null, "payload": {"row": 1}}'], key=b'{"schema": {}, "payload": {"id": "x"}}'
    )
    config = {f"source.{key}" if "." in key or key == "topics" else key: value for key, value in config.items()}
    config |= {
        "source.topics": "enveloped",
        "source.value.converter.schemas.enable": "true",
        "source.key.converter": "JsonConverter",
        "source.columns": "key,value",
        "connector.class": "FileSink", "tasks.max": "1", "trigger.interval.ms": "0", "rotate.interval.ms": "0",
    }  # fmt: skip
    for key in ("connector.class", "tasks.max", "trigger.interval.ms", "rotate.interval.ms"):
        del config[f"source.{key}"]
    assert await rig.config_errors(config, ()) == {}
    (task,) = (await rig.split(ConnectorName("enveloped"), Incarnation("i"), config, ())).task_configs
    assert (task["source.key.schema"], task["source.value.schema"]) == ("id STRING", "row BIGINT")


async def test_a_config_is_validated_with_the_columns_of_its_future_tasks(
    rig: Rig, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.spark.splitting.TASKS_STOP_TIMEOUT_MS", 0)  # No task was ever started.
    kafka.create("removed", 1)
    kafka.produce("removed", 0, [b'{"row": 1}'])
    name, incarnation = ConnectorName("removed"), Incarnation("i")
    stated = {**kafka.config("removed"), "value.schema": "row BIGINT, name STRING"}
    open_ = {key: value for key, value in stated.items() if key != "value.schema"}
    named = {"transforms": "n", "transforms.n.type": "Filter", "transforms.n.condition": "name IS NOT NULL"}
    tasks = (await rig.split(name, incarnation, stated, ())).task_configs
    # A schema in the config is not kept: no record has this column.
    assert await rig.config_errors(stated | named, tasks) == {}
    assert set(await rig.config_errors(open_ | named, tasks)) == {"transforms.n.condition"}
    assert await rig.config_errors(open_, tasks) == {}
    tasks = (await rig.split(name, incarnation, open_, tasks)).task_configs
    assert [task["value.schema"] for task in tasks] == ["row BIGINT"]
    # The inferred schema is kept although the config had another one meanwhile.
    tasks = (await rig.split(name, incarnation, stated, tasks)).task_configs
    assert [task["value.schema"] for task in tasks] == ["row BIGINT, name STRING"]
    kafka.produce("removed", 0, [b'{"row": 2, "name": "x"}'])
    assert set(await rig.config_errors(open_ | named, tasks)) == {"transforms.n.condition"}
    # Only missing schemas are inferred: these values do not matter.
    kafka.delete_before("removed", 0, 2)
    kafka.produce("removed", 0, [b"no JSON"], key=b'{"id": "x"}')
    keyed = {
        **open_,
        "columns": "key,value",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "false",
    }
    assert await rig.config_errors(keyed, tasks) == {}
    tasks = (await rig.split(name, incarnation, keyed, tasks)).task_configs
    assert [(task["key.schema"], task["value.schema"]) for task in tasks] == [("id STRING", "row BIGINT")]
    # Columns of another topic are not kept.
    kafka.create("other-columns", 1)
    kafka.produce("other-columns", 0, [b'{"other": 1}'])
    other = {**open_, "topics": "other-columns", **named, "transforms.n.condition": "other > 0"}
    assert await rig.config_errors(other, tasks) == {}


async def test_an_error_in_reading_records_for_their_columns_names_the_key_of_the_columns(
    rig: Rig, kafka: Kafka, tmp_path: Path
) -> None:
    rules = f"allow User:{USER} create,describe,write topic:unreadable\n"
    with secured_broker(tmp_path, "SASL_PLAINTEXT", rules=rules) as broker:
        security = KafkaSecurity(protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-512", username=USER, password=PASSWORD)
        secured = Kafka(f"localhost:{broker.port}", tmp_path, librdkafka_settings(security))
        secured.create("unreadable", 1)
        secured.produce_rows("unreadable", 1)
        config = secured.config("unreadable")
        del config["value.schema"]
        config |= {
            f"consumer.override.{name}": value for name, value in prepare_java_settings(security, tmp_path).items()
        }
        errors = await rig.config_errors(config, ())
        with pytest.raises(ConfigError) as raised:
            await rig.split(ConnectorName("unreadable"), Incarnation("i"), config, ())
    assert set(errors) == set(raised.value.errors) == {"value.schema"}
    for sentence in (errors["value.schema"][0], raised.value.errors["value.schema"][0]):
        assert sentence.startswith("No columns can be inferred: ")
        assert "Not authorized to access topics: [unreadable]" in sentence
        assert sentence.endswith("Set value.schema, or try again")
        assert "\n" not in sentence


async def test_a_connectors_group_has_the_offsets_that_its_tasks_have_read_also_after_a_stop(
    rig: Rig, kafka: Kafka
) -> None:
    kafka.create("lag", 3)
    kafka.produce_rows("lag", 3)
    config = kafka.config("lag", tasks__max="2")
    begun = [await rig.start(config, "lag", index) for index in range(2)]
    await rig.wait_until(lambda: kafka.group_offsets("connect-lag") == {("lag", number): 20 for number in range(3)})
    kafka.produce_rows("lag", 2)
    await rig.wait_until(lambda: len(kafka.rows("lag")) == kafka.next_row)
    for start in begun:
        await rig.runtime.stop(start.task, grace_ms=20_000)
    read = {("lag", 0): 40, ("lag", 1): 40, ("lag", 2): 20}
    await rig.wait_until(lambda: kafka.group_offsets("connect-lag") == read)
    # A task continues from its checkpoint, whatever the group's offsets are.
    kafka.set_group_offsets("connect-lag", dict.fromkeys(read, 0))
    begun = [await rig.start(config, "lag", index) for index in range(2)]
    kafka.produce_rows("lag", 3)
    await rig.wait_until(lambda: len(kafka.rows("lag")) >= kafka.next_row)
    await rig.wait_until(lambda: kafka.group_offsets("connect-lag") == {key: at + 20 for key, at in read.items()})
    for start in begun:
        await rig.runtime.stop(start.task, grace_ms=20_000)
    assert kafka.rows("lag") == list(range(kafka.next_row))


async def test_a_connector_needs_rights_to_its_topic_and_for_lag_to_its_group_and_logs_no_password(
    rig: Rig, kafka: Kafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path / "certificates")
    # The test itself creates and fills the topic.
    rules = f"allow User:{USER} create,read,write topic:secured\n"
    with secured_broker(tmp_path, "SASL_SSL", authority=authority, rules=rules) as broker:
        security = KafkaSecurity(
            protocol="SASL_SSL",
            mechanism="SCRAM-SHA-512",
            username=USER,
            password=PASSWORD,
            trusted_ca_location=str(authority.certificate),
        )
        secured = Kafka(f"localhost:{broker.port}", tmp_path, librdkafka_settings(security))
        secured.create("secured", 1)
        secured.produce_rows("secured", 1)
        config = secured.config("secured")
        overrides = {
            f"consumer.override.{name}": value for name, value in prepare_java_settings(security, tmp_path).items()
        }
        assert await rig.config_errors(config | overrides, ()) == {}
        with caplog.at_level(logging.DEBUG, "coterie"):
            start = await rig.start(config | overrides, "secured")
            await rig.wait_until(lambda: len(secured.rows("secured")) == 20)
            await rig.wait_until(lambda: "Connector secured: committing offsets to group" in caplog.text)
            await rig.runtime.stop(start.task, grace_ms=20_000)
        own = configured_source({**config, **overrides, "name": "secured"}, {}).config
        parts = tuple(KafkaSource.list_source_partitions(own))
        share = TaskInput(
            task_number=0, task_count=1, source_partitions=parts, split_function=KafkaSource.split_function
        )
        source = KafkaSource.of(own, share)
        KafkaSource.position_store.write_to_new_checkpoint(
            tmp_path / "checkpoint", KafkaSource.initial_positions(own, parts, is_new_connector=True)
        )
        rows = source.read(rig.spark_runtime._running_driver().spark, tmp_path / "checkpoint", None)
        plan = rows._jdf.queryExecution().toString()
        wrong = {name: value.replace("marks", "mark") for name, value in overrides.items()}
        (error,) = (await rig.config_errors(config | wrong, ())).values()
    assert "rejected the request: " in error[0]
    assert "secured" in plan
    assert caplog.text.count("Connector secured: committing offsets to group") == 1
    assert "GROUP_AUTHORIZATION_FAILED" in caplog.text or "GroupAuthorizationException" in caplog.text
    assert PASSWORD not in caplog.text + plan + str(error) + repr(source)


async def test_a_batch_in_flight_whose_records_were_deleted_is_finished_without_them_if_allowed(
    rig: Rig, kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.create("flight", 1)
    kafka.produce_rows("flight", 1)
    config = kafka.config("flight")
    start = await rig.start(config, "flight")
    await rig.wait_until(lambda: len(kafka.rows("flight")) == 20)
    held = rig.spark_runtime.held_checkpoint(start.task)
    await rig.runtime.stop(start.task, grace_ms=20_000)
    assert held is not None
    # The batch as after a kill before its effect.
    last = last_batch_id_in_log(held.path / "commits")
    assert last is not None
    (held.path / "commits" / str(last)).unlink()
    take_back(kafka.out / "flight", last)
    kafka.delete_before("flight", 0, 5)
    none = {**config, "consumer.override.auto.offset.reset": "none"}
    reason = await refusal(rig, none, "flight")
    assert "records were deleted before they were read: 5 in flight-0. With" in reason
    assert "=earliest or latest the task reads the other records of batch 0, and continues" in reason
    start = await rig.start(config, "flight")
    kafka.produce_rows("flight", 1)
    await rig.wait_until(lambda: kafka.next_row - 1 in kafka.rows("flight"))
    await rig.runtime.stop(start.task, grace_ms=20_000)
    assert kafka.rows("flight") == list(range(5, 40))
    messages = [record.getMessage() for record in caplog.records if "is run without" in record.getMessage()]
    assert messages == [
        "Task flight-0: batch 0 is run without some of its records, because records were deleted before they were "
        "read: 5 in flight-0"
    ]


async def test_a_running_task_overtaken_by_retention_continues_after_one_restart_of_its_query(
    rig: Rig, kafka: Kafka
) -> None:
    kafka.create("behind", 1)
    kafka.produce_rows("behind", 1)
    config = kafka.config("behind", max__offsets__per__trigger="10", trigger__interval__ms="4000")
    start = await rig.start(config, "behind")
    await rig.wait_until(lambda: len(kafka.rows("behind")) == 10)
    kafka.produce_rows("behind", 1)
    kafka.delete_before("behind", 0, 35)
    died = await rig.end_of(start.task)
    assert died.can_restart
    await rig.runtime.restart(start.task)
    await rig.wait_until(lambda: kafka.next_row - 1 in kafka.rows("behind"))
    await rig.runtime.stop(start.task, grace_ms=20_000)
    before = [row for row in kafka.rows("behind") if row < 35]
    assert before == list(range(len(before)))
    assert kafka.rows("behind") == [*before, *range(35, 40)]


@pytest.mark.parametrize("moment", ["between batches", "in a batch"])
async def test_a_query_that_spark_fails_while_the_broker_is_away_waits_for_it(
    rig: Rig,
    mortal_broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark_jars: Path,
    moment: str,
) -> None:
    kafka = Kafka(mortal_broker.bootstrap_servers, tmp_path)
    kafka.create("away", 2)
    kafka.produce_rows("away", 2)

    def options(properties: Mapping[str, str]) -> dict[str, str]:
        # Spark's default is two minutes.
        return {**spark_consumer_options(properties), "kafkaConsumer.pollTimeoutMs": "1000"}

    monkeypatch.setattr("coterie.spark.sources.kafka.spark_consumer_options", options)
    limits = {f"consumer.override.{name}": "1000" for name in ("default.api.timeout.ms", "request.timeout.ms")} | {
        "errors.retry.timeout": "-1",
        "errors.retry.delay.max.ms": "500",
    }
    start = await rig.start(kafka.config("away") | limits, "away")
    await rig.wait_until(lambda: len(kafka.rows("away")) >= kafka.next_row)
    if moment == "in a batch":
        # The plan of the batch is complete when the broker ends, and Spark reads the records in the sink.
        # The batch may begin before the broker has the rows of both partitions.
        stage, are_rows_produced = FileSink.stage, threading.Event()

        def kill_and_stage(sink: FileSink, batch: Batch) -> StagedBatch:
            monkeypatch.setattr(FileSink, "stage", stage)
            assert are_rows_produced.wait(30)
            mortal_broker.kill()
            return stage(sink, batch)

        monkeypatch.setattr(FileSink, "stage", kill_and_stage)
        kafka.produce_rows("away", 2)
        are_rows_produced.set()
    else:
        mortal_broker.kill()
    # The first attempt is the query's own end, the second one a start that finds no broker.
    for _ in range(2):
        event = await asyncio.wait_for(rig.runtime.next_event(), 60)
        while not isinstance(event, TaskRetrying):
            assert not isinstance(event, RuntimeDied | TaskDied), event
            event = await asyncio.wait_for(rig.runtime.next_event(), 60)
        assert event.trace.startswith("A server cannot be reached; the task is restarted")
    mortal_broker.start()
    kafka.produce_rows("away", 2)
    await rig.wait_until(lambda: len(kafka.rows("away")) >= kafka.next_row)
    await rig.runtime.stop(start.task, grace_ms=20_000)
    assert kafka.rows("away") == list(range(kafka.next_row))


async def test_only_exceptions_that_another_attempt_may_not_meet_again_are_retriable(rig: Rig, kafka: Kafka) -> None:
    java: Any = rig.session._jvm
    errors = java.org.apache.kafka.common.errors

    def is_retriable_inside(cause: Any) -> bool:
        return may_kafka_retry_succeed(java.java.lang.RuntimeException("outer", cause))

    timeout = java.java.util.concurrent.TimeoutException
    assert is_retriable_inside(errors.TimeoutException("no answer"))
    assert is_retriable_inside(errors.NotLeaderOrFollowerException())
    assert is_retriable_inside(timeout("Cannot fetch record for offset 3 in 1000 milliseconds"))
    for permanent in (
        errors.CorruptRecordException("damaged"),
        errors.RecordTooLargeException("large"),
        errors.SaslAuthenticationException("password"),
        errors.TopicAuthorizationException("right"),
        java.org.apache.kafka.clients.consumer.OffsetOutOfRangeException(java.java.util.HashMap()),
        timeout("Futures timed out after [300 seconds]"),
        None,
    ):
        assert not is_retriable_inside(permanent)
