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
"""The maximum size of the records of one batch after decompression, in bytes."""
_RECORDS_MAX = 250_000
"""The maximum number of records in one batch. No valid batch exceeds this limit or `_DECOMPRESSED_SIZE_MAX`: a
producer's largest batch has about a megabyte before compression, and the log of groups writes much smaller ones."""


class RawRecord(NamedTuple):
    """One record of a batch: the fields that decide whether a compaction keeps it, and in ``raw`` its encoded bytes
    with the length before them."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    is_tombstone: bool
    """Whether the value is null."""
    raw: bytes
    """The encoded record, with its length before it."""


def split_records(data: bytes, header: BatchHeader) -> list[RawRecord]:
    """All records of the one batch in ``data``, whose header is ``header``. The CRC is not checked.

    :raises WireError: when the records are malformed, their codec is unknown, or their number or size exceeds a limit.
    """
    if header.record_count > _RECORDS_MAX:
        raise WireError(
            f"the header of a batch states {header.record_count} records; at most {_RECORDS_MAX} are allowed"
        )
    decompressed = decompress(header.codec, memoryview(data)[BATCH_HEADER_SIZE:], size_max=_DECOMPRESSED_SIZE_MAX)
    try:
        records = list(islice(_iter_records(decompressed, header), header.record_count + 1))
    except IndexError as error:
        raise WireError("a batch ends in the middle of a record") from error
    if len(records) != header.record_count:
        raise WireError(f"a batch does not contain the {header.record_count} records that its header states")
    return records


def rebuild_with_records(data: bytes, header: BatchHeader, records: Sequence[RawRecord]) -> bytes:
    """The batch in ``data`` with only ``records``, which are from :func:`split_records`; if the batch is compressed,
    they are compressed again, with gzip. The greatest timestamp in its header becomes that of ``records``; it stays if
    there are none, or if it is the timestamp of all records (LogAppendTime)."""
    header = replace(header, record_count=len(records))
    body = b"".join(record.raw for record in records)
    if header.is_compressed:
        header = header.with_codec(GZIP)
        body = compress_gzip(body)
    if records and not header.uses_log_append_time:
        header = replace(header, max_timestamp_ms=max(record.timestamp_ms for record in records))
    return rebuild_batch(data, header, body)


def _iter_records(decompressed: bytes, header: BatchHeader) -> Iterator[RawRecord]:
    """The records in ``decompressed``: the decompressed bytes after the batch's header. Inlined for speed, with
    one-byte varints first, because a compaction reads every record of a log.

    :raises WireError: when a record is malformed.
    :raises IndexError: when the bytes end inside of a record.
    """
    position, end = 0, len(decompressed)
    timestamp_ms, base_timestamp_ms, uses_log_append_time = (
        header.max_timestamp_ms,
        header.base_timestamp_ms,
        header.uses_log_append_time,
    )
    while position < end:
        start = position
        size, position = _read_varint(decompressed, position)
        record_end = position + size
        if size < 0 or record_end > end:
            raise WireError(f"a record states a length of {size} bytes, but {end - position} are left")
        timestamp_delta, position = _read_varint(decompressed, position + 1)
        if not uses_log_append_time:
            timestamp_ms = base_timestamp_ms + timestamp_delta
            if not -_INT64_BOUND <= timestamp_ms < _INT64_BOUND:
                raise WireError(f"a record has the timestamp {timestamp_ms}, which has more than 64 bits")
        offset_delta, position = _read_varint(decompressed, position)
        if not 0 <= offset_delta <= header.last_offset_delta:
            raise WireError(
                f"a record has the offset delta {offset_delta}, but its batch ends at {header.last_offset_delta}"
            )
        key_size, position = _read_varint(decompressed, position)
        key: bytes | None = None
        if key_size >= 0:
            key = decompressed[position : position + key_size]
            position += key_size
        value_size, position = _read_varint(decompressed, position)
        if position + max(0, value_size) > record_end:
            raise WireError(f"a record states a length of {size} bytes, but its key and value are longer")
        yield RawRecord(
            header.base_offset + offset_delta,
            timestamp_ms,
            key,
            value_size < 0,
            decompressed[start:record_end],
        )
        position = record_end


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The zigzag varint at ``position``, and the position after it.

    :raises WireError: when the varint has more than ten bytes.
    :raises IndexError: when ``data`` ends inside of the varint.
    """
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position + 1
        shift += 7
        if shift > 63:
            raise WireError("a varint has more than ten bytes")
