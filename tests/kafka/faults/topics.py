"""Faults of requests about topics."""

from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from coterie.wire.errors import ErrorCode as E
from tests.kafka.faults.row import Row, Scene

UNKNOWN_TOPIC_ID = UUID("7c2a4a3e-2d6f-4a52-9c6e-0c5f1f0f6a11")


def create(*topics: dict[str, Any], validate_only: bool = True) -> dict[str, Any]:
    usual = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    return {"topics": [usual | topic for topic in topics], "timeout": 30_000, "validate_only": validate_only}


def pair(name: str, value: str | None) -> dict[str, Any]:
    return {"name": name, "value": value}


def config(name: str, value: str | None) -> dict[str, Any]:
    return create({"name": "new-topic", "configs": [pair(name, value)]})


def twin(scene: Scene) -> dict[str, Any]:
    """A request to create a topic whose name differs from an existing one by a dot for an underscore."""
    name = f"{scene.name()}.a"
    scene.ask("CreateTopics", 7, create({"name": name}, validate_only=False))
    return create({"name": name.replace(".", "_")})


def assigned(partition: int, *broker_ids: int) -> dict[str, Any]:
    return {"partition_index": partition, "broker_ids": broker_ids}


def by_hand(*assignments: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": assignments}


def named(name: str | None, topic_id: UUID | None = None) -> dict[str, Any]:
    return {
        "topics": [{"name": name, "topic_id": topic_id}],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }


_metadata = partial(Row, "Metadata", 12)
_create = partial(Row, "CreateTopics", 7)

METADATA = (
    _metadata("of an unknown topic", E.unknown_topic_or_partition, named("no-such-topic")),
    _metadata("of a name that no topic can have", E.invalid_topic_exception, named("a b")),
    _metadata("of an empty name", E.invalid_topic_exception, named("")),
    _metadata("of a name that is too long", E.invalid_topic_exception, named("a" * 250)),
    _metadata("of an id that no topic has", E.unknown_topic_id, named(None, UNKNOWN_TOPIC_ID)),
    _metadata("of a topic by its name", E.none, lambda scene: named(scene.topic())),
    _metadata("of a topic by its id", E.none, lambda scene: named(None, scene.topic_id(scene.topic()))),
)

CREATE = (
    _create("of an empty name", E.invalid_topic_exception, create({"name": ""})),
    _create("of a dot", E.invalid_topic_exception, create({"name": "."})),
    _create("of a name with a blank", E.invalid_topic_exception, create({"name": "a b"})),
    _create("of a name that is too long", E.invalid_topic_exception, create({"name": "a" * 250})),
    _create("named as another but for a dot", E.invalid_topic_exception, twin),
    _create("that exists", E.topic_already_exists, lambda scene: create({"name": scene.topic()})),
    _create("twice in a request", E.invalid_request, create({"name": "twice"}, {"name": "twice"})),
    _create("of default size", E.none, create({"name": "t", "num_partitions": -1, "replication_factor": -1})),
    _create("of 0 partitions", E.invalid_partitions, create({"name": "t", "num_partitions": 0})),
    _create("of -2 partitions", E.invalid_partitions, create({"name": "t", "num_partitions": -2})),
    _create("of 0 replicas", E.invalid_replication_factor, create({"name": "t", "replication_factor": 0})),
    _create("of -2 replicas", E.invalid_replication_factor, create({"name": "t", "replication_factor": -2})),
    _create(
        "of more replicas than brokers", E.invalid_replication_factor, create({"name": "t", "replication_factor": 3})
    ),
    _create("assigned and counted", E.invalid_request, create({"name": "t", "assignments": [assigned(0, 1)]})),
    _create("with a missing partition", E.invalid_replica_assignment, create(by_hand(assigned(0, 1), assigned(2, 1)))),
    _create("on an unknown broker", E.invalid_replica_assignment, create(by_hand(assigned(0, 7)))),
    _create("on one broker twice", E.invalid_replica_assignment, create(by_hand(assigned(0, 1, 1)))),
    _create("on no broker", E.invalid_replica_assignment, create(by_hand(assigned(0)))),
    _create("with an unknown config", E.invalid_config, config("no.such.config", "1")),
    _create("with a config of no value", E.invalid_config, config("retention.ms", None)),
    _create("with a number that is none", E.invalid_config, config("retention.ms", "soon")),
    _create("with a number below its range", E.invalid_config, config("retention.ms", "-2")),
    _create("with a number beyond an int", E.invalid_config, config("segment.bytes", "2147483648")),
    _create("with a number beyond a long", E.invalid_config, config("retention.ms", str(2**63))),
    _create("with a segment that is too small", E.invalid_config, config("segment.bytes", "1024")),
    _create("with a policy that is none", E.invalid_config, config("cleanup.policy", "burn")),
    _create("with an empty policy", E.none, config("cleanup.policy", "")),
    _create("with a policy twice", E.none, config("cleanup.policy", "compact,compact")),
    _create("with a codec that is none", E.invalid_config, config("compression.type", "rar")),
    _create("with a level beyond its range", E.invalid_config, config("compression.gzip.level", "10")),
    _create("with the only invalid level in the range", E.invalid_config, config("compression.gzip.level", "0")),
    _create("with a timestamp type that is none", E.invalid_config, config("message.timestamp.type", "Yesterday")),
    _create("with a yes that is no true", E.invalid_config, config("preallocate", "yes")),
    _create("with a ratio above 1", E.invalid_config, config("min.cleanable.dirty.ratio", "1.1")),
    _create("with a ratio that is none", E.invalid_config, config("min.cleanable.dirty.ratio", "half")),
    _create("with 0 in-sync replicas", E.invalid_config, config("min.insync.replicas", "0")),
    _create("with blanks around a number", E.none, config("retention.ms", " 1000 ")),
    _create("with throttled replicas", E.none, config("leader.replication.throttled.replicas", "0:1,1:1")),
    _create(
        "with throttled replicas that are none", E.invalid_config, config("leader.replication.throttled.replicas", "x")
    ),
    _create(
        "with contradicting lags",
        E.invalid_config,
        create({"name": "t", "configs": [pair("min.compaction.lag.ms", "2"), pair("max.compaction.lag.ms", "1")]}),
    ),
)

ROWS = METADATA + CREATE
