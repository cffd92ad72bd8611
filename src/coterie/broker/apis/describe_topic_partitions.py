"""DescribeTopicPartitions: all topics or the requested ones, sorted by name, with a limited number of partitions in
each response (KIP-966). Not supported: eligible leaders, because each partition has one replica."""

from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.metadata import described, missing
from coterie.broker.apis.needs import TOPIC, Operation, Permission, each_topic, is_topic_shown, on_topic
from coterie.broker.apis.operations import NOT_ASKED, allowed_operations
from coterie.broker.node import ApiRequest, Node
from coterie.broker.topics.names import unknown_topic_error
from coterie.broker.turns import in_turns
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_PARTITIONS_MAX = 2_000
"""``max.request.partition.size.limit``: partitions in one response."""


async def handle(node: Node, request: ApiRequest) -> Values:
    body = request.body
    names = sorted({topic.name for topic in body.topics} or node.log.topics)
    first = 0
    if body.cursor is not None:
        first = body.cursor.partition_index
        names = [name for name in names if name >= body.cursor.topic_name]
        if first < 0 or (body.topics and not names):
            return _refusal(body)
        if not names or names[0] != body.cursor.topic_name:
            # The topic in which the previous response ended was deleted since.
            first = 0
    left = min(max(1, body.response_partition_limit), _PARTITIONS_MAX)
    topics: list[Values] = []
    next_cursor: Values | None = None
    async for name in in_turns(names):
        topic = _answer(node, request, name)
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


def _answer(node: Node, request: ApiRequest, name: str) -> dict[str, Any]:
    topic = node.log.topics.get(name)
    if topic is None:
        answer: dict[str, Any] = missing(name, unknown_topic_error(name))
    else:
        answer = described(topic)
        # Empty instead of null: Kafka's own client fails on null.
        nobody: Values = {"eligible_leader_replicas": (), "last_known_elr": ()}
        answer["partitions"] = [{**partition, **nobody} for partition in answer["partitions"]]
    # The request has no field to exclude them.
    answer["topic_authorized_operations"] = allowed_operations(node, request, TOPIC, name)
    return answer


def _refusal(body: Any) -> Values:
    """The response to an invalid cursor."""
    return {
        "topics": [
            missing(topic.name, ErrorCode.invalid_request) | {"topic_authorized_operations": NOT_ASKED}
            for topic in body.topics
        ],
        "next_cursor": None,
    }


_NEEDS = Permission(
    each=[each_topic(on_topic(Operation.DESCRIBE), answers="topics")],
    shown={"topics": is_topic_shown},
)
API = KafkaApi(key=75, versions=range(1), handle=handle, needs=_NEEDS)
