"""DescribeTopicPartitions: returns all topics or the requested topics, sorted by name, with a limited number of
partitions in each response (KIP-966). If partitions are left, the response has a cursor: the topic name and partition
index with which the client's next request continues. Not supported: eligible leader replicas, because each partition
has one replica."""

from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    TOPIC,
    ApiAuthorization,
    Operation,
    is_topic_visible_or_unnamed,
    make_topic_check,
    topic_authorization_with_topic_errors,
)
from coterie.broker.apis.metadata import topic_error_values, topic_values
from coterie.broker.apis.operations import AUTHORIZED_OPERATIONS_OMITTED, allowed_operations_bit_field
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.loop_yield import yielding
from coterie.broker.topics.names import invalid_or_unknown_topic_error
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_PARTITIONS_MAX = 2_000
"""The maximum number of partitions in one response: the default of Kafka's ``max.request.partition.size.limit``."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    body = request.body
    names = sorted({topic.name for topic in body.topics} or broker.log.topics)
    first = 0
    if body.cursor is not None:
        first = body.cursor.partition_index
        names = [name for name in names if name >= body.cursor.topic_name]
        if first < 0 or (body.topics and not names):
            return _invalid_cursor_values(body)
        if not names or names[0] != body.cursor.topic_name:
            # The topic in which the previous response ended was deleted since.
            first = 0
    left = min(max(1, body.response_partition_limit), _PARTITIONS_MAX)
    topics: list[Values] = []
    next_cursor: Values | None = None
    async for name in yielding(names):
        topic = _topic_values(broker, request, name)
        size = len(topic["partitions"])
        if size and not left:
            next_cursor = {"topic_name": name, "partition_index": 0}
            break
        shown = topic["partitions"][first : first + left]
        topics.append({**topic, "partitions": shown})
        left -= len(shown)
        if first + len(shown) < size:
            next_cursor = {"topic_name": name, "partition_index": first + len(shown)}
            break
        first = 0
    return {"topics": topics, "next_cursor": next_cursor}


def _topic_values(broker: BrokerContext, request: ApiRequest, name: str) -> dict[str, Any]:
    """The response entry of the topic ``name`` with all of its partitions; with an error code if the topic does not
    exist."""
    topic = broker.log.topics.get(name)
    if topic is None:
        answer: dict[str, Any] = topic_error_values(name, invalid_or_unknown_topic_error(name))
    else:
        answer = topic_values(topic)
        # Empty instead of null: Kafka's own client fails on null.
        no_replicas: Values = {"eligible_leader_replicas": (), "last_known_elr": ()}
        answer["partitions"] = [{**partition, **no_replicas} for partition in answer["partitions"]]
    # The request has no field to exclude them.
    answer["topic_authorized_operations"] = allowed_operations_bit_field(broker, request, TOPIC, name)
    return answer


def _invalid_cursor_values(body: Any) -> Values:
    """The response to a request with an invalid cursor: INVALID_REQUEST for each requested topic."""
    return {
        "topics": [
            topic_error_values(topic.name, ErrorCode.invalid_request)
            | {"topic_authorized_operations": AUTHORIZED_OPERATIONS_OMITTED}
            for topic in body.topics
        ],
        "next_cursor": None,
    }


_AUTHORIZATION = ApiAuthorization(
    items=[topic_authorization_with_topic_errors(make_topic_check(Operation.DESCRIBE), response_field="topics")],
    visibility_check_by_response_field={"topics": is_topic_visible_or_unnamed},
)
API = KafkaApi(key=75, versions=range(1), handle=handle, authorization=_AUTHORIZATION)
