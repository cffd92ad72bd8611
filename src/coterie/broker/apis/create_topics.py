"""CreateTopics: validates as Kafka does, returns all configs; with validate-only. Not supported: replication, because
there is one broker; create policies and quotas."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.config_entries import topic_entries
from coterie.broker.apis.needs import TOPIC, UNAUTHORIZED, AccessCheck, Each, Operation, Permission, creation
from coterie.broker.node import NODE_ID, ApiRequest, Node
from coterie.broker.outcome import outcome
from coterie.broker.storage.store import NoRoomError
from coterie.broker.topics.configs import config_error
from coterie.broker.topics.names import collision, is_internal, name_error
from coterie.broker.turns import in_turns
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.shapes import Values


async def handle(node: Node, request: ApiRequest) -> Values:
    often = Counter(topic.name for topic in request.body.topics)
    # One after the other: each new topic counts in the limit of the next. A duplicate name is refused anyway.
    asked = {topic.name: topic for topic in request.body.topics}.values()
    return {
        "topics": [
            await _answer(node, one, often, validate_only=request.body.validate_only) async for one in in_turns(asked)
        ],
    }


async def _answer(node: Node, asked: Any, often: Counter[str], *, validate_only: bool) -> Values:
    configs = {config.name: config.value for config in asked.configs}
    error, sentence = await outcome(_create(node, asked, configs, often, validate_only=validate_only))
    answer: dict[str, Any] = {"name": asked.name, "topic_id": None, "error_code": error, "error_message": sentence}
    if error is not ErrorCode.none:
        return answer | {"num_partitions": -1, "replication_factor": -1, "configs": ()}
    if not validate_only:
        answer["topic_id"] = node.log.topics[asked.name].topic_id
    return answer | {
        "num_partitions": len(asked.assignments) or _counted(node, asked),
        "replication_factor": 1,
        "configs": topic_entries(node, configs),
    }


async def _create(
    node: Node, asked: Any, configs: Mapping[str, Any], often: Counter[str], *, validate_only: bool
) -> None:
    """:raises KafkaRefusal, WorldError: the topic was not created."""
    if often[asked.name] > 1:
        raise KafkaRefusal(ErrorCode.invalid_request, "Duplicate topic in request.")
    check_name(node, asked.name)
    partitions = _assigned_partitions(asked) if asked.assignments else _counted_partitions(node, asked)
    check_room(node, partitions=partitions, more=partitions)
    if sentence := config_error(configs):
        raise KafkaRefusal(ErrorCode.invalid_config, sentence)
    if not validate_only:
        await node.log.create_topic(asked.name, partitions, configs, partitions_max=node.settings.partitions_max)


# -- validation of new topics and partitions ------------------------------------------------------------------------


def check_name(node: Node, name: str) -> None:
    """:raises KafkaRefusal: a new topic cannot have this name."""
    if sentence := name_error(name):
        raise KafkaRefusal(ErrorCode.invalid_topic_exception, sentence)
    if name in node.log.topics:
        raise KafkaRefusal(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
    if is_internal(name):
        raise KafkaRefusal(ErrorCode.invalid_topic_exception, f"The name {name} is reserved for an internal topic.")
    if other := collision(name, node.log.topics):
        raise KafkaRefusal(ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}")


def check_room(node: Node, *, partitions: int, more: int) -> None:
    """Check the limits of partitions before the write, also for validate-only requests. The write checks again, with
    the partitions that concurrent requests create.

    :raises KafkaRefusal: the topic cannot have ``partitions`` partitions, of which ``more`` are new.
    """
    if partitions > node.settings.topic_partitions_max:
        raise KafkaRefusal(
            ErrorCode.invalid_partitions,
            f"A topic may have at most {node.settings.topic_partitions_max} partitions; {partitions} were requested.",
        )
    if node.log.partition_count + more > node.settings.partitions_max:
        raise NoRoomError(node.settings.partitions_max)


def assignment_error(broker_ids: Sequence[int]) -> str | None:
    """An error message if a partition cannot be on these brokers, else None."""
    if not broker_ids:
        return "The manual partition assignment includes an empty replica list."
    unknown = next((broker_id for broker_id in broker_ids if broker_id != NODE_ID), None)
    if unknown is not None:
        return f"The manual partition assignment includes broker {unknown}, but no such broker is registered."
    if len(broker_ids) > 1:
        return f"The manual partition assignment includes the broker {NODE_ID} more than once."
    return None


def _counted(node: Node, asked: Any) -> int:
    # -1 means the broker's default (KIP-464).
    return node.settings.default_partitions if asked.num_partitions == -1 else int(asked.num_partitions)


def _counted_partitions(node: Node, asked: Any) -> int:
    partitions = _counted(node, asked)
    if partitions <= 0:
        raise KafkaRefusal(
            ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
        )
    if asked.replication_factor == 0 or asked.replication_factor < -1:
        raise KafkaRefusal(
            ErrorCode.invalid_replication_factor, "Replication factor must be larger than 0, or -1 to use the default."
        )
    if asked.replication_factor > 1:
        raise KafkaRefusal(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {asked.replication_factor} time(s):"
            " The target replication factor cannot be reached because only 1 broker(s) are registered.",
        )
    return partitions


def _assigned_partitions(asked: Any) -> int:
    if asked.num_partitions != -1 or asked.replication_factor != -1:
        raise KafkaRefusal(
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but numPartitions or replicationFactor was not set to -1.",
        )
    numbers = sorted(assignment.partition_index for assignment in asked.assignments)
    if numbers != list(range(len(numbers))):
        raise KafkaRefusal(
            ErrorCode.invalid_replica_assignment, "Partitions should be a consecutive 0-based integer sequence."
        )
    for assignment in asked.assignments:
        if sentence := assignment_error(assignment.broker_ids):
            raise KafkaRefusal(ErrorCode.invalid_replica_assignment, sentence)
    return len(numbers)


# -- authorization -----------------------------------------------------------------------------------------------------


def _seen_configs(access: AccessCheck, answer: Values) -> Values:
    """Since v5 the response has a new topic's configs (KIP-525); hide them if the client may not describe them."""
    hidden = {
        "topic_config_error_code": int(ErrorCode.topic_authorization_failed),
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": (),
    }
    return {
        **answer,
        "topics": [
            topic
            if topic["error_code"] is not ErrorCode.none or access.may(Operation.DESCRIBE_CONFIGS, TOPIC, topic["name"])
            else {**topic, **hidden}
            for topic in answer.get("topics", ())
        ],
    }


_NEEDS = Permission(
    each=[
        Each(
            asked="topics",
            answers="topics",
            needs=creation,
            refused=lambda topic, error: {
                "name": topic.name,
                "error_code": error,
                "error_message": UNAUTHORIZED,
                "configs": (),
            },
        )
    ],
    rewritten=_seen_configs,
)
API = KafkaApi(key=19, versions=range(2, 8), handle=handle, needs=_NEEDS)
