"""AddPartitionsToTxn: adds partitions to one transaction (v0-3) or to several transactions, or only verifies that they
were added (v4-5: in Kafka for brokers only; here any authorized client may send it). All partitions of a transaction
are added, or none."""

from collections.abc import Callable, Sequence
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import (
    AccessCheck,
    Operation,
    Permission,
    each_partition,
    in_cluster,
    in_transaction,
    on_topic,
)
from coterie.broker.apis.transactional import coordinator_reply
from coterie.broker.node import ApiRequest, Node
from coterie.broker.topics.names import is_internal
from coterie.groups.transaction_messages import AddPartitions, Event, Identity, TopicPartition, VerifyPartitions
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_BATCHED_SINCE = 4
_FENCED_SINCE = 2

_ErrorOf = Callable[[TopicPartition], ErrorCode]


async def handle(node: Node, request: ApiRequest) -> Values:
    body = request.body
    if request.header.api_version < _BATCHED_SINCE:
        error_of = await _added(
            node,
            body.v3_and_below_transactional_id,
            Identity(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch),
            body.v3_and_below_topics,
            knows_fenced=request.header.api_version >= _FENCED_SINCE,
        )
        return {
            "results_by_topic_v3_and_below": _results(body.v3_and_below_topics, error_of),
        }
    results: list[Values] = []
    for asked in body.transactions:
        producer = Identity(asked.producer_id, asked.producer_epoch)
        error_of = await _added(node, asked.transactional_id, producer, asked.topics, only_verifies=asked.verify_only)
        results.append({"transactional_id": asked.transactional_id, "topic_results": _results(asked.topics, error_of)})
    return {"error_code": ErrorCode.none, "results_by_transaction": results}


async def _added(
    node: Node,
    transactional_id: str,
    producer: Identity,
    topics: Sequence[Any],
    *,
    only_verifies: bool = False,
    knows_fenced: bool = True,
) -> _ErrorOf:
    """The error code of each partition."""
    asked = frozenset(TopicPartition(topic.name, number) for topic in topics for number in topic.partitions)
    errors = {of: error for of in asked if (error := _topic_error(node, of))}
    if errors:
        return lambda of: errors.get(of, ErrorCode.operation_not_attempted)
    if not transactional_id:
        return lambda _: ErrorCode.invalid_request
    if not asked:
        return lambda _: ErrorCode.none
    event: Event = (VerifyPartitions if only_verifies else AddPartitions)(producer=producer, partitions=asked)
    reply = await coordinator_reply(node, transactional_id, lambda _: event, knows_fenced=knows_fenced)
    return lambda of: ErrorCode.transaction_abortable if of in reply.missing else reply.error


def _topic_error(node: Node, of: TopicPartition) -> ErrorCode | None:
    if is_internal(of.topic):
        return ErrorCode.topic_authorization_failed
    return ErrorCode.unknown_topic_or_partition if node.log.partition(*of) is None else None


def _results(topics: Sequence[Any], error_of: _ErrorOf) -> list[Values]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": number, "partition_error_code": error_of(TopicPartition(topic.name, number))}
                for number in topic.partitions
            ],
        }
        for topic in topics
    ]


# -- authorization -----------------------------------------------------------------------------------------------------


def _added_topic(access: AccessCheck, asked: Any) -> ErrorCode | None:
    """Authorize all topics or none: if one topic is refused, the others are not attempted."""
    error = in_transaction("v3_and_below_transactional_id")(access)
    if error is not None:
        return error
    write = on_topic(Operation.WRITE)
    if (error := write(access, asked)) is not None:
        return error
    others = access.request.body.v3_and_below_topics
    return ErrorCode.operation_not_attempted if any(write(access, other) for other in others) else None


def _added_by_a_broker(access: AccessCheck) -> ErrorCode | None:
    """Since v4 the API is for brokers only."""
    return None if hasattr(access.request.body, "v3_and_below_topics") else in_cluster(Operation.CLUSTER_ACTION)(access)


_NEEDS = Permission(
    whole=_added_by_a_broker,
    each=[
        each_partition(
            _added_topic,
            asked="v3_and_below_topics",
            answers="results_by_topic_v3_and_below",
            parts=("partitions", "results_by_partition"),
            number=(None, "partition_index"),
            error_field="partition_error_code",
        )
    ],
)
API = KafkaApi(key=24, versions=range(6), handle=handle, needs=_NEEDS)
