"""ListOffsets: v1-11 · earliest, latest, the record of the greatest timestamp (KIP-734), the first one since a
timestamp · tiers (KIP-405): nothing is tiered; in a compressed batch the batch's first record is told."""

from typing import Any

from coterie.broker.log import Partition
from coterie.broker.node import LEADER_EPOCH, Node, Request
from coterie.nouns.errors import WireError, WorldError
from coterie.wire.batches import Record, decode_records, read_head
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

_NOWHERE = (-1, -1)
"""No timestamp, no offset."""


async def handle(node: Node, request: Request) -> Values:
    return {
        "throttle_time": 0,
        "topics": [
            {"name": asked.name, "partitions": [await _answer(node, asked.name, one) for one in asked.partitions]}
            for asked in request.body.topics
        ],
    }


async def _answer(node: Node, topic_name: str, asked: Any) -> Values:
    topic = node.log.topics.get(topic_name)
    partition = topic.partition(asked.partition_index) if topic else None
    error, (timestamp_ms, offset) = ErrorCode.none, _NOWHERE
    if partition is None:
        error = ErrorCode.unknown_topic_or_partition
    elif getattr(asked, "current_leader_epoch", -1) > LEADER_EPOCH:
        error = ErrorCode.unknown_leader_epoch
    else:
        try:
            timestamp_ms, offset = await _find(node, partition, asked.timestamp)
        except WorldError:
            error = ErrorCode.kafka_storage_error
    return {
        "partition_index": asked.partition_index,
        "error_code": error,
        "timestamp": timestamp_ms,
        "offset": offset,
        "leader_epoch": LEADER_EPOCH if offset >= 0 else -1,
    }


async def _find(node: Node, partition: Partition, wanted: int) -> tuple[int, int]:
    """Timestamp and offset; only the offset where a place of the log and no record is meant."""
    if wanted == LATEST:
        return -1, partition.end_offset
    if wanted in (EARLIEST, EARLIEST_LOCAL):
        return -1, 0
    if wanted in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _NOWHERE
    if wanted == MAX_TIMESTAMP:
        latest = await node.log.latest_batch(partition)
        return _NOWHERE if latest is None else _first_since(latest, read_head(latest).max_timestamp_ms)
    batch = await node.log.batch_since(partition, wanted)
    return _NOWHERE if batch is None else _first_since(batch, wanted)


def _first_since(batch: bytes, timestamp_ms: int) -> tuple[int, int]:
    """The batch's first record of ``timestamp_ms`` or later."""
    head = read_head(batch)
    found: Record | None = None
    if not head.is_compressed:
        try:
            found = next((record for record in decode_records(batch) if record.timestamp_ms >= timestamp_ms), None)
        except WireError:
            # A producer may put nonsense behind a sound head and CRC: the batch is then all that is known.
            found = None
    return (head.max_timestamp_ms, head.base_offset) if found is None else (found.timestamp_ms, found.offset)
