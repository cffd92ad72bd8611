"""DescribeProducers: returns the state of the idempotent producers that have written to a partition, with the first
offset of each producer's open transaction there (KIP-664). The coordinator's epoch is always 0, because the coordinator
never changes."""

from functools import partial
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    ApiAuthorization,
    Operation,
    make_topic_check,
    topic_authorization_with_partition_errors,
)
from coterie.broker.apis.partition_entries import partition_entries
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.storage.transaction_store import ProducerRow
from coterie.broker.topics.names import invalid_or_unknown_topic_error
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    return {
        "topics": await partition_entries(
            request.body.topics, partial(_describe_partition_producers, broker), partitions_field="partition_indexes"
        )
    }


async def _describe_partition_producers(broker: BrokerContext, topic_name: str, number: int) -> Values:
    """The response entry of one partition: its producers, or an error."""
    partition = broker.log.partition(topic_name, number)
    if partition is None:
        return _partition_values(number, invalid_or_unknown_topic_error(topic_name))
    try:
        producers = await broker.transactions.producers(partition)
    except WorldError as failure:
        return _partition_values(number, ErrorCode.kafka_storage_error, error_message=str(failure))
    return _partition_values(number, ErrorCode.none, producers=[_producer_values(row) for row in producers])


def _partition_values(
    number: int, error: ErrorCode, *, error_message: str | None = None, producers: list[Any] | None = None
) -> Values:
    return {
        "partition_index": number,
        "error_code": error,
        "error_message": error_message,
        "active_producers": producers or (),
    }


def _producer_values(row: ProducerRow) -> Values:
    """The response entry of one producer; -1 as first offset: the producer has no open transaction in this
    partition."""
    producer = row.producer_state
    return {
        "producer_id": row.producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.batches[-1].last_sequence if producer.batches else -1,
        "last_timestamp": row.written_at_ms,
        "coordinator_epoch": 0,
        "current_txn_start_offset": -1
        if producer.current_transaction_first_offset is None
        else producer.current_transaction_first_offset,
    }


_AUTHORIZATION = ApiAuthorization(
    items=[
        topic_authorization_with_partition_errors(
            make_topic_check(Operation.READ),
            partition_fields=("partition_indexes", "partitions"),
            index_fields=(None, "partition_index"),
        )
    ]
)
API = KafkaApi(key=61, versions=range(1), handle=handle, authorization=_AUTHORIZATION)
