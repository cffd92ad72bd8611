"""The offsets of connectors that read from Kafka, in the form of Connect's sink connectors."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from coterie.nouns.connector_offsets import ConnectorOffset, OffsetsRefusedError
from coterie.nouns.errors import WorldError
from coterie.spark.sources.kafka_client import kafka_admin
from coterie.spark.sources.kafka_positions import TopicIdPartition
from tests.spark.conftest import Rig
from tests.spark.connector_tasks import Tasks
from tests.spark.sources.kafka_topics import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(240)]


def at(topic: str, partition: object, offset: object) -> ConnectorOffset:
    return ConnectorOffset(
        partition={"kafka_topic": topic, "kafka_partition": partition},
        offset=None if offset is None else {"kafka_offset": offset},
    )


async def shown(tasks: Tasks, config: dict[str, str]) -> dict[tuple[str, int], int]:
    offsets = await tasks.offsets(config)
    return {
        (str((one.partition or {})["kafka_topic"]), int(str((one.partition or {})["kafka_partition"]))): int(
            str((one.offset or {})["kafka_offset"])
        )
        for one in offsets
    }


async def test_exactly_the_records_of_the_partition_that_is_moved_back_are_read_again(rig: Rig, kafka: Kafka) -> None:
    topic = "rewound"
    kafka.create(topic, 3)
    kafka.produce_rows(topic, 3, each=20)
    tasks = Tasks(rig, "rewinds")
    config = {**kafka.config(topic, tasks__max="2"), "name": "rewinds"}
    group = "connect-rewinds"
    await tasks.split(config)
    await tasks.start()
    await rig.wait_until(lambda: kafka.rows(topic) == list(range(60)))
    await tasks.stop()
    assert await shown(tasks, config) == {(topic, number): 20 for number in range(3)}

    await tasks.change_offsets(config, at(topic, 1, 15), at(topic, "2", "20"))
    assert await shown(tasks, config) == {(topic, 0): 20, (topic, 1): 15, (topic, 2): 20}
    assert kafka.group_offsets(group) == {(topic, 0): 20, (topic, 1): 15, (topic, 2): 20}
    await tasks.split(config)
    await tasks.start()
    again = Counter(range(60)) + Counter(range(35, 40))
    await rig.wait_until(lambda: Counter(kafka.rows(topic)) == again)
    await tasks.stop()

    # A partition without an offset begins where a new connector begins; the others continue.
    await tasks.change_offsets(config, at(topic, 0, None))
    assert await shown(tasks, config) == {(topic, 1): 20, (topic, 2): 20}
    assert kafka.group_offsets(group) == {(topic, 1): 20, (topic, 2): 20}
    kafka.produce_rows(topic, 3, each=2)
    await tasks.split(config)
    await tasks.start()
    again += Counter(range(20)) + Counter(range(60, 66))
    await rig.wait_until(lambda: Counter(kafka.rows(topic)) == again)
    await tasks.stop()

    # Without any offset the topic is read from its beginning.
    await tasks.change_offsets(config)
    assert await shown(tasks, config) == {}
    assert kafka.group_offsets(group) == {}
    await tasks.split({**config, "tasks.max": "3"})
    await tasks.start()
    again += Counter(range(66))
    await rig.wait_until(lambda: Counter(kafka.rows(topic)) == again)
    await tasks.stop()
    assert Counter(kafka.rows(topic)) == again


@pytest.mark.parametrize("is_split_again", [False, True])
async def test_a_changed_offset_of_a_topic_that_was_created_again_replaces_that_of_the_deleted_topic(
    rig: Rig, kafka: Kafka, is_split_again: bool
) -> None:
    topic = f"recreated-{is_split_again}"
    kafka.create(topic, 2)
    kafka.produce_rows(topic, 2, each=20)
    tasks = Tasks(rig, topic)
    config = {**kafka.config(topic, consumer__override__auto__offset__reset="latest"), "name": topic}
    tasks_begin_at_zero = {**config, "consumer.override.auto.offset.reset": "earliest"}
    await tasks.split(tasks_begin_at_zero)
    await tasks.start()
    await rig.wait_until(lambda: kafka.rows(topic) == list(range(40)))
    await tasks.stop()
    kafka.delete(topic)
    kafka.create(topic, 3)
    if is_split_again:
        await tasks.split(config)
    kafka.produce_rows(topic, 3, each=5)

    await tasks.change_offsets(config, at(topic, 0, 2))
    old_or_new = {(topic, number): 0 if is_split_again else 20 for number in (1, *([2] if is_split_again else []))}
    assert await shown(tasks, config) == {**old_or_new, (topic, 0): 2}
    assert kafka.group_offsets(f"connect-{topic}") == {**old_or_new, (topic, 0): 2}
    await tasks.change_offsets(config, at(topic, 1, None))
    del old_or_new[topic, 1]
    assert await shown(tasks, config) == {**old_or_new, (topic, 0): 2}
    assert kafka.group_offsets(f"connect-{topic}") == {**old_or_new, (topic, 0): 2}

    # The removed position is that of a new connector, the end of the partition; partition 2 was added.
    await tasks.split(config)
    assert await shown(tasks, config) == {(topic, 0): 2, (topic, 1): 5, (topic, 2): 0}
    await tasks.start()
    await rig.wait_until(lambda: kafka.rows(topic) == [*range(40), *range(42, 45), *range(50, 55)])
    await tasks.stop()


@pytest.mark.parametrize(
    ("partition", "offset", "message"),
    [
        (
            {"kafka_topic": "checked", "kafka_partition": "x"},
            {"kafka_offset": 5},
            "Failed to parse the following Kafka partition value in the provided offsets: 'x'. Partition values for "
            "sink connectors need to be integers.",
        ),
        (
            {"kafka_topic": "checked"},
            {"kafka_offset": 5},
            "The partition for a sink connector offset must contain the keys 'kafka_topic' and 'kafka_partition'",
        ),
        (
            {"kafka_topic": "checked", "kafka_partition": 0},
            {"kafka_offset": "x"},
            "Failed to parse the following Kafka offset value in the provided offsets: 'x'. Offset values for sink "
            "connectors need to be integers.",
        ),
        (
            {"kafka_topic": "checked", "kafka_partition": 0},
            {"nonsense": 1},
            "The offset for a sink connector should either be null or contain the key 'kafka_offset'",
        ),
        ({"kafka_topic": "checked", "kafka_partition": 0}, {"kafka_offset": -5}, "An offset cannot be negative"),
        (
            {"kafka_topic": "checked", "kafka_partition": True},
            {"kafka_offset": 1},
            "Failed to parse the following Kafka partition value in the provided offsets: 'True'.",
        ),
        (
            {"kafka_topic": "checked", "kafka_partition": 0.0},
            {"kafka_offset": 1},
            "Failed to parse the following Kafka partition value in the provided offsets: '0.0'.",
        ),
        (
            {"kafka_topic": "checked", "kafka_partition": 0},
            {"kafka_offset": 3},
            "checked-0 has no offset 3: its end is 2",
        ),
        (
            {"kafka_topic": "checked", "kafka_partition": 99},
            None,
            "The connector does not read the partition checked-99",
        ),
        ({"kafka_topic": "nope", "kafka_partition": 0}, None, "The connector does not read the partition nope-0"),
        (None, None, "The partition for a sink connector offset cannot be null or missing"),
    ],
)
async def test_what_kafka_does_not_have_is_refused_with_connects_messages(
    rig: Rig, kafka: Kafka, partition: Any, offset: Any, message: str
) -> None:
    topic = "checked"
    if topic not in kafka.admin.list_topics(timeout=30).topics:
        kafka.create(topic, 1)
        kafka.produce_rows(topic, 1, each=2)
    tasks = Tasks(rig, "checks")
    with pytest.raises(OffsetsRefusedError) as refusal:
        await tasks.change_offsets(kafka.config(topic), ConnectorOffset(partition=partition, offset=offset))
    assert str(refusal.value).startswith(message)


async def test_offsets_are_set_for_a_connector_that_was_split_as_one_of_files_and_never_started(
    rig: Rig, kafka: Kafka, tmp_path: Path
) -> None:
    """The source partitions of files are no names of Kafka's partitions."""
    kafka.create("was-files", 1)
    kafka.produce_rows("was-files", 1)
    tasks = Tasks(rig, "was-files")
    await tasks.split(rig.config(tmp_path))
    tasks.configs = []  # they were never published
    config = kafka.config("was-files")
    await tasks.change_offsets(config, at("was-files", 0, 5))
    assert await shown(tasks, config) == {("was-files", 0): 5}


@pytest.fixture(params=["embedded_broker", pytest.param("real_kafka", marks=pytest.mark.kafka)])
def any_kafka(request: pytest.FixtureRequest, tmp_path: Path) -> Kafka:
    """The embedded broker, and Kafka."""
    return Kafka(request.getfixturevalue(request.param).bootstrap_servers, tmp_path)


async def test_a_group_whose_offsets_cannot_be_replaced_keeps_its_offsets(
    rig: Rig, spark_jars: Path, any_kafka: Kafka
) -> None:
    kafka = any_kafka
    kafka.create("kept", 3)
    kafka.create("kept-other", 1)
    old = {("kept", 0): 1, ("kept", 1): 2, ("kept-other", 0): 3}
    kafka.set_group_offsets("kept-group", old)

    def partition_of(topic: str, number: int) -> TopicIdPartition:
        return TopicIdPartition(topic=topic, partition=number, topic_id="not used")

    with kafka_admin({"bootstrap.servers": kafka.servers}) as admin:
        with pytest.raises(WorldError):
            admin.replace_group_offsets("kept-group", {partition_of("kept-absent", 0): 9})
        assert kafka.group_offsets("kept-group") == old
        admin.replace_group_offsets("kept-group", {partition_of("kept", 1): 5, partition_of("kept", 2): 6})
        assert kafka.group_offsets("kept-group") == {("kept", 1): 5, ("kept", 2): 6}
        admin.replace_group_offsets("kept-new-group", {partition_of("kept", 0): 7})
        assert kafka.group_offsets("kept-new-group") == {("kept", 0): 7}
        # The cluster removes the offsets of a deleted topic itself, now or later.
        kafka.delete("kept")
        admin.replace_group_offsets("kept-group", {partition_of("kept-other", 0): 8})
        assert kafka.group_offsets("kept-group")["kept-other", 0] == 8
        admin.replace_group_offsets("kept-group", {})
        assert kafka.group_offsets("kept-group") == {}


async def test_the_offsets_of_a_group_with_members_are_not_replaced(
    rig: Rig, spark_jars: Path, any_kafka: Kafka
) -> None:
    kafka = any_kafka
    kafka.create("joined", 2)
    kafka.set_group_offsets("joined-group", {("joined", 0): 1, ("joined", 1): 2})
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": "joined-group", "enable.auto.commit": False})
    consumer.subscribe(["joined"])
    while not consumer.assignment():
        consumer.poll(0.1)
    replaced = TopicIdPartition(topic="joined", partition=0, topic_id="not used")
    with kafka_admin({"bootstrap.servers": kafka.servers}) as admin, pytest.raises(WorldError):
        admin.replace_group_offsets("joined-group", {replaced: 9})
    consumer.close()
    assert kafka.group_offsets("joined-group") == {("joined", 0): 1, ("joined", 1): 2}
