"""DeleteRecords: raises a partition's start offset; earlier records are not read again. As in Kafka, compacted topics
refuse it. Waiting for replicas is not supported, because there are none."""

from functools import partial
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Operation, Permission, each_partition, on_topic
from coterie.broker.apis.partition_answers import partition_answers
from coterie.broker.node import ApiRequest, Node
from coterie.broker.outcome import outcome
from coterie.broker.storage.log import Partition
from coterie.broker.topics.configs import items_of
from coterie.broker.topics.names import is_internal
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.shapes import Values

_END = -1
"""Instead of an offset: delete all records."""


async def handle(node: Node, request: ApiRequest) -> Values:
    return {"topics": await partition_answers(request.body.topics, partial(_answer, node))}


async def _answer(node: Node, name: str, asked: Any) -> Values:
    partition = node.log.partition(name, asked.partition_index)
    error, _ = await outcome(_delete(node, name, partition, asked.offset))
    return {
        "partition_index": asked.partition_index,
        "low_watermark": partition.start_offset if partition and error is ErrorCode.none else -1,
        "error_code": error,
    }


async def _delete(node: Node, name: str, partition: Partition | None, offset: int) -> None:
    """:raises KafkaRefusal, WorldError: nothing was deleted."""
    if is_internal(name):
        raise KafkaRefusal(ErrorCode.invalid_topic_exception)
    if partition is None:
        raise KafkaRefusal(ErrorCode.unknown_topic_or_partition)
    if "delete" not in items_of(node.log.topics[name].configs, "cleanup.policy"):
        raise KafkaRefusal(ErrorCode.policy_violation)
    if not _END <= offset <= partition.end_offset:
        raise KafkaRefusal(ErrorCode.offset_out_of_range)
    await node.log.delete_records(partition, partition.end_offset if offset == _END else offset)


API = KafkaApi(
    key=21, versions=range(3), handle=handle, needs=Permission(each=[each_partition(on_topic(Operation.DELETE))])
)
