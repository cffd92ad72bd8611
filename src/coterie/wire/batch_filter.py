"""Splits a record batch into the bytes of its records, and rebuilds it with fewer of them.

A record contains its offset and timestamp as differences from the batch header, so its bytes stay valid as long as the
header's base offset and base timestamp do not change. The rebuilt batch keeps the base offset, the last offset, the
producer and the sequence numbers. Compressed records are compressed again, with gzip, which every client supports.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from coterie.nouns.errors import WireError
from coterie.wire.batches import BATCH_HEADER_SIZE, BatchHeader, rebuild_batch
from coterie.wire.compression import GZIP, compress_gzip, decompress

_INT64_BOUND = 2**63
_DECOMPRESSED_SIZE_MAX = 64 * 1024 * 1024
"""In bytes."""
_RECORDS_MAX = 250_000
"""The maximum number of records in one batch. No valid batch exceeds this limit or `_DECOMPRESSED_SIZE_MAX`: a
producer's largest batch has about a megabyte before compression, and the log of groups writes much smaller ones."""


class RawRecord(NamedTuple):
    """One record of a batch: the fields that decide whether a compaction keeps it, and in ``raw`` its bytes, which
    begin with their length."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    is_tombstone: bool
    """Whether the value is null."""
    raw: bytes


def split_records(data: bytes, head: BatchHeader) -> list[RawRecord]:
    """All records of the one batch in ``data``, whose header is ``head``. The CRC is not checked.

    :raises WireError: when the records are malformed, their codec is unknown, or their number or size exceeds a limit.
    """
    if head.record_count > _RECORDS_MAX:
        raise WireError(f"the header of a batch states {head.record_count} records; at most {_RECORDS_MAX} are allowed")
    plain = decompress(head.codec, memoryview(data)[BATCH_HEADER_SIZE:], size_max=_DECOMPRESSED_SIZE_MAX)
    try:
        found = list(islice(_iter_records(plain, head), head.record_count + 1))
    except IndexError as error:
        raise WireError("a batch ends in the middle of a record") from error
    if len(found) != head.record_count:
        raise WireError(f"a batch does not contain the {head.record_count} records that its header states")
    return found


def keep_records(data: bytes, head: BatchHeader, kept: Sequence[RawRecord]) -> bytes:
    """The batch in ``data`` with only the records ``kept``, which are from :func:`split_records`. Its greatest
    timestamp is that of these records, unless the batch has the time of its append."""
    head = replace(head, record_count=len(kept))
    body = b"".join(record.raw for record in kept)
    if head.is_compressed:
        head = head.with_codec(GZIP)
        body = compress_gzip(body)
    if kept and not head.has_append_time:
        head = replace(head, max_timestamp_ms=max(record.timestamp_ms for record in kept))
    return rebuild_batch(data, head, body)


def _iter_records(plain: bytes, head: BatchHeader) -> Iterator[RawRecord]:
    """The records in ``plain``, the decompressed bytes after the batch's header. Inlined for speed, with one-byte
    varints first, because a compaction reads every record of a log.

    :raises WireError: when a record is malformed.
    :raises IndexError: when the bytes end inside of a record.
    """
    at, end = 0, len(plain)
    timestamp_ms, base_timestamp_ms, has_append_time = (
        head.max_timestamp_ms,
        head.base_timestamp_ms,
        head.has_append_time,
    )
    while at < end:
        start = at
        size, at = _varint(plain, at)
        record_end = at + size
        if size < 0 or record_end > end:
            raise WireError(f"a record states a length of {size} bytes, but {end - at} are left")
        timestamp_delta, at = _varint(plain, at + 1)
        if not has_append_time:
            timestamp_ms = base_timestamp_ms + timestamp_delta
            if not -_INT64_BOUND <= timestamp_ms < _INT64_BOUND:
                raise WireError(f"a record has the timestamp {timestamp_ms}, which has more than 64 bits")
        offset_delta, at = _varint(plain, at)
        if not 0 <= offset_delta <= head.last_offset_delta:
            raise WireError(
                f"a record has the offset delta {offset_delta}, but its batch ends at {head.last_offset_delta}"
            )
        key_size, at = _varint(plain, at)
        key: bytes | None = None
        if key_size >= 0:
            key = plain[at : at + key_size]
            at += key_size
        value_size, at = _varint(plain, at)
        if at + max(0, value_size) > record_end:
            raise WireError(f"a record is not {size} bytes long, as its length states")
        yield RawRecord(
            head.base_offset + offset_delta,
            timestamp_ms,
            key,
            value_size < 0,
            plain[start:record_end],
        )
        at = record_end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The zigzag varint at position ``at``, and the position after it."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
        if shift > 63:
            raise WireError("a varint has more than ten bytes")
