"""ListOffsets: returns one offset of each requested partition. A negative timestamp in the request selects the start
offset, the end offset (with isolation level read_committed the last stable offset), or the record with the greatest
timestamp (KIP-734). Any other timestamp selects the first record with this timestamp or a later one. Not supported:
tiered storage (KIP-405)."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    ApiAuthorization,
    Operation,
    make_topic_check,
    topic_authorization_with_partition_errors,
)
from coterie.broker.apis.fetch import reads_committed
from coterie.broker.apis.partition_entries import partition_entries
from coterie.broker.context import LEADER_EPOCH, ApiRequest, BrokerContext
from coterie.broker.storage.log import Partition
from coterie.nouns.errors import WireError, WorldError
from coterie.wire.batch_filter import split_records
from coterie.wire.batches import read_batch_header
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

LATEST = -1
"""Requests the end offset."""
EARLIEST = -2
"""Requests the start offset."""
MAX_TIMESTAMP = -3
"""Requests the first record with the greatest timestamp."""
EARLIEST_LOCAL = -4
"""Requests the start offset, because there is no tiered storage."""
LATEST_TIERED = -5
"""Requests an offset in tiered storage: there is none."""
EARLIEST_PENDING_UPLOAD = -6
"""Requests the first offset that is not in tiered storage yet: here there is none."""

_FIRST_VERSION_BY_TIMESTAMP: Mapping[int, int] = {
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version in which a request may contain each of these timestamps."""
_UNKNOWN_OFFSET = (-1, -1)
"""The timestamp and the offset in a response if no record was found."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    return {"topics": await partition_entries(request.body.topics, partial(_partition_values, broker, request))}


async def _partition_values(broker: BrokerContext, request: ApiRequest, topic_name: str, asked: Any) -> Values:
    """The response entry of one partition: the found timestamp and offset, or an error."""
    partition = broker.log.partition(topic_name, asked.partition_index)
    error, (timestamp_ms, offset) = ErrorCode.none, _UNKNOWN_OFFSET
    if partition is None:
        error = ErrorCode.unknown_topic_or_partition
    elif getattr(asked, "current_leader_epoch", -1) > LEADER_EPOCH:
        error = ErrorCode.unknown_leader_epoch
    elif asked.timestamp < EARLIEST and request.header.api_version < _FIRST_VERSION_BY_TIMESTAMP.get(
        asked.timestamp, 2**15
    ):
        error = ErrorCode.unsupported_version
    else:
        end_offset = partition.last_stable_offset if reads_committed(request) else partition.end_offset
        try:
            timestamp_ms, offset = await _find_timestamp_and_offset(broker, partition, asked.timestamp, end_offset)
        except WorldError:
            error = ErrorCode.kafka_storage_error
    return {
        "partition_index": asked.partition_index,
        "error_code": error,
        "timestamp": timestamp_ms,
        "offset": offset,
        "leader_epoch": LEADER_EPOCH if offset >= 0 else -1,
    }


async def _find_timestamp_and_offset(
    broker: BrokerContext, partition: Partition, wanted: int, end_offset: int
) -> tuple[int, int]:
    """The timestamp and the offset that the request's timestamp ``wanted`` selects; both are -1 if no record is found.
    If ``wanted`` selects the start or the end offset, which belong to no record, the timestamp is -1. A record at
    ``end_offset`` or later is not returned.

    :raises WorldError: when the log cannot be read.
    """
    if wanted == LATEST:
        return -1, end_offset
    if wanted in (EARLIEST, EARLIEST_LOCAL):
        return -1, partition.start_offset
    if wanted in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _UNKNOWN_OFFSET
    if wanted == MAX_TIMESTAMP:
        found = await _find_max_timestamp_and_offset(broker, partition)
    else:
        found = await _find_first_timestamp_and_offset_since(broker, partition, wanted)
    return found if found is not None and found[1] < end_offset else _UNKNOWN_OFFSET


async def _find_first_timestamp_and_offset_since(
    broker: BrokerContext, partition: Partition, timestamp_ms: int
) -> tuple[int, int] | None:
    """The timestamp and the offset of the first record with ``timestamp_ms`` or a later timestamp; None if there is
    none.

    :raises WorldError: when the log cannot be read.
    """
    start_offset = offset = partition.start_offset
    # At most twice: only the first batch can have its matching records before the start offset.
    while (batch := await broker.log.first_batch_since(partition, timestamp_ms, offset)) is not None:
        # On a thread: decompression may take long, depending on the producer's batch.
        found = await asyncio.to_thread(_first_timestamp_and_offset_or_header, batch, timestamp_ms, start_offset)
        if found is not None:
            return found
        offset = read_batch_header(batch).last_offset + 1
    return None


async def _find_max_timestamp_and_offset(broker: BrokerContext, partition: Partition) -> tuple[int, int] | None:
    """The timestamp and the offset of the first record with the greatest timestamp; None if there is no record.

    :raises WorldError: when the log cannot be read.
    """
    start_offset = partition.start_offset
    batch = await broker.log.max_timestamp_batch(partition, start_offset)
    if batch is None:
        return None
    head = read_batch_header(batch)
    if head.base_offset >= start_offset:
        return await asyncio.to_thread(
            _first_timestamp_and_offset_or_header, batch, head.max_timestamp_ms, start_offset
        )
    # The record with the greatest timestamp of this batch may be before the start offset.
    found = await asyncio.to_thread(_max_timestamp_and_offset_or_header, batch, start_offset)
    later = await broker.log.max_timestamp_batch(partition, head.last_offset + 1)
    if later is None:
        return found
    later_max_ms = read_batch_header(later).max_timestamp_ms
    if found is not None and found[0] >= later_max_ms:
        return found
    return await asyncio.to_thread(_first_timestamp_and_offset_or_header, later, later_max_ms, start_offset)


def _first_timestamp_and_offset_or_header(batch: bytes, timestamp_ms: int, start_offset: int) -> tuple[int, int] | None:
    """The timestamp and the offset of the first record in ``batch``, at or after ``start_offset``, with
    ``timestamp_ms`` or a later timestamp.

    If there is no such record, the result is None for a batch that begins before ``start_offset``: the record with the
    timestamp may be before ``start_offset``. For any other batch, and if the records are malformed, the result is the
    greatest timestamp in the batch's header, and the first offset of the batch or, if that is higher,
    ``start_offset``.
    """
    head = read_batch_header(batch)
    try:
        for record in split_records(batch, head):
            if record.offset >= start_offset and record.timestamp_ms >= timestamp_ms:
                return record.timestamp_ms, record.offset
        if head.base_offset < start_offset:
            return None
    except WireError:
        # A producer can send malformed records with a valid head and CRC: fall back to the values of the batch.
        pass
    return head.max_timestamp_ms, max(head.base_offset, start_offset)


def _max_timestamp_and_offset_or_header(batch: bytes, start_offset: int) -> tuple[int, int] | None:
    """The timestamp and the offset of the first record in ``batch`` with the greatest timestamp, among those at or
    after ``start_offset``; None if there is none. If the records are malformed: the greatest timestamp of the batch, as
    its header states it, and ``start_offset``."""
    head = read_batch_header(batch)
    try:
        records = [record for record in split_records(batch, head) if record.offset >= start_offset]
    except WireError:
        return head.max_timestamp_ms, start_offset
    # Of several records with the greatest timestamp, `max` returns the first.
    record = max(records, key=lambda record: record.timestamp_ms, default=None)
    return None if record is None else (record.timestamp_ms, record.offset)


_AUTHORIZATION = ApiAuthorization(
    items=[topic_authorization_with_partition_errors(make_topic_check(Operation.DESCRIBE))]
)
API = KafkaApi(key=2, versions=range(1, 12), handle=handle, authorization=_AUTHORIZATION)
