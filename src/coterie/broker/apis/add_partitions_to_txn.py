"""AddPartitionsToTxn: adds partitions to one transaction (v0-3), or to several transactions (v4-5). A request of v4-5
may instead only verify that partitions were added before. In Kafka only brokers may send v4-5; here each client that
has the operation CLUSTER_ACTION on the cluster may. For each transaction, all its partitions are added, or none."""

from collections.abc import Callable, Sequence
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    AccessCheck,
    ApiAuthorization,
    Operation,
    make_cluster_check,
    make_topic_check,
    make_transactional_id_write_check,
    topic_authorization_with_partition_errors,
)
from coterie.broker.apis.transactional import ask_transaction_coordinator
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.topics.names import is_internal_topic
from coterie.groups.transaction_messages import (
    AddPartitions,
    Event,
    ProducerIdAndEpoch,
    TopicPartition,
    VerifyPartitions,
)
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_BATCHED_SINCE = 4
"""The first version with several transactions in one request."""
_FENCED_SINCE = 2
"""The first version in which the response may have the error code PRODUCER_FENCED (KIP-588)."""

_ErrorCodeOfPartition = Callable[[TopicPartition], ErrorCode]
"""Returns the error code of one requested partition; NONE for success."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    body = request.body
    if request.header.api_version < _BATCHED_SINCE:
        error_of = await _add_or_verify_partitions(
            broker,
            body.v3_and_below_transactional_id,
            ProducerIdAndEpoch(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch),
            body.v3_and_below_topics,
            supports_producer_fenced=request.header.api_version >= _FENCED_SINCE,
        )
        return {
            "results_by_topic_v3_and_below": _topic_entries(body.v3_and_below_topics, error_of),
        }
    results: list[Values] = []
    for asked in body.transactions:
        producer = ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch)
        error_of = await _add_or_verify_partitions(
            broker, asked.transactional_id, producer, asked.topics, only_verifies=asked.verify_only
        )
        results.append(
            {"transactional_id": asked.transactional_id, "topic_results": _topic_entries(asked.topics, error_of)}
        )
    return {"error_code": ErrorCode.none, "results_by_transaction": results}


async def _add_or_verify_partitions(
    broker: BrokerContext,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    topics: Sequence[Any],
    *,
    only_verifies: bool = False,
    supports_producer_fenced: bool = True,
) -> _ErrorCodeOfPartition:
    """Add the partitions of ``topics`` to the transaction or, if ``only_verifies``, check that they were added. Returns
    a function from a requested partition to its error code.

    If one of the partitions does not exist or belongs to an internal topic, no partition is added or checked, and the
    others get OPERATION_NOT_ATTEMPTED. A checked partition that was not added gets TRANSACTION_ABORTABLE. Every other
    error is the error of the whole transaction, and all partitions get it.
    """
    asked = frozenset(TopicPartition(topic.name, number) for topic in topics for number in topic.partitions)
    errors = {of: error for of in asked if (error := _missing_or_internal_partition_error(broker, of))}
    if errors:
        return lambda of: errors.get(of, ErrorCode.operation_not_attempted)
    if not transactional_id:
        return lambda _: ErrorCode.invalid_request
    if not asked:
        return lambda _: ErrorCode.none
    event: Event = (VerifyPartitions if only_verifies else AddPartitions)(producer=producer, partitions=asked)
    reply = await ask_transaction_coordinator(
        broker, transactional_id, lambda _: event, supports_producer_fenced=supports_producer_fenced
    )
    return lambda of: ErrorCode.transaction_abortable if of in reply.missing_partitions else reply.error


def _missing_or_internal_partition_error(broker: BrokerContext, topic_partition: TopicPartition) -> ErrorCode | None:
    """The error code if the partition does not exist or belongs to an internal topic, else None."""
    if is_internal_topic(topic_partition.topic):
        return ErrorCode.topic_authorization_failed
    return ErrorCode.unknown_topic_or_partition if broker.log.partition(*topic_partition) is None else None


def _topic_entries(topics: Sequence[Any], error_of: _ErrorCodeOfPartition) -> list[Values]:
    """The response entries of the requested ``topics``; ``error_of`` returns the error code of one partition."""
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


def _id_and_topics_authorization_error(access: AccessCheck, asked: Any) -> ErrorCode | None:
    """The error code of the topic in the entry ``asked`` of a request of v0-3; None if the client may write with the
    transactional id and to all topics of the request. If only another topic of the request is refused, the code is
    OPERATION_NOT_ATTEMPTED."""
    error = make_transactional_id_write_check("v3_and_below_transactional_id")(access)
    if error is not None:
        return error
    write = make_topic_check(Operation.WRITE)
    if (error := write(access, asked)) is not None:
        return error
    others = access.request.body.v3_and_below_topics
    return ErrorCode.operation_not_attempted if any(write(access, other) for other in others) else None


def _cluster_action_error_since_v4(access: AccessCheck) -> ErrorCode | None:
    """CLUSTER_AUTHORIZATION_FAILED if a client without CLUSTER_ACTION on the cluster sends v4 or later, which Kafka
    allows to brokers only; else None."""
    return (
        None
        if hasattr(access.request.body, "v3_and_below_topics")
        else make_cluster_check(Operation.CLUSTER_ACTION)(access)
    )


_AUTHORIZATION = ApiAuthorization(
    check_request=_cluster_action_error_since_v4,
    items=[
        topic_authorization_with_partition_errors(
            _id_and_topics_authorization_error,
            request_field="v3_and_below_topics",
            response_field="results_by_topic_v3_and_below",
            partition_fields=("partitions", "results_by_partition"),
            index_fields=(None, "partition_index"),
            error_field="partition_error_code",
        )
    ],
)
API = KafkaApi(key=24, versions=range(6), handle=handle, authorization=_AUTHORIZATION)
