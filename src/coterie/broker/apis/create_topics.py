"""CreateTopics: creates topics, or only checks whether they could be created (validate-only). Validates like Kafka. The
response contains all configs of each topic. Not supported: replication, because there is one broker; create policies
and quotas."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    TOPIC,
    UNAUTHORIZED,
    AccessCheck,
    ApiAuthorization,
    ItemAuthorization,
    Operation,
    create_topic_authorization_error,
)
from coterie.broker.apis.config_entries import topic_config_entries
from coterie.broker.context import NODE_ID, ApiRequest, BrokerContext
from coterie.broker.error_reply import await_error_and_message
from coterie.broker.loop_yield import yielding
from coterie.broker.storage.store import TooManyPartitionsError
from coterie.broker.topics.configs import topic_configs_error
from coterie.broker.topics.names import colliding_name, is_internal_topic, topic_name_error
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.kio_entities import Values


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    name_counts = Counter(topic.name for topic in request.body.topics)
    # One after the other: each new topic counts in the limit of the next. A duplicate name is refused anyway.
    asked = {topic.name: topic for topic in request.body.topics}.values()
    return {
        "topics": [
            await _create_and_build_entry(broker, one, name_counts, validate_only=request.body.validate_only)
            async for one in yielding(asked)
        ],
    }


async def _create_and_build_entry(
    broker: BrokerContext, new_topic: Any, name_counts: Counter[str], *, validate_only: bool
) -> Values:
    """Create or validate the topic in the request's entry ``new_topic``; return the response entry."""
    configs = {config.name: config.value for config in new_topic.configs}
    error, error_message = await await_error_and_message(
        _create_topic(broker, new_topic, configs, name_counts, validate_only=validate_only)
    )
    answer: dict[str, Any] = {
        "name": new_topic.name,
        "topic_id": None,
        "error_code": error,
        "error_message": error_message,
    }
    if error is not ErrorCode.none:
        return answer | {"num_partitions": -1, "replication_factor": -1, "configs": ()}
    if not validate_only:
        answer["topic_id"] = broker.log.topics[new_topic.name].topic_id
    return answer | {
        "num_partitions": len(new_topic.assignments) or _unchecked_partition_count_or_default(broker, new_topic),
        "replication_factor": 1,
        "configs": topic_config_entries(broker, configs),
    }


async def _create_topic(
    broker: BrokerContext, new_topic: Any, configs: Mapping[str, Any], name_counts: Counter[str], *, validate_only: bool
) -> None:
    """Check the request's entry ``new_topic`` and create the topic, unless ``validate_only``. ``configs`` are its
    configs; ``name_counts`` counts how often the request contains each topic name.

    :raises KafkaRefusal: when the entry is invalid, or a limit of partitions would be exceeded.
    :raises WorldError: when the log cannot be written. After each error the topic was not created.
    """
    if name_counts[new_topic.name] > 1:
        raise KafkaRefusal(
            ErrorCode.invalid_request,
            f"The request contains the topic {new_topic.name} more than once, so it does not create this topic: send "
            "it once.",
        )
    check_new_topic_name(broker, new_topic.name)
    partitions = (
        _check_assignments_and_count_partitions(new_topic)
        if new_topic.assignments
        else _check_counts_and_return_partition_count(broker, new_topic)
    )
    check_topic_and_broker_partition_limits(broker, partitions=partitions, added_partitions=partitions)
    if error_message := topic_configs_error(configs):
        raise KafkaRefusal(ErrorCode.invalid_config, error_message)
    if not validate_only:
        await broker.log.create_topic(
            new_topic.name, partitions, configs, partitions_max=broker.settings.partitions_max
        )


# -- validation of new topics and partitions ------------------------------------------------------------------------


def check_new_topic_name(broker: BrokerContext, name: str) -> None:
    """Check that a new topic can have this name.

    :raises KafkaRefusal: when the name is invalid or reserved, a topic with this name exists, or an existing topic's
        name differs from it only in dots and underscores.
    """
    if error_message := topic_name_error(name):
        raise KafkaRefusal(ErrorCode.invalid_topic_exception, error_message)
    if name in broker.log.topics:
        raise KafkaRefusal(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
    if is_internal_topic(name):
        raise KafkaRefusal(ErrorCode.invalid_topic_exception, f"The name {name} is reserved for an internal topic.")
    if other := colliding_name(name, broker.log.topics):
        raise KafkaRefusal(ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}")


def check_topic_and_broker_partition_limits(broker: BrokerContext, *, partitions: int, added_partitions: int) -> None:
    """Check the limits of one topic's and of the broker's partitions before the write, also for validate-only requests.
    The write checks the broker's limit again, because concurrent requests may have created partitions since.

    :raises KafkaRefusal: when ``partitions`` are too many for one topic, or ``added_partitions`` more are too many for
        the broker.
    """
    if partitions > broker.settings.topic_partitions_max:
        raise KafkaRefusal(
            ErrorCode.invalid_partitions,
            f"A topic may have at most {broker.settings.topic_partitions_max} partitions; {partitions} were requested.",
        )
    if broker.log.partition_count + added_partitions > broker.settings.partitions_max:
        raise TooManyPartitionsError(broker.settings.partitions_max)


def replica_assignment_error(broker_ids: Sequence[int]) -> str | None:
    """An error message if ``broker_ids``, the replicas that the request assigns to a partition, are not exactly this
    broker, else None."""
    if not broker_ids:
        return "The manual partition assignment includes an empty replica list."
    unknown = next((broker_id for broker_id in broker_ids if broker_id != NODE_ID), None)
    if unknown is not None:
        return f"The manual partition assignment includes broker {unknown}, but no such broker is registered."
    if len(broker_ids) > 1:
        return f"The manual partition assignment includes the broker {NODE_ID} more than once."
    return None


def _unchecked_partition_count_or_default(broker: BrokerContext, new_topic: Any) -> int:
    """The number of partitions that the request's entry ``new_topic`` sets, not checked; for -1 the broker's default.
    The partitions of a manual assignment are not counted."""
    # -1 means the broker's default (KIP-464).
    return broker.settings.default_partitions if new_topic.num_partitions == -1 else int(new_topic.num_partitions)


def _check_counts_and_return_partition_count(broker: BrokerContext, new_topic: Any) -> int:
    """The number of partitions of a new topic without a manual assignment.

    :raises KafkaRefusal: when the number, or the replication factor, is invalid.
    """
    partitions = _unchecked_partition_count_or_default(broker, new_topic)
    if partitions <= 0:
        raise KafkaRefusal(
            ErrorCode.invalid_partitions, "Number of partitions was set to an invalid non-positive value."
        )
    if new_topic.replication_factor == 0 or new_topic.replication_factor < -1:
        raise KafkaRefusal(
            ErrorCode.invalid_replication_factor, "Replication factor must be larger than 0, or -1 to use the default."
        )
    if new_topic.replication_factor > 1:
        raise KafkaRefusal(
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {new_topic.replication_factor} time(s):"
            " The target replication factor cannot be reached because only 1 broker(s) are registered.",
        )
    return partitions


def _check_assignments_and_count_partitions(new_topic: Any) -> int:
    """The number of partitions of a new topic with a manual assignment of its replicas to brokers.

    :raises KafkaRefusal: when the assignment is invalid.
    """
    if new_topic.num_partitions != -1 or new_topic.replication_factor != -1:
        raise KafkaRefusal(
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but numPartitions or replicationFactor was not set to -1.",
        )
    numbers = sorted(assignment.partition_index for assignment in new_topic.assignments)
    if numbers != list(range(len(numbers))):
        raise KafkaRefusal(
            ErrorCode.invalid_replica_assignment, "Partitions should be a consecutive 0-based integer sequence."
        )
    for assignment in new_topic.assignments:
        if error_message := replica_assignment_error(assignment.broker_ids):
            raise KafkaRefusal(ErrorCode.invalid_replica_assignment, error_message)
    return len(numbers)


# -- authorization -----------------------------------------------------------------------------------------------------


def _hide_configs_and_counts(access: AccessCheck, answer: Values) -> Values:
    """The response without the configs, the number of partitions and the replication factor of each new topic whose
    configs the client may not describe. Only responses since v5 have these fields (KIP-525)."""
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
            if topic["error_code"] is not ErrorCode.none
            or access.is_allowed(Operation.DESCRIBE_CONFIGS, TOPIC, topic["name"])
            else {**topic, **hidden}
            for topic in answer.get("topics", ())
        ],
    }


_AUTHORIZATION = ApiAuthorization(
    items=[
        ItemAuthorization(
            request_field="topics",
            response_field="topics",
            check=create_topic_authorization_error,
            make_refused_entry=lambda topic, error: {
                "name": topic.name,
                "error_code": error,
                "error_message": UNAUTHORIZED,
                "configs": (),
            },
        )
    ],
    filter_response=_hide_configs_and_counts,
)
API = KafkaApi(key=19, versions=range(2, 8), handle=handle, authorization=_AUTHORIZATION)
