"""CreatePartitions: increases the number of partitions of topics, or only checks whether that is allowed
(validate-only). Not supported: replicas, because there is one broker."""

from collections import Counter
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    ApiAuthorization,
    Operation,
    make_topic_check,
    topic_authorization_with_topic_errors,
)
from coterie.broker.apis.create_topics import check_topic_and_broker_partition_limits, replica_assignment_error
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.error_reply import await_error_and_message
from coterie.broker.loop_yield import yielding
from coterie.broker.topics.names import is_internal_topic
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.kio_entities import Values


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    name_counts = Counter(asked.name for asked in request.body.topics)
    answers: list[Values] = []
    async for asked in yielding({asked.name: asked for asked in request.body.topics}.values()):
        error, error_message = await await_error_and_message(
            _add_partitions(broker, asked, name_counts, validate_only=request.body.validate_only)
        )
        answers.append({"name": asked.name, "error_code": error, "error_message": error_message})
    return {"results": answers}


async def _add_partitions(broker: BrokerContext, asked: Any, name_counts: Counter[str], *, validate_only: bool) -> None:
    """Increase the number of partitions of the topic in the request's entry ``asked``; if ``validate_only``, only check
    the entry. ``name_counts`` counts how often the request contains each topic name.

    :raises KafkaRefusal: when the topic does not exist or is internal, the request is invalid, or a limit of partitions
        would be exceeded.
    :raises WorldError: when the topic was deleted meanwhile, or the log cannot be written. After each error the topic
        is unchanged.
    """
    if name_counts[asked.name] > 1:
        raise KafkaRefusal(
            ErrorCode.invalid_request,
            f"The request contains the topic {asked.name} more than once, so it does not change this topic: send it "
            "once.",
        )
    topic = broker.log.topics.get(asked.name)
    if topic is None:
        raise KafkaRefusal(ErrorCode.unknown_topic_or_partition)
    if is_internal_topic(asked.name):
        raise KafkaRefusal(
            ErrorCode.invalid_topic_exception,
            f"{asked.name} is an internal topic; the number of its partitions cannot be changed.",
        )
    before, after = len(topic.partitions), asked.count
    if after == before:
        raise KafkaRefusal(ErrorCode.invalid_partitions, f"Topic already has {before} partition(s).")
    if after < before:
        raise KafkaRefusal(
            ErrorCode.invalid_partitions,
            f"The topic {asked.name} currently has {before} partition(s); {after} would not be an increase.",
        )
    check_topic_and_broker_partition_limits(broker, partitions=after, added_partitions=after - before)
    if asked.assignments is not None:
        if len(asked.assignments) != after - before:
            raise KafkaRefusal(
                ErrorCode.invalid_replica_assignment,
                f"Attempted to add {after - before} additional partition(s), but only {len(asked.assignments)}"
                " assignment(s) were specified.",
            )
        for assignment in asked.assignments:
            if error_message := replica_assignment_error(assignment.broker_ids):
                raise KafkaRefusal(ErrorCode.invalid_replica_assignment, error_message)
    if not validate_only:
        await broker.log.increase_partitions_to(topic, after, partitions_max=broker.settings.partitions_max)


_AUTHORIZATION = ApiAuthorization(
    items=[topic_authorization_with_topic_errors(make_topic_check(Operation.ALTER), response_field="results")]
)
API = KafkaApi(key=37, versions=range(4), handle=handle, authorization=_AUTHORIZATION)
