"""CreateTopics: v2-7 · checked as Kafka checks, configs kept and told back, validate-only · replication: one broker
holds everything; policies and quotas: none."""

from collections import Counter
from typing import Any

from coterie.broker.node import NODE_ID, Node, Request
from coterie.broker.store import TopicExistsError
from coterie.broker.topic_configs import config_error
from coterie.broker.topic_rules import collision, name_error
from coterie.nouns.errors import CoterieError, WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_DYNAMIC_TOPIC_CONFIG = 1
"""Where a config comes from, as DescribeConfigs counts: the topic's own."""


class _Refused(CoterieError):
    def __init__(self, error: ErrorCode, sentence: str) -> None:
        super().__init__(sentence)
        self.error = error


async def handle(node: Node, request: Request) -> Values:
    often = Counter(topic.name for topic in request.body.topics)
    answers: list[Values] = []
    # One after the other: each counts in the limit of the next. The last one's name decides nothing.
    for topic in {topic.name: topic for topic in request.body.topics}.values():
        if often[topic.name] > 1:
            answers.append(_refusal(topic.name, ErrorCode.invalid_request, "Duplicate topic in request."))
        else:
            answers.append(await _create(node, topic, validate_only=request.body.validate_only))
    return {"throttle_time": 0, "topics": answers}


async def _create(node: Node, asked: Any, *, validate_only: bool) -> Values:
    configs = {config.name: config.value for config in asked.configs}
    try:
        partitions = _check(node, asked, configs)
        topic_id = None
        if not validate_only:
            topic_id = (await node.log.create_topic(asked.name, partitions, configs)).topic_id
    except _Refused as refused:
        return _refusal(asked.name, refused.error, str(refused))
    except TopicExistsError as error:
        return _refusal(asked.name, ErrorCode.topic_already_exists, str(error))
    except WorldError as error:
        return _refusal(asked.name, ErrorCode.kafka_storage_error, str(error))
    return {
        "name": asked.name,
        "topic_id": topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [
            {
                "name": name,
                "value": value,
                "read_only": False,
                "config_source": _DYNAMIC_TOPIC_CONFIG,
                "is_sensitive": False,
            }
            for name, value in sorted(configs.items())
        ],
    }


def _check(node: Node, asked: Any, configs: dict[str, str | None]) -> int:
    """How many partitions the topic gets; refuses what cannot be."""
    if sentence := name_error(asked.name):
        raise _Refused(ErrorCode.invalid_topic_exception, sentence)
    if asked.name in node.log.topics:
        raise _Refused(ErrorCode.topic_already_exists, f"Topic '{asked.name}' already exists.")
    if other := collision(asked.name, node.log.topics):
        raise _Refused(ErrorCode.invalid_topic_exception, f"Topic '{asked.name}' collides with existing topic: {other}")
    partitions = _assigned_partitions(asked) if asked.assignments else _counted_partitions(node, asked)
    if partitions > node.settings.topic_partitions_max:
        raise _Refused(
            ErrorCode.invalid_partitions,
            f"A topic has at most {node.settings.topic_partitions_max} partitions here, {partitions} are asked for.",
        )
    if node.log.partition_count + partitions > node.settings.partitions_max:
        raise _Refused(
            ErrorCode.policy_violation, f"This broker has room for {node.settings.partitions_max} partitions."
        )
    if sentence := config_error(configs):
        raise _Refused(ErrorCode.invalid_config, sentence)
    return partitions


def _counted_partitions(node: Node, asked: Any) -> int:
    # -1 asks for the broker's default (KIP-464).
    partitions = node.settings.default_partitions if asked.num_partitions == -1 else int(asked.num_partitions)
    if partitions <= 0:
        raise _Refused(ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value.")
    if asked.replication_factor == 0 or asked.replication_factor < -1:
        raise _Refused(
            ErrorCode.invalid_replication_factor, "Replication factor must be larger than 0, or -1 to use the default."
        )
    if asked.replication_factor > 1:
        raise _Refused(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {asked.replication_factor} time(s):"
            " The target replication factor cannot be reached because only 1 broker(s) are registered.",
        )
    return partitions


def _assigned_partitions(asked: Any) -> int:
    if asked.num_partitions != -1 or asked.replication_factor != -1:
        raise _Refused(
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but numPartitions or replicationFactor was not set to -1.",
        )
    numbers = sorted(assignment.partition_index for assignment in asked.assignments)
    if numbers != list(range(len(numbers))) or any(
        tuple(assignment.broker_ids) != (NODE_ID,) for assignment in asked.assignments
    ):
        raise _Refused(
            ErrorCode.invalid_replica_assignment,
            f"Partitions should be a consecutive 0-based integer sequence, each on broker {NODE_ID} alone.",
        )
    return len(numbers)


def _refusal(name: str, error: ErrorCode, sentence: str) -> Values:
    return {
        "name": name,
        "topic_id": None,
        "error_code": error,
        "error_message": sentence,
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": None,
    }
