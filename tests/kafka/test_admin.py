"""Admin clients, mainly Confluent's: the same tests with the embedded broker and with Apache Kafka."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import admin as aiokafka_admin
from aiokafka.admin import config_resource as aiokafka_resource
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.clients import kafka_python

DEADLINE_S = 30
SET_FOR_THE_TOPIC: Any = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
SET_FOR_THE_BROKER: Any = ConfigSource.STATIC_BROKER_CONFIG.value
DEFAULT: Any = ConfigSource.DEFAULT_CONFIG.value
"""Entries have a number, although the client's type stubs declare an enum member."""


@pytest.fixture
def client(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def topic(client: AdminClient) -> str:
    return create(client)


@pytest.fixture
def producer(bootstrap: str) -> Iterator[Producer]:
    producer = Producer({"bootstrap.servers": bootstrap})
    yield producer
    producer.close()


def create(client: AdminClient, partitions: int = 1, **configs: str) -> str:
    """Create a topic and return its name; `segment_ms` stands for ``segment.ms``."""
    name = f"admin-{uuid.uuid4().hex[:8]}"
    config = {key.replace("_", "."): value for key, value in configs.items()}
    client.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(DEADLINE_S)
    wait_until_known(client, name)
    return name


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for ``condition``: Kafka confirms a change before its broker has applied it."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def wait_until_known(client: AdminClient, topic: str) -> None:
    eventually(lambda: topic in client.list_topics(timeout=DEADLINE_S).topics)


def end_offset(client: AdminClient, topic: str) -> int | None:
    """The end offset, or None before the broker leads the partition."""
    partition = TopicPartition(topic, 0)
    try:
        return int(client.list_offsets({partition: OffsetSpec.latest()})[partition].result(DEADLINE_S).offset)
    except KafkaException as error:
        # The error of one partition lacks the flag that it is retriable.
        if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION and not error.args[0].retriable():
            raise
        return None


def code_of(call: Callable[[], Any]) -> int:
    with pytest.raises(KafkaException) as raised:
        call()
    error = raised.value.args[0]
    assert isinstance(error, KafkaError)
    return int(error.code())


def configs(client: AdminClient, type_: ResourceType, name: str) -> dict[str, ConfigEntry]:
    resource = ConfigResource(type_, name)
    found = client.describe_configs([resource])[resource].result(DEADLINE_S)
    assert isinstance(found, dict)
    return found


def alter(client: AdminClient, topic: str, name: str, operation: AlterConfigOpType, value: str | None) -> None:
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    client.incremental_alter_configs([resource])[resource].result(DEADLINE_S)


def partition_count(client: AdminClient, topic: str) -> int:
    return len(client.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)


def test_the_name_of_a_deleted_topic_can_be_used_again(client: AdminClient, topic: str, producer: Producer) -> None:
    producer.produce(topic, b"old")
    assert producer.flush(DEADLINE_S) == 0
    client.delete_topics([topic])[topic].result(DEADLINE_S)
    again = client.delete_topics([topic])[topic]
    assert code_of(lambda: again.result(DEADLINE_S)) == KafkaError.UNKNOWN_TOPIC_OR_PART
    client.create_topics([NewTopic(topic, 2, 1)])[topic].result(DEADLINE_S)
    wait_until_known(client, topic)
    found = client.describe_topics(TopicCollection([topic]))[topic].result(DEADLINE_S)
    assert len(found.partitions) == 2
    eventually(lambda: end_offset(client, topic) == 0)


def test_partitions_can_be_added_to_a_topic_and_not_removed(
    client: AdminClient, topic: str, producer: Producer
) -> None:
    client.create_partitions([NewPartitions(topic, 3)], validate_only=True)[topic].result(DEADLINE_S)
    assert partition_count(client, topic) == 1
    client.create_partitions([NewPartitions(topic, 3)])[topic].result(DEADLINE_S)
    eventually(lambda: partition_count(client, topic) == 3)
    producer.produce(topic, b"in the new one", partition=2)
    assert producer.flush(DEADLINE_S) == 0
    fewer = client.create_partitions([NewPartitions(topic, 2)])[topic]
    assert code_of(lambda: fewer.result(DEADLINE_S)) == KafkaError.INVALID_PARTITIONS


def test_a_topics_configs_are_described_with_their_sources(client: AdminClient) -> None:
    topic = create(client, cleanup_policy="compact", retention_ms="1000")
    found = configs(client, ResourceType.TOPIC, topic)
    assert len(found) == 33
    policy, level, size = found["cleanup.policy"], found["compression.zstd.level"], found["max.message.bytes"]
    assert (policy.value, policy.source, policy.is_default) == (
        "compact",
        SET_FOR_THE_TOPIC,
        False,
    )
    assert {name: entry.value for name, entry in policy.synonyms.items()} == {
        "cleanup.policy": "compact",
        "log.cleanup.policy": "delete",
    }
    assert (level.value, level.source, level.is_default) == ("3", DEFAULT, True)
    assert [*size.synonyms] == ["message.max.bytes"]
    assert not size.is_read_only
    assert found["retention.ms"].value == "1000"


def test_a_topics_configs_are_altered_one_by_one(client: AdminClient, topic: str) -> None:
    def retention_and_policy() -> tuple[str | None, str | None]:
        found = configs(client, ResourceType.TOPIC, topic)
        return found["retention.ms"].value, found["cleanup.policy"].value

    alter(client, topic, "retention.ms", AlterConfigOpType.SET, "5000")
    alter(client, topic, "cleanup.policy", AlterConfigOpType.APPEND, "compact")
    eventually(lambda: retention_and_policy() == ("5000", "delete,compact"))
    alter(client, topic, "cleanup.policy", AlterConfigOpType.SUBTRACT, "delete")
    alter(client, topic, "retention.ms", AlterConfigOpType.DELETE, None)
    eventually(lambda: retention_and_policy() == ("604800000", "compact"))
    assert code_of(lambda: alter(client, topic, "segment.ms", AlterConfigOpType.SET, "0")) == KafkaError.INVALID_CONFIG


def test_a_batch_larger_than_the_topic_now_allows_is_refused(
    client: AdminClient, topic: str, producer: Producer
) -> None:
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"x" * 4000, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_S) == 0
    alter(client, topic, "max.message.bytes", AlterConfigOpType.SET, "2000")
    # Kafka's broker reads the change from its metadata log after it was confirmed.
    deadline_s = time.monotonic() + DEADLINE_S
    while errors[-1] is None:
        assert time.monotonic() < deadline_s
        producer.produce(topic, b"x" * 4000, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(DEADLINE_S) == 0
    assert errors[-1].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_the_brokers_settings_are_described_under_kafkas_names(client: AdminClient) -> None:
    found = configs(client, ResourceType.BROKER, "1")
    assert found["group.min.session.timeout.ms"].value == "1000"
    assert found["group.min.session.timeout.ms"].source == SET_FOR_THE_BROKER
    assert found["num.partitions"].value == "1"
    assert found["num.partitions"].is_read_only
    assert found["log.cleanup.policy"].value == "delete"
    assert found["node.id"].value == "1"


def test_the_cluster_is_described_with_its_authorized_operations(client: AdminClient) -> None:
    found = client.describe_cluster(include_authorized_operations=True).result(DEADLINE_S)
    assert [node.id for node in found.nodes] == [1]
    assert found.controller.id == 1
    assert {operation.name for operation in found.authorized_operations} == {
        "CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE",
    }  # fmt: skip


def test_a_topic_is_described_with_its_authorized_operations(client: AdminClient, topic: str) -> None:
    requested = client.describe_topics(TopicCollection([topic]), include_authorized_operations=True)
    found = requested[topic].result(DEADLINE_S)
    assert not found.is_internal
    assert {operation.name for operation in found.authorized_operations} == {
        "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS",
    }  # fmt: skip


def test_records_are_deleted_up_to_an_offset(
    bootstrap: str, client: AdminClient, topic: str, producer: Producer
) -> None:
    for number in range(10):
        producer.produce(topic, str(number))
    assert producer.flush(DEADLINE_S) == 0
    partition = TopicPartition(topic, 0, 4)
    assert client.delete_records([partition])[partition].result(DEADLINE_S).low_watermark == 4
    requested = TopicPartition(topic, 0)
    assert client.list_offsets({requested: OffsetSpec.earliest()})[requested].result(DEADLINE_S).offset == 4
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        reader.assign([TopicPartition(topic, 0, 0)])
        message = reader.poll(DEADLINE_S)
        assert message is not None
        assert (message.offset(), message.value()) == (4, b"4")
    finally:
        reader.close()
    beyond = TopicPartition(topic, 0, 11)
    assert code_of(lambda: client.delete_records([beyond])[beyond].result(DEADLINE_S)) == KafkaError.OFFSET_OUT_OF_RANGE


def test_kafka_pythons_admin_is_served(bootstrap: str) -> None:
    kafka_python.ask("administrate", bootstrap=bootstrap, topic=f"admin-{uuid.uuid4().hex[:8]}")


async def test_aiokafkas_admin_is_served(bootstrap: str) -> None:
    name = f"admin-{uuid.uuid4().hex[:8]}"
    client = aiokafka_admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        await client.create_topics([aiokafka_admin.NewTopic(name, 2, 1)])
        await client.create_partitions({name: aiokafka_admin.NewPartitions(3)})
        resource = aiokafka_resource.ConfigResource(
            aiokafka_resource.ConfigResourceType.TOPIC, name, {"retention.ms": "5"}
        )
        (altered,) = await client.alter_configs([resource])
        assert altered.resources[0][0] == 0
        (described,) = await client.describe_configs([resource])
        assert "retention.ms" in {entry[0] for entry in described.resources[0][4]}
        await client.delete_topics([name])
    finally:
        await client.close()
