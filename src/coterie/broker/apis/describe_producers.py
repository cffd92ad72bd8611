"""DescribeProducers: the idempotent producers of a partition, and the start of each one's open transaction (KIP-664).
The coordinator's epoch is always 0, because the coordinator never changes."""

from functools import partial
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Operation, Permission, each_partition, on_topic
from coterie.broker.apis.partition_answers import partition_answers
from coterie.broker.node import ApiRequest, Node
from coterie.broker.storage.transaction_store import ProducerRow
from coterie.broker.topics.names import unknown_topic_error
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values


async def handle(node: Node, request: ApiRequest) -> Values:
    return {
        "topics": await partition_answers(
            request.body.topics, partial(_described, node), partitions="partition_indexes"
        )
    }


async def _described(node: Node, topic_name: str, number: int) -> Values:
    partition = node.log.partition(topic_name, number)
    if partition is None:
        return _answer(number, unknown_topic_error(topic_name))
    try:
        producers = await node.transactions.producers(partition)
    except WorldError as failure:
        return _answer(number, ErrorCode.kafka_storage_error, sentence=str(failure))
    return _answer(number, ErrorCode.none, producers=[_producer(row) for row in producers])


def _answer(
    number: int, error: ErrorCode, *, sentence: str | None = None, producers: list[Any] | None = None
) -> Values:
    return {
        "partition_index": number,
        "error_code": error,
        "error_message": sentence,
        "active_producers": producers or (),
    }


def _producer(row: ProducerRow) -> Values:
    producer = row.producer
    return {
        "producer_id": row.producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.batches[-1].last_sequence if producer.batches else -1,
        "last_timestamp": row.written_at_ms,
        "coordinator_epoch": 0,
        "current_txn_start_offset": -1 if producer.open_offset is None else producer.open_offset,
    }


_NEEDS = Permission(
    each=[
        each_partition(
            on_topic(Operation.READ), parts=("partition_indexes", "partitions"), number=(None, "partition_index")
        )
    ]
)
API = KafkaApi(key=61, versions=range(1), handle=handle, needs=_NEEDS)
