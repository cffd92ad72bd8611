"""Faults of requests that write, read and look up messages."""

from functools import partial
from typing import Any

from crc32c import crc32c

from coterie.wire.batches import NewRecord, encode_batch
from coterie.wire.errors import ErrorCode as E
from tests.kafka.faults.row import CLOSED, Fields, Row

ONE = [NewRecord(key=b"k", value=b"v")]
BATCH = encode_batch(ONE, timestamp_ms=1_600_000_000_000)
KEYLESS = encode_batch([NewRecord(key=None, value=b"v")], timestamp_ms=1_600_000_000_000)
ZSTD = encode_batch(ONE, timestamp_ms=1_600_000_000_000, attributes=4)
LATEST = -1


def produce(
    topic: str,
    *,
    partition: int = 0,
    acks: int = -1,
    records: bytes | None = BATCH,
    transactional_id: str | None = None,
) -> Fields:
    """A request in the versions with topic names; v13 has topic ids."""
    data = {"index": partition, "records": records}
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": 30_000,
        "topic_data": [{"name": topic, "partition_data": [data]}],
    }


def fetch(topic: str, **wrong: Any) -> Fields:
    """A request in the versions with topic names; ``wrong`` are fields of the partition."""
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000_000} | wrong
    return FETCH | {"topics": [{"topic": topic, "partitions": [partition]}]}


FETCH: Fields = {
    "replica_id": -1,
    "max_wait": 0,
    "min_bytes": 0,
    "max_bytes": 1_000_000,
    "isolation_level": 0,
    "session_id": 0,
    "session_epoch": -1,
    "forgotten_topics_data": (),
    "rack_id": "",
}


def epochs(topic: str, **wrong: Any) -> Fields:
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0} | wrong
    return {"replica_id": -1, "topics": [{"topic": topic, "partitions": [partition]}]}


def offsets(topic: str, **wrong: Any) -> Fields:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST} | wrong
    return {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": [partition]}],
        "timeout": 30_000,
    }


def at(place: int, raw: bytes) -> bytes:
    """The batch with other bytes at ``place``, which its CRC does not cover."""
    return BATCH[:place] + raw + BATCH[place + len(raw) :]


def miscounted() -> bytes:
    covered = BATCH[21:57] + (2).to_bytes(4) + BATCH[61:]
    return BATCH[:17] + crc32c(covered).to_bytes(4) + covered


MISCOUNTED = miscounted()

_produce = partial(Row, "Produce", 12)
_fetch = partial(Row, "Fetch", 12)
_offsets = partial(Row, "ListOffsets", 10)
_epochs = partial(Row, "OffsetForLeaderEpoch", 4)

PRODUCE = (
    _produce("of one batch", E.none, lambda scene: produce(scene.topic())),
    _produce("to no topic", E.unknown_topic_or_partition, lambda scene: produce(scene.name())),
    _produce("to no partition", E.unknown_topic_or_partition, lambda scene: produce(scene.topic(), partition=7)),
    _produce(
        "to a partition below 0", E.unknown_topic_or_partition, lambda scene: produce(scene.topic(), partition=-1)
    ),
    _produce(
        "for which more in-sync replicas are required than exist",
        E.none,
        lambda scene: produce(scene.topic(min_insync_replicas="2"), acks=-1),
    ),
    _produce("with acks 2", E.invalid_required_acks, lambda scene: produce(scene.topic(), acks=2)),
    _produce("of half a batch", E.invalid_record, lambda scene: produce(scene.topic(), records=BATCH[:-5])),
    _produce("of no batch", E.invalid_record, lambda scene: produce(scene.topic(), records=b"")),
    _produce("of two batches", E.invalid_record, lambda scene: produce(scene.topic(), records=BATCH + BATCH)),
    _produce("of an old format", E.invalid_record, lambda scene: produce(scene.topic(), records=at(16, b"\1"))),
    _produce("of a later format", E.corrupt_message, lambda scene: produce(scene.topic(), records=at(16, b"\3"))),
    _produce(
        "with a record count above the number of records",
        E.invalid_record,
        lambda scene: produce(scene.topic(), records=MISCOUNTED),
    ),
    _produce(
        "of a time in the future",
        E.invalid_timestamp,
        lambda scene: produce(scene.topic(), records=encode_batch(ONE, timestamp_ms=4_000_000_000_000)),
    ),
    _produce(
        "of a time long past",
        E.invalid_timestamp,
        lambda scene: produce(scene.topic(message_timestamp_before_max_ms="1000")),
    ),
    _produce(
        "of no time where the broker sets it",
        E.none,
        lambda scene: produce(
            scene.topic(message_timestamp_type="LogAppendTime"), records=encode_batch(ONE, timestamp_ms=-1)
        ),
    ),
    _produce(
        "without a key to a compacted topic",
        E.invalid_record,
        lambda scene: produce(scene.topic(cleanup_policy="compact"), records=KEYLESS),
    ),
    _produce(
        "of more bytes than allowed",
        E.message_too_large,
        lambda scene: produce(scene.topic(max_message_bytes="60")),
    ),
    Row("Produce", 6, "of zstd", E.unsupported_compression_type, lambda scene: produce(scene.topic(), records=ZSTD)),
    _produce("of a torn byte", E.corrupt_message, lambda scene: produce(scene.topic(), records=BATCH[:-1] + b"?")),
    _produce("to no topic with acks 0", CLOSED, lambda scene: produce(scene.name(), acks=0)),
)

FETCHES = (
    _fetch("of an empty partition", E.none, lambda scene: fetch(scene.topic())),
    _fetch("of no topic", E.unknown_topic_or_partition, lambda scene: fetch(scene.name())),
    _fetch("of no partition", E.unknown_topic_or_partition, lambda scene: fetch(scene.topic(), partition=7)),
    _fetch("beyond the end", E.offset_out_of_range, lambda scene: fetch(scene.topic(), fetch_offset=1)),
    _fetch("before the start", E.offset_out_of_range, lambda scene: fetch(scene.topic(), fetch_offset=-1)),
    _fetch("of a later epoch", E.unknown_leader_epoch, lambda scene: fetch(scene.topic(), current_leader_epoch=9)),
    _fetch(
        "of no session",
        E.fetch_session_id_not_found,
        lambda scene: fetch(scene.topic()) | {"session_id": 7, "session_epoch": 1},
    ),
)

OFFSETS = (
    _offsets("of the end", E.none, lambda scene: offsets(scene.topic())),
    Row(
        "ListOffsets",
        7,
        "with a special timestamp of v8",
        E.unsupported_version,
        lambda scene: offsets(scene.topic(), timestamp=-4),
    ),
    _offsets("of no topic", E.unknown_topic_or_partition, lambda scene: offsets(scene.name())),
    _offsets("of no partition", E.unknown_topic_or_partition, lambda scene: offsets(scene.topic(), partition_index=7)),
    _offsets("of a later epoch", E.unknown_leader_epoch, lambda scene: offsets(scene.topic(), current_leader_epoch=9)),
)

EPOCHS = (
    _epochs("of the only epoch", E.none, lambda scene: epochs(scene.topic())),
    _epochs("of a later epoch", E.none, lambda scene: epochs(scene.topic(), leader_epoch=1)),
    _epochs(
        "by a client that is an epoch ahead",
        E.unknown_leader_epoch,
        lambda scene: epochs(scene.topic(), current_leader_epoch=9),
    ),
    _epochs(
        "by a client that is an epoch behind",
        E.fenced_leader_epoch,
        lambda scene: epochs(scene.topic(), current_leader_epoch=-5),
    ),
    _epochs("of no topic", E.unknown_topic_or_partition, lambda scene: epochs(scene.name())),
    _epochs("of no partition", E.unknown_topic_or_partition, lambda scene: epochs(scene.topic(), partition=7)),
)

ROWS = PRODUCE + FETCHES + OFFSETS + EPOCHS
