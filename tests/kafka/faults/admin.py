"""Faults of requests that change and describe topics, their configs and the cluster."""

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from coterie.wire.errors import ErrorCode as E
from tests.kafka.faults.row import Fields, Row, Scene
from tests.kafka.faults.topics import UNKNOWN_TOPIC_ID

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
SESSION = "consumer.session.timeout.ms"

Asked = tuple[str | None, UUID | None]
Change = tuple[str, int, str | None]


def delete(*topics: Asked) -> Fields:
    return {"topics": [{"name": name, "topic_id": topic_id} for name, topic_id in topics], "timeout": 30_000}


def twice_by_name_and_id(scene: Scene) -> Fields:
    name = scene.topic()
    return delete((name, None), (None, scene.topic_id(name)))


def by_name_and_id(scene: Scene) -> Fields:
    name = scene.topic()
    return delete((name, scene.topic_id(name)))


def grow(name: str, count: int, *brokers: tuple[int, ...], assigned: bool = False, times: int = 1) -> Fields:
    """Grow a topic to ``count`` partitions; with ``assigned``, each new partition is placed on its ``brokers``."""
    assignments = [{"broker_ids": some} for some in brokers] if assigned or brokers else None
    topic = {"name": name, "count": count, "assignments": assignments}
    return {"topics": [topic] * times, "timeout": 30_000, "validate_only": True}


def describe(type_: int, name: str) -> Fields:
    resource = {"resource_type": type_, "resource_name": name, "configuration_keys": None}
    return {"resources": [resource], "include_synonyms": True, "include_documentation": False}


def alter(type_: int, name: str, *changes: Change, times: int = 1) -> Fields:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": type_, "resource_name": name, "configs": configs}
    return {"resources": [resource] * times, "validate_only": False}


def alter_topic(*changes: Change, times: int = 1) -> Callable[[Scene], Fields]:
    return lambda scene: alter(TOPIC, scene.topic(), *changes, times=times)


def alter_group(*changes: Change) -> Callable[[Scene], Fields]:
    return lambda scene: alter(GROUP, scene.name(), *changes)


def replace(type_: int, name: str, *pairs: tuple[str, str | None]) -> Fields:
    configs = [{"name": key, "value": value} for key, value in pairs]
    return {
        "resources": [{"resource_type": type_, "resource_name": name, "configs": configs}],
        "validate_only": True,
    }


def partitions(*names: str, cursor: tuple[str, int] | None = None) -> Fields:
    return {
        "topics": [{"name": name} for name in names],
        "response_partition_limit": 2_000,
        "cursor": cursor and {"topic_name": cursor[0], "partition_index": cursor[1]},
    }


def records(name: str, partition: int, offset: int) -> Fields:
    topic = {"name": name, "partitions": [{"partition_index": partition, "offset": offset}]}
    return {"topics": [topic], "timeout": 30_000}


def cluster(endpoint_type: int) -> dict[str, Any]:
    return {
        "include_cluster_authorized_operations": False,
        "endpoint_type": endpoint_type,
        "include_fenced_brokers": False,
    }


_delete = partial(Row, "DeleteTopics", 6)
_grow = partial(Row, "CreatePartitions", 3)
_describe = partial(Row, "DescribeConfigs", 4)
_alter = partial(Row, "IncrementalAlterConfigs", 1)
_replace = partial(Row, "AlterConfigs", 2)
_partitions = partial(Row, "DescribeTopicPartitions", 0)
_records = partial(Row, "DeleteRecords", 2)
_cluster = partial(Row, "DescribeCluster", 2)

DELETES = (
    Row("DeleteTopics", 1, "of no topic", E.unknown_topic_or_partition, {"topic_names": ("none",), "timeout": 30_000}),
    _delete("of a topic by its name", E.none, lambda scene: delete((scene.topic(), None))),
    _delete("of a topic by its id", E.none, lambda scene: delete((None, scene.topic_id(scene.topic())))),
    _delete("of no topic", E.unknown_topic_or_partition, delete(("no-such-topic", None))),
    _delete("of a name that no topic can have", E.unknown_topic_or_partition, delete(("a b", None))),
    _delete("of an id that no topic has", E.unknown_topic_id, delete((None, UNKNOWN_TOPIC_ID))),
    _delete("of nothing", E.invalid_request, delete((None, None))),
    _delete("by name and id at once", E.invalid_request, by_name_and_id),
    _delete("twice by name", E.invalid_request, lambda scene: delete(*[(scene.topic(), None)] * 2)),
    _delete("twice by id", E.invalid_request, delete((None, UNKNOWN_TOPIC_ID), (None, UNKNOWN_TOPIC_ID))),
    _delete("once by name and once by id", E.invalid_request, twice_by_name_and_id),
)

GROWTH = (
    _grow("to more", E.none, lambda scene: grow(scene.topic(2), 3)),
    _grow("to more on this broker", E.none, lambda scene: grow(scene.topic(2), 3, (1,))),
    _grow("of no topic", E.unknown_topic_or_partition, grow("no-such-topic", 3)),
    _grow("of a name that no topic can have", E.unknown_topic_or_partition, grow("a b", 3)),
    _grow("to as many", E.invalid_partitions, lambda scene: grow(scene.topic(2), 2)),
    _grow("to fewer", E.invalid_partitions, lambda scene: grow(scene.topic(2), 1)),
    _grow("to -1", E.invalid_partitions, lambda scene: grow(scene.topic(2), -1)),
    _grow("twice", E.invalid_request, lambda scene: grow(scene.topic(2), 3, times=2)),
    _grow(
        "to too many",
        E.invalid_partitions,
        lambda scene: grow(scene.topic(), 20_000),
        E.unknown_server_error,
        "Kafka's controller fails at more than 10,000 records in one write; our limit is a setting, named in the error",
    ),
    _grow("without assignments", E.invalid_replica_assignment, lambda scene: grow(scene.topic(2), 3, assigned=True)),
    _grow("with too few of them", E.invalid_replica_assignment, lambda scene: grow(scene.topic(2), 4, (1,))),
    _grow("on no broker", E.invalid_replica_assignment, lambda scene: grow(scene.topic(2), 3, ())),
    _grow("on another broker", E.invalid_replica_assignment, lambda scene: grow(scene.topic(2), 3, (7,))),
    _grow("on one broker twice", E.invalid_replica_assignment, lambda scene: grow(scene.topic(2), 3, (1, 1))),
)

DESCRIPTIONS = (
    _describe("of a topic", E.none, lambda scene: describe(TOPIC, scene.topic())),
    _describe("of this broker", E.none, describe(BROKER, "1")),
    _describe("of the cluster", E.none, describe(BROKER, "")),
    _describe("of an unknown group", E.none, describe(GROUP, "no-such-group")),
    _describe("of no topic", E.unknown_topic_or_partition, describe(TOPIC, "no-such-topic")),
    _describe("of a name that no topic can have", E.invalid_topic_exception, describe(TOPIC, "a b")),
    _describe("of an empty name", E.invalid_topic_exception, describe(TOPIC, "")),
    _describe("of another broker", E.invalid_request, describe(BROKER, "7")),
    _describe("of a broker without a number", E.invalid_request, describe(BROKER, "x")),
    _describe("of no group", E.invalid_request, describe(GROUP, "")),
    _describe("of a type that is none", E.invalid_request, describe(99, "x")),
    _describe("of the unknown type", E.invalid_request, describe(0, "x")),
)

ALTERATIONS = (
    _alter("of a topic", E.none, alter_topic(("retention.ms", SET, "1"))),
    _alter("of no topic", E.unknown_topic_or_partition, alter(TOPIC, "no-such-topic", ("retention.ms", SET, "1"))),
    _alter(
        "of a name that no topic can have", E.invalid_topic_exception, alter(TOPIC, "a b", ("retention.ms", SET, "1"))
    ),
    _alter("of a key that is none", E.invalid_config, alter_topic(("no.such.config", SET, "1"))),
    _alter("that deletes what is no key", E.none, alter_topic(("no.such.config", DELETE, None))),
    _alter("that deletes what is not set", E.none, alter_topic(("retention.ms", DELETE, None))),
    _alter("to no value", E.invalid_request, alter_topic(("retention.ms", SET, None))),
    _alter("to a number that is none", E.invalid_config, alter_topic(("retention.ms", SET, "soon"))),
    _alter("to a number below its range", E.invalid_config, alter_topic(("retention.ms", SET, "-2"))),
    _alter(
        "by an operation that is none",
        E.invalid_request,
        alter_topic(("retention.ms", 9, "1")),
        E.unknown_server_error,
        "Kafka fails with an exception; the client should get an error about its request",
    ),
    _alter("that appends to a number", E.invalid_config, alter_topic(("retention.ms", APPEND, "1"))),
    _alter("that subtracts from a number", E.invalid_config, alter_topic(("retention.ms", SUBTRACT, "1"))),
    _alter("that appends to what is no key", E.invalid_config, alter_topic(("no.such.config", APPEND, "1"))),
    _alter("that appends what is no policy", E.invalid_config, alter_topic(("cleanup.policy", APPEND, "burn"))),
    _alter("that appends nothing", E.invalid_request, alter_topic(("cleanup.policy", APPEND, None))),
    _alter("that appends what is there", E.none, alter_topic(("cleanup.policy", APPEND, "delete"))),
    _alter("that subtracts all that is there", E.none, alter_topic(("cleanup.policy", SUBTRACT, "delete"))),
    _alter("that subtracts what is not there", E.none, alter_topic(("cleanup.policy", SUBTRACT, "compact"))),
    _alter("of one key twice", E.invalid_request, alter_topic(("retention.ms", SET, "1"), ("retention.ms", SET, "2"))),
    _alter(
        "of one topic twice", (E.invalid_request, E.invalid_request), alter_topic(("retention.ms", SET, "1"), times=2)
    ),
    _alter(
        "of one good and one bad key",
        E.invalid_config,
        alter_topic(("retention.ms", SET, "1"), ("segment.ms", SET, "x")),
    ),
    _alter("of nothing", E.none, alter_topic()),
    _alter("of a group", E.none, alter_group((SESSION, SET, "50000"))),
    _alter("of no group", E.invalid_request, alter(GROUP, "", (SESSION, SET, "50000"))),
    _alter("of a group's key that is none", E.invalid_config, alter_group(("no.such.config", SET, "1"))),
    _alter("of a group to no number", E.invalid_config, alter_group((SESSION, SET, "soon"))),
    _alter("of a group to too little", E.invalid_config, alter_group((SESSION, SET, "44999"))),
    _alter("of a group to too much", E.invalid_config, alter_group((SESSION, SET, "60001"))),
    _alter("of a group to no value", E.invalid_request, alter_group((SESSION, SET, None))),
    _alter(
        "of a share group to a start position",
        E.none,
        alter_group(("share.auto.offset.reset", SET, "by_duration:P1DT2.5S")),
    ),
    _alter(
        "of a share group to no start position",
        E.invalid_config,
        alter_group(("share.auto.offset.reset", SET, "by_duration:P")),
    ),
    _alter(
        "of a share group to a start position before time 0",
        E.invalid_config,
        alter_group(("share.auto.offset.reset", SET, "by_duration:-P1D")),
    ),
    _alter("of another broker", E.invalid_request, alter(BROKER, "7", ("num.partitions", SET, "2"))),
    _alter("of a broker without a number", E.invalid_request, alter(BROKER, "x", ("num.partitions", SET, "2"))),
    _alter("of what a broker reads at its start", E.invalid_request, alter(BROKER, "1", ("num.partitions", SET, "2"))),
    _alter(
        "of what all brokers read at their start", E.invalid_request, alter(BROKER, "", ("num.partitions", SET, "2"))
    ),
    _alter(
        "of a broker's key that is none",
        E.invalid_request,
        alter(BROKER, "1", ("no.such.config", SET, "2")),
        E.none,
        "Kafka keeps keys for plug-ins; we have none, and the client should get an error about its mistake",
    ),
    _alter(
        "of what a broker could change while it runs",
        E.invalid_request,
        alter(BROKER, "1", ("background.threads", SET, "10")),
        E.none,
        "this broker's settings are given at its start",
    ),
    _alter("of a type that is none", E.invalid_request, alter(99, "x", ("a", SET, "b"))),
    _alter("of the unknown type", E.invalid_request, alter(0, "x", ("a", SET, "b"))),
    _replace("of a topic", E.none, lambda scene: replace(TOPIC, scene.topic(), ("retention.ms", "1"))),
    _replace("of no topic", E.unknown_topic_or_partition, replace(TOPIC, "no-such-topic", ("retention.ms", "1"))),
    _replace("to no value", E.invalid_request, lambda scene: replace(TOPIC, scene.topic(), ("retention.ms", None))),
    _replace(
        "to a number that is none", E.invalid_config, lambda scene: replace(TOPIC, scene.topic(), ("retention.ms", "x"))
    ),
    _replace(
        "of one key twice", E.invalid_request, lambda scene: replace(TOPIC, scene.topic(), *[("retention.ms", "1")] * 2)
    ),
    _replace("of a group", E.none, replace(GROUP, "some-group", (SESSION, "50000"))),
    _replace("of what a broker reads at its start", E.invalid_request, replace(BROKER, "1", ("num.partitions", "2"))),
    _replace("of a type that is none", E.invalid_request, replace(99, "x", ("a", "b"))),
    Row("ListConfigResources", 1, "of all types", E.none, {"resource_types": ()}),
    Row("ListConfigResources", 1, "of a type that is none", E.unsupported_version, {"resource_types": (99,)}),
    Row("ListConfigResources", 0, "of client metrics", E.none, {}),
)

LOOKS = (
    _partitions("of a topic", E.none, lambda scene: partitions(scene.topic(2))),
    _partitions("of no topic", E.unknown_topic_or_partition, partitions("no-such-topic")),
    _partitions("of a name that no topic can have", E.invalid_topic_exception, partitions("a b")),
    _partitions(
        "of an empty name",
        E.invalid_topic_exception,
        partitions(""),
        E.unknown_server_error,
        "Kafka fails with an exception",
    ),
    _partitions("from a partition below 0", E.invalid_request, partitions("a", cursor=("a", -1))),
    _partitions("from after all requested topics", E.invalid_request, partitions("a", cursor=("z", 0))),
    _cluster("of brokers", E.none, cluster(1)),
    _cluster("of controllers", E.mismatched_endpoint_type, cluster(2)),
    _cluster("of what is none", E.unsupported_endpoint_type, cluster(9)),
    _records("to the end", E.none, lambda scene: records(scene.topic(), 0, -1)),
    _records("of no topic", E.unknown_topic_or_partition, records("no-such-topic", 0, 0)),
    _records("of no partition", E.unknown_topic_or_partition, lambda scene: records(scene.topic(), 9, 0)),
    _records("beyond the end", E.offset_out_of_range, lambda scene: records(scene.topic(), 0, 1)),
    _records("before -1", E.offset_out_of_range, lambda scene: records(scene.topic(), 0, -2)),
    _records(
        "of what is compacted", E.policy_violation, lambda scene: records(scene.topic(cleanup_policy="compact"), 0, 0)
    ),
    _records("of the groups' topic", E.invalid_topic_exception, records("__consumer_offsets", 0, 0)),
)

ROWS = DELETES + GROWTH + DESCRIPTIONS + ALTERATIONS + LOOKS
