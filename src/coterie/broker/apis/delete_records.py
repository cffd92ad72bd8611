"""DeleteRecords: raises a partition's start offset, so that the records before it cannot be read any more. As in Kafka,
the request is refused for a topic whose cleanup.policy does not contain delete. Waiting for replicas is not supported,
because there are none."""

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
from coterie.broker.error_reply import await_error_and_message
from coterie.broker.storage.log import Partition
from coterie.broker.topics.configs import list_config_or_default
from coterie.broker.topics.names import is_internal_topic
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.kio_entities import Values

_HIGH_WATERMARK = -1
"""A request with this value instead of an offset deletes all records of the partition."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    return {"topics": await partition_entries(request.body.topics, partial(_delete_and_build_entry, broker))}


async def _delete_and_build_entry(broker: BrokerContext, name: str, asked: Any) -> Values:
    """Delete records of one partition of the topic ``name``; return the partition's response entry."""
    partition = broker.log.partition(name, asked.partition_index)
    error, _ = await await_error_and_message(_check_and_delete_records_before(broker, name, partition, asked.offset))
    return {
        "partition_index": asked.partition_index,
        "low_watermark": partition.start_offset if partition and error is ErrorCode.none else -1,
        "error_code": error,
    }


async def _check_and_delete_records_before(
    broker: BrokerContext, name: str, partition: Partition | None, offset: int
) -> None:
    """Raise the start offset of ``partition`` to ``offset``, or to the end offset for -1; a higher start offset stays.
    ``partition`` is None if the requested partition does not exist.

    :raises KafkaRefusal: when the topic is internal, the partition does not exist, the topic's cleanup.policy does not
        contain delete, or ``offset`` is past the end offset or below -1.
    :raises WorldError: when the topic was deleted meanwhile, or the log cannot be written. After each error no record
        was deleted.
    """
    if is_internal_topic(name):
        raise KafkaRefusal(ErrorCode.invalid_topic_exception)
    if partition is None:
        raise KafkaRefusal(ErrorCode.unknown_topic_or_partition)
    if "delete" not in list_config_or_default(broker.log.topics[name].configs, "cleanup.policy"):
        raise KafkaRefusal(ErrorCode.policy_violation)
    if not _HIGH_WATERMARK <= offset <= partition.end_offset:
        raise KafkaRefusal(ErrorCode.offset_out_of_range)
    await broker.log.delete_records(partition, partition.end_offset if offset == _HIGH_WATERMARK else offset)


API = KafkaApi(
    key=21,
    versions=range(3),
    handle=handle,
    authorization=ApiAuthorization(
        items=[topic_authorization_with_partition_errors(make_topic_check(Operation.DELETE))]
    ),
)
