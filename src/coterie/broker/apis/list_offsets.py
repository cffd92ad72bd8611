"""ListOffsets: earliest, latest (with isolation level read_committed the last stable offset), the record with the
greatest timestamp (KIP-734), the first record since a timestamp. Not supported: tiered storage (KIP-405)."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.fetch import reads_committed
from coterie.broker.apis.needs import Operation, Permission, each_partition, on_topic
from coterie.broker.apis.partition_answers import partition_answers
from coterie.broker.node import LEADER_EPOCH, ApiRequest, Node
from coterie.broker.storage.log import Partition
from coterie.nouns.errors import WireError, WorldError
from coterie.wire.batches import read_head
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values
from coterie.wire.sifting import slices

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

_SINCE: Mapping[int, int] = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
"""The first version in which a negative timestamp has its meaning."""
_NOWHERE = (-1, -1)
"""No timestamp and no offset."""


async def handle(node: Node, request: ApiRequest) -> Values:
    return {"topics": await partition_answers(request.body.topics, partial(_answer, node, request))}


async def _answer(node: Node, request: ApiRequest, topic_name: str, asked: Any) -> Values:
    partition = node.log.partition(topic_name, asked.partition_index)
    error, (timestamp_ms, offset) = ErrorCode.none, _NOWHERE
    if partition is None:
        error = ErrorCode.unknown_topic_or_partition
    elif getattr(asked, "current_leader_epoch", -1) > LEADER_EPOCH:
        error = ErrorCode.unknown_leader_epoch
    elif asked.timestamp < EARLIEST and request.header.api_version < _SINCE.get(asked.timestamp, 2**15):
        error = ErrorCode.unsupported_version
    else:
        end_offset = partition.stable_offset if reads_committed(request) else partition.end_offset
        try:
            timestamp_ms, offset = await _find(node, partition, asked.timestamp, end_offset)
        except WorldError:
            error = ErrorCode.kafka_storage_error
    return {
        "partition_index": asked.partition_index,
        "error_code": error,
        "timestamp": timestamp_ms,
        "offset": offset,
        "leader_epoch": LEADER_EPOCH if offset >= 0 else -1,
    }


async def _find(node: Node, partition: Partition, wanted: int, end_offset: int) -> tuple[int, int]:
    """Timestamp and offset; the timestamp is -1 for an offset that is not the one of a record. A record at
    ``end_offset`` or later is not returned."""
    if wanted == LATEST:
        return -1, end_offset
    if wanted in (EARLIEST, EARLIEST_LOCAL):
        return -1, partition.start_offset
    if wanted in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOWHERE
    if wanted == MAX_TIMESTAMP:
        batch = await node.log.latest_batch(partition)
        since_ms = read_head(batch).max_timestamp_ms if batch is not None else 0
    else:
        batch, since_ms = await node.log.batch_since(partition, wanted), wanted
    if batch is None:
        return _NOWHERE
    # On a thread: decompression may take long, depending on the producer's batch.
    found = await asyncio.to_thread(_first_since, batch, since_ms)
    return found if found[1] < end_offset else _NOWHERE


def _first_since(batch: bytes, timestamp_ms: int) -> tuple[int, int]:
    """Timestamp and offset of the batch's first record of ``timestamp_ms`` or later."""
    head = read_head(batch)
    try:
        for record in slices(batch, head):
            if record.timestamp_ms >= timestamp_ms:
                return record.timestamp_ms, record.offset
    except WireError:
        # A producer can send malformed records with a valid head and CRC: fall back to the values of the batch.
        pass
    return head.max_timestamp_ms, head.base_offset


_NEEDS = Permission(each=[each_partition(on_topic(Operation.DESCRIBE))])
API = KafkaApi(key=2, versions=range(1, 12), handle=handle, needs=_NEEDS)
