"""Record batches of magic 2 (KIP-98): reads and writes their headers and records.

A broker stores producers' batches unchanged, compressed or not. It checks the header and the CRC, and overwrites only
the base offset and the leader epoch: both precede the bytes that the CRC covers. Exceptions are topics with
LogAppendTime (:func:`with_log_append_time`) and compaction (`batch_filter`), which rebuild batches. A broker itself
creates the batches of its groups' records, and the markers that end a transaction: control batches of one record.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from crc32c import crc32c

from coterie.nouns.errors import WireError
from coterie.wire.primitives import Reader, Writer

_HEADER_STRUCT = struct.Struct(">qiibIhiqqqhii")
BATCH_HEADER_SIZE = _HEADER_STRUCT.size
"""The size of a batch's header in bytes, 61: there the first record begins."""
_LENGTH_FIELD_END = 12
"""The position after the length field, which counts the bytes after itself."""
_CRC_FIELD_END = 21
"""The position after the CRC field, which covers the bytes after itself."""
_CRC_COVERED_HEADER_STRUCT = struct.Struct(">hiqqqhii")
"""The part of the header that the CRC covers."""
_BASE_OFFSET_STRUCT = struct.Struct(">q")
_LENGTH_STRUCT = struct.Struct(">i")
_LEADER_EPOCH_STRUCT = struct.Struct(">i")

_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
"""The bit in a batch's attributes that means: the batch belongs to its producer's transaction."""
_CONTROL_BIT = 0x20
_RECORD_SIZE_MIN = 7
"""The size of the smallest record, in bytes: length, attributes, timestamp delta, offset delta, key, value and headers
take at least a byte each."""

_MARKER_KEY_STRUCT = struct.Struct(">hh")
_MARKER_VALUE_STRUCT = struct.Struct(">hi")
_ABORT_MARKER_TYPE, _COMMIT_MARKER_TYPE = range(2)

NO_TIMESTAMP = -1
"""The timestamp of a record or batch that has none."""
NO_PRODUCER_ID = -1
"""The producer id, epoch and sequence number of a batch that is not from an idempotent producer."""
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1


class DamagedBatchError(WireError):
    """A batch was damaged on its way; if the sender sends it again, it may arrive undamaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """The header of one batch. ``size_bytes`` is the size of the whole batch with this header."""

    base_offset: int
    size_bytes: int
    attributes: int
    """Kafka's bits: codec, timestamp type, transactional, control."""
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        """The offset of the batch's last record, as produced: a compaction may have removed this record."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """The number of the codec, a constant of `compression`."""
        return self.attributes & _COMPRESSION_MASK

    @property
    def is_compressed(self) -> bool:
        """Whether the records are compressed."""
        return bool(self.codec)

    @property
    def uses_log_append_time(self) -> bool:
        """Whether ``max_timestamp_ms``, the time of the append to the log, is the timestamp of all records. The
        timestamps inside the records are then ignored."""
        return bool(self.attributes & _LOG_APPEND_TIME_BIT)

    def with_codec(self, codec: int) -> "BatchHeader":
        """This header with the number of ``codec``, a constant of `compression`, in its attributes."""
        return replace(self, attributes=self.attributes & ~_COMPRESSION_MASK | codec)

    @property
    def has_producer_id(self) -> bool:
        """Whether the batch has a producer id and a sequence number: it is from an idempotent producer."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to its producer's transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch contains a marker that ends a transaction, instead of records of a producer."""
        return bool(self.attributes & _CONTROL_BIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One decoded record of a batch. A record with the ``value`` None is a tombstone."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """The names and values of the record's headers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """The content of one record to write; the record's offset and timestamp come from the batch
    (:func:`encode_batch`). ``value`` None writes a tombstone."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = field(default=())


def read_batch_header(data: bytes | memoryview, position: int = 0) -> BatchHeader:
    """Read the header of the batch that begins at position ``position`` of ``data``, and check that the whole batch is
    present. The CRC is not checked.

    :raises WireError: when the batch is cut off, has a magic below 2, or states a negative number of records or last
        offset delta; `DamagedBatchError` when its magic is above 2 or its size is smaller than a header, which no
        client sends.
    """
    available_bytes = len(data) - position
    if available_bytes < BATCH_HEADER_SIZE:
        raise WireError(f"a batch of {available_bytes} bytes has no complete header")
    (
        base_offset, length, _, magic, _, attributes, last_offset_delta, base_timestamp_ms, max_timestamp_ms,
        producer_id, producer_epoch, base_sequence, record_count,
    ) = _HEADER_STRUCT.unpack_from(data, position)  # fmt: skip
    size_bytes = length + _LENGTH_FIELD_END
    if magic > 2 or size_bytes < BATCH_HEADER_SIZE:
        raise DamagedBatchError(f"the header of a batch states magic {magic} and {size_bytes} bytes: it is damaged")
    if magic < 2:
        raise WireError(f"a batch has magic {magic}, not 2; only batches of Kafka 0.11 and newer are supported")
    if size_bytes > available_bytes:
        raise WireError(f"the header of a batch states {size_bytes} bytes, but {available_bytes} bytes are left")
    if last_offset_delta < 0 or record_count < 0:
        raise WireError(
            f"the header of a batch states {record_count} records and the last offset delta {last_offset_delta}:"
            " neither may be negative"
        )
    return BatchHeader(
        base_offset=base_offset,
        size_bytes=size_bytes,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp_ms=base_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )


def check_crc(data: bytes | memoryview, position: int, header: BatchHeader) -> None:
    """Check the CRC of the batch that begins at position ``position`` and has the header ``header``.

    :raises DamagedBatchError: when the bytes do not match the CRC, so the batch was damaged on its way.
    """
    (expected,) = struct.unpack_from(">I", data, position + _CRC_FIELD_END - 4)
    if crc32c(memoryview(data)[position + _CRC_FIELD_END : position + header.size_bytes]) != expected:
        raise DamagedBatchError("the CRC of a batch does not match its bytes")


def check_produced_batch(data: bytes | memoryview) -> BatchHeader:
    """Check that ``data``, which a producer sent for one partition, is exactly one batch with a valid header and CRC,
    and return the header. The records themselves are not read.

    :raises WireError: when ``data`` is not one valid batch; `DamagedBatchError` when the batch was damaged on its way.
    """
    header = read_batch_header(data)
    if header.size_bytes != len(data):
        raise WireError(
            f"{len(data) - header.size_bytes} bytes follow the one batch that a producer may send for a partition"
        )
    if header.record_count != header.last_offset_delta + 1:
        raise WireError(
            f"the header of a batch states {header.record_count} records and the last offset delta "
            f"{header.last_offset_delta}; a producer's batch has one record more than this delta"
        )
    if not header.is_compressed and header.record_count * _RECORD_SIZE_MIN > header.size_bytes - BATCH_HEADER_SIZE:
        raise WireError(
            f"the header of a batch of {header.size_bytes} bytes states {header.record_count} records, which do not fit"
        )
    check_crc(data, 0, header)
    return header


def with_base_offset_and_leader_epoch(data: bytes | memoryview, base_offset: int, *, leader_epoch: int = 0) -> bytes:
    """The batch in ``data`` with this base offset and leader epoch. The CRC does not cover the two, so it stays
    valid."""
    return b"".join(
        (
            _BASE_OFFSET_STRUCT.pack(base_offset),
            data[8:_LENGTH_FIELD_END],
            _LEADER_EPOCH_STRUCT.pack(leader_epoch),
            data[16:],
        )
    )


def iter_whole_batch_headers(data: bytes | memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """The position and header of each whole batch in ``data``. A batch that is cut off at the end, as in a fetch
    response, is left out. CRCs are not checked.

    :raises WireError: when a batch is malformed.
    """
    position = 0
    while len(data) - position >= BATCH_HEADER_SIZE:
        (length,) = struct.unpack_from(">i", data, position + 8)
        if length + _LENGTH_FIELD_END > len(data) - position:
            return
        header = read_batch_header(data, position)
        yield position, header
        position += header.size_bytes


def with_log_append_time(data: bytes | memoryview, header: BatchHeader, now_ms: int) -> tuple[bytes, BatchHeader]:
    """The batch in ``data`` as a topic with ``message.timestamp.type=LogAppendTime`` stores it, and its new header:
    ``now_ms`` becomes the timestamp of all its records."""
    header = replace(header, attributes=header.attributes | _LOG_APPEND_TIME_BIT, max_timestamp_ms=now_ms)
    return rebuild_batch(data, header, data[BATCH_HEADER_SIZE:]), header


def rebuild_batch(data: bytes | memoryview, header: BatchHeader, records: bytes | memoryview) -> bytes:
    """The batch in ``data`` with the fields of ``header``, and with ``records``, the encoded records, after the
    header. Its length and CRC are computed again; its base offset and leader epoch stay."""
    crc_covered_bytes = b"".join(
        (
            _CRC_COVERED_HEADER_STRUCT.pack(
                header.attributes, header.last_offset_delta, header.base_timestamp_ms, header.max_timestamp_ms,
                header.producer_id, header.producer_epoch, header.base_sequence, header.record_count,
            ),
            records,
        )
    )  # fmt: skip
    length = _LENGTH_STRUCT.pack(len(crc_covered_bytes) + _CRC_FIELD_END - _LENGTH_FIELD_END)
    crc = struct.pack(">I", crc32c(crc_covered_bytes))
    return b"".join(
        (data[: _LENGTH_FIELD_END - 4], length, data[_LENGTH_FIELD_END : _CRC_FIELD_END - 4], crc, crc_covered_bytes)
    )


def encode_batch(
    records: Iterable[NewRecord],
    *,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    attributes: int = 0,
) -> bytes:
    """One uncompressed batch of ``records``, at least one. ``timestamp_ms`` is the timestamp of each record."""
    body = Writer()
    count = 0
    for count, record in enumerate(records, start=1):
        _write_record(body, count - 1, record)
    assert count, "a batch contains at least one record"
    crc_covered_bytes = _CRC_COVERED_HEADER_STRUCT.pack(
        attributes, count - 1, timestamp_ms, timestamp_ms, producer_id, producer_epoch, base_sequence,
        count,
    ) + body.getvalue()  # fmt: skip
    length = len(crc_covered_bytes) + _CRC_FIELD_END - _LENGTH_FIELD_END
    return struct.pack(">qiibI", base_offset, length, leader_epoch, 2, crc32c(crc_covered_bytes)) + crc_covered_bytes


def encode_transaction_marker(*, producer_id: int, producer_epoch: int, is_commit: bool, timestamp_ms: int) -> bytes:
    """The control batch (marker) that ends a producer's transaction in one partition: with a commit or an abort."""
    record = NewRecord(
        key=_MARKER_KEY_STRUCT.pack(0, _COMMIT_MARKER_TYPE if is_commit else _ABORT_MARKER_TYPE),
        value=_MARKER_VALUE_STRUCT.pack(0, 0),
    )
    return encode_batch(
        [record],
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL_BIT | _CONTROL_BIT,
    )


def decode_uncompressed_records_without_control(data: bytes | memoryview) -> list[BatchRecord]:
    """The records of all whole batches in ``data``, after a check of the CRCs. Control batches, and a batch that is cut
    off at the end, are left out.

    :raises WireError: when a batch is malformed, damaged, or compressed: only batches that Coterie wrote are read.
    """
    records: list[BatchRecord] = []
    for position, header in iter_whole_batch_headers(data):
        batch_records = decode_uncompressed_batch(data, position, header)
        if not header.is_control:
            records.extend(batch_records)
    return records


def decode_uncompressed_batch(data: bytes | memoryview, position: int, header: BatchHeader) -> list[BatchRecord]:
    """The records of the batch at ``position``, whose header is ``header``, after a check of the CRC. The only record
    of a control batch is its marker (`is_commit_marker`).

    :raises WireError: when the batch is malformed, damaged, or compressed: only batches that Coterie wrote are read.
    """
    check_crc(data, position, header)
    if header.is_compressed:
        raise WireError(
            f"the batch at offset {header.base_offset} is compressed, but Coterie writes only uncompressed batches to "
            "this topic"
        )
    return list(_read_records(data, position, header))


def is_commit_marker(marker: BatchRecord) -> bool:
    """Whether ``marker``, the record of a control batch, ends its transaction with a commit, and not with an abort.

    :raises WireError: when the record is no such marker.
    """
    try:
        _, marker_type = _MARKER_KEY_STRUCT.unpack(marker.key or b"")
    except struct.error as error:
        raise WireError(f"the marker at offset {marker.offset} has an invalid key") from error
    if marker_type not in (_ABORT_MARKER_TYPE, _COMMIT_MARKER_TYPE):
        raise WireError(f"the marker at offset {marker.offset} has the unknown type {marker_type}")
    return bool(marker_type == _COMMIT_MARKER_TYPE)


# -- helpers ----------------------------------------------------------------------------------------------------------


def _write_record(writer: Writer, offset_delta: int, record: NewRecord) -> None:
    """Write ``record`` in the format of a batch, with timestamp delta 0 and without attributes."""
    body = Writer()
    body.int8(0)
    body.varint(0)
    body.varint(offset_delta)
    body.varint_bytes(record.key)
    body.varint_bytes(record.value)
    body.varint(len(record.headers))
    for name, value in record.headers:
        body.varint_bytes(name.encode())
        body.varint_bytes(value)
    writer.varint(len(body))
    writer.raw(body.getvalue())


def _read_records(data: bytes | memoryview, position: int, header: BatchHeader) -> Iterator[BatchRecord]:
    """Decode the records of the uncompressed batch at position ``position``.

    :raises WireError: when a record is malformed.
    """
    reader = Reader(data, position + BATCH_HEADER_SIZE, position + header.size_bytes)
    if header.record_count * _RECORD_SIZE_MIN > reader.remaining:
        raise WireError(
            f"the header of a batch of {header.size_bytes} bytes states {header.record_count} records, which do not "
            "fit: the batch is damaged"
        )
    for _ in range(header.record_count):
        size = reader.varint()
        end = reader.position + size
        reader.int8()
        timestamp_delta = reader.varlong()
        yield BatchRecord(
            timestamp_ms=(
                header.max_timestamp_ms if header.uses_log_append_time else header.base_timestamp_ms + timestamp_delta
            ),
            offset=header.base_offset + reader.varint(),
            key=reader.varint_bytes(),
            value=reader.varint_bytes(),
            headers=_read_record_headers(reader),
        )
        if reader.position != end:
            raise WireError(
                f"a record states a length of {size} bytes, but its fields have another length: the batch is damaged"
            )
    reader.expect_end()


def _read_record_headers(reader: Reader) -> tuple[tuple[str, bytes | None], ...]:
    """The names and values of a record's headers.

    :raises WireError: when they are malformed.
    """
    count = reader.varint()
    if not 0 <= count * 2 <= reader.remaining:
        raise WireError(f"a record announces {count} headers, but {reader.remaining} bytes are left")
    return tuple((_read_record_header_name(reader), reader.varint_bytes()) for _ in range(count))


def _read_record_header_name(reader: Reader) -> str:
    """The name of a record's header; bytes that are not UTF-8 are replaced.

    :raises WireError: when the name is null.
    """
    raw = reader.varint_bytes()
    if raw is None:
        raise WireError("a record's header has no name")
    return raw.decode(errors="replace")
