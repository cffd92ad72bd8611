"""Record batches of magic 2 (KIP-98): reads and writes their headers and records.

A broker stores producers' batches unchanged, compressed or not. It checks the header and the CRC, and overwrites only
the base offset and the leader epoch: both precede the bytes that the CRC covers. Exceptions are topics with
LogAppendTime (:func:`with_append_time`) and compaction (`batch_filter`), which rebuild batches. A broker itself creates
the batches of its groups' records, and the markers that end a transaction: control batches of one record.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from crc32c import crc32c

from coterie.nouns.errors import WireError
from coterie.wire.primitives import Reader, Writer

_HEADER = struct.Struct(">qiibIhiqqqhii")
BATCH_HEADER_SIZE = _HEADER.size
"""The size of a batch's header in bytes, 61: there the first record begins."""
_LENGTH_END = 12
"""The position after the length field, which counts the bytes after itself."""
_CRC_END = 21
"""The position after the CRC field, which covers the bytes after itself."""
_COVERED_HEADER = struct.Struct(">hiqqqhii")
"""The part of the header that the CRC covers."""
_BASE_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_LEADER_EPOCH = struct.Struct(">i")

_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
"""The bit in a batch's attributes that means: the batch belongs to its producer's transaction."""
_CONTROL = 0x20
_RECORD_SIZE_MIN = 7
"""In bytes: length, attributes, timestamp delta, offset delta, key, value and headers take at least a byte each."""

_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = range(2)

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
    def has_append_time(self) -> bool:
        """Whether ``max_timestamp_ms``, the time of the append to the log, is the timestamp of all records. The
        timestamps inside the records are then ignored."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    def with_codec(self, codec: int) -> "BatchHeader":
        """This header with another codec."""
        return replace(self, attributes=self.attributes & ~_COMPRESSION_MASK | codec)

    @property
    def has_producer_id(self) -> bool:
        """Whether the batch has a producer id and a sequence number: it is from an idempotent producer."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to its producer's transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch contains a marker that ends a transaction, instead of records of a producer."""
        return bool(self.attributes & _CONTROL)


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
    """One record to write. ``value`` None writes a tombstone."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = field(default=())


def read_batch_header(data: bytes | memoryview, at: int = 0) -> BatchHeader:
    """Read the header of the batch that begins at position ``at`` of ``data``, and check that the whole batch is
    present. The CRC is not checked.

    :raises WireError: when the batch is cut off, is not of magic 2, or states a negative number; `DamagedBatchError`
        when no client sends such a header.
    """
    left = len(data) - at
    if left < BATCH_HEADER_SIZE:
        raise WireError(f"a batch of {left} bytes has no complete header")
    (
        base_offset, length, _, magic, _, attributes, last_offset_delta, base_timestamp_ms, max_timestamp_ms,
        producer_id, producer_epoch, base_sequence, record_count,
    ) = _HEADER.unpack_from(data, at)  # fmt: skip
    size_bytes = length + _LENGTH_END
    if magic > 2 or size_bytes < BATCH_HEADER_SIZE:
        raise DamagedBatchError(f"the header of a batch states magic {magic} and {size_bytes} bytes: it is damaged")
    if magic < 2:
        raise WireError(f"a batch has magic {magic}, not 2")
    if size_bytes > left:
        raise WireError(f"the header of a batch states {size_bytes} bytes, but {left} bytes are left")
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


def check_crc(data: bytes | memoryview, at: int, head: BatchHeader) -> None:
    """Check the CRC of the batch that begins at position ``at`` and has the header ``head``.

    :raises DamagedBatchError: when the bytes do not match the CRC, so the batch was damaged on its way.
    """
    (expected,) = struct.unpack_from(">I", data, at + _CRC_END - 4)
    if crc32c(memoryview(data)[at + _CRC_END : at + head.size_bytes]) != expected:
        raise DamagedBatchError("the CRC of a batch does not match its bytes")


def check_produced(data: bytes | memoryview) -> BatchHeader:
    """Check that ``data``, which a producer sent for one partition, is exactly one batch with a valid header and CRC,
    and return the header. The records themselves are not read.

    :raises WireError: when it is not; `DamagedBatchError` when the batch was damaged on its way.
    """
    head = read_batch_header(data)
    if head.size_bytes != len(data):
        raise WireError(f"{len(data) - head.size_bytes} bytes follow the one batch that a producer may send")
    if head.record_count != head.last_offset_delta + 1:
        raise WireError(f"the last offset delta of a batch of {head.record_count} records is {head.last_offset_delta}")
    if not head.is_compressed and head.record_count * _RECORD_SIZE_MIN > head.size_bytes - BATCH_HEADER_SIZE:
        raise WireError(
            f"the header of a batch of {head.size_bytes} bytes states too many records: {head.record_count}"
        )
    check_crc(data, 0, head)
    return head


def with_base_offset(data: bytes | memoryview, base_offset: int, *, leader_epoch: int = 0) -> bytes:
    """The batch in ``data`` with this base offset and leader epoch. The CRC does not cover the two, so it stays
    valid."""
    return b"".join((_BASE_OFFSET.pack(base_offset), data[8:_LENGTH_END], _LEADER_EPOCH.pack(leader_epoch), data[16:]))


def iter_batch_headers(data: bytes | memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """The position and header of each whole batch in ``data``. A batch that is cut off at the end, as in a fetch
    response, is left out. CRCs are not checked.

    :raises WireError: when a batch is malformed.
    """
    at = 0
    while len(data) - at >= BATCH_HEADER_SIZE:
        (length,) = struct.unpack_from(">i", data, at + 8)
        if length + _LENGTH_END > len(data) - at:
            return
        head = read_batch_header(data, at)
        yield at, head
        at += head.size_bytes


def with_append_time(data: bytes | memoryview, head: BatchHeader, now_ms: int) -> tuple[bytes, BatchHeader]:
    """The batch in ``data`` as a topic with ``message.timestamp.type=LogAppendTime`` stores it, and its new header:
    ``now_ms`` becomes the timestamp of all its records."""
    head = replace(head, attributes=head.attributes | _LOG_APPEND_TIME, max_timestamp_ms=now_ms)
    return rebuild_batch(data, head, data[BATCH_HEADER_SIZE:]), head


def rebuild_batch(data: bytes | memoryview, head: BatchHeader, body: bytes | memoryview) -> bytes:
    """The batch in ``data`` with the fields of ``head`` and with the records in ``body``, the bytes after the header.
    Its length and CRC are computed again; its base offset and leader epoch stay."""
    covered = b"".join(
        (
            _COVERED_HEADER.pack(
                head.attributes, head.last_offset_delta, head.base_timestamp_ms, head.max_timestamp_ms,
                head.producer_id, head.producer_epoch, head.base_sequence, head.record_count,
            ),
            body,
        )
    )  # fmt: skip
    length = _LENGTH.pack(len(covered) + _CRC_END - _LENGTH_END)
    crc = struct.pack(">I", crc32c(covered))
    return b"".join((data[: _LENGTH_END - 4], length, data[_LENGTH_END : _CRC_END - 4], crc, covered))


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
    covered = _COVERED_HEADER.pack(
        attributes, count - 1, timestamp_ms, timestamp_ms, producer_id, producer_epoch, base_sequence,
        count,
    ) + body.getvalue()  # fmt: skip
    length = len(covered) + _CRC_END - _LENGTH_END
    return struct.pack(">qiibI", base_offset, length, leader_epoch, 2, crc32c(covered)) + covered


def encode_marker(*, producer_id: int, producer_epoch: int, is_commit: bool, timestamp_ms: int) -> bytes:
    """The control batch (marker) that ends a producer's transaction in one partition: with a commit or an abort."""
    record = NewRecord(key=_MARKER_KEY.pack(0, _COMMIT if is_commit else _ABORT), value=_MARKER_VALUE.pack(0, 0))
    return encode_batch(
        [record],
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL | _CONTROL,
    )


def decode_records(data: bytes | memoryview) -> list[BatchRecord]:
    """The records of all whole batches in ``data``, after a check of the CRCs. Control batches, and a batch that is cut
    off at the end, are left out.

    :raises WireError: when a batch is malformed, damaged, or compressed: only batches that Coterie wrote are read.
    """
    records: list[BatchRecord] = []
    for at, head in iter_batch_headers(data):
        check_crc(data, at, head)
        if head.is_compressed:
            raise WireError("a batch is compressed; only uncompressed batches are read here")
        if not head.is_control:
            records.extend(_read_records(data, at, head))
    return records


# -- helpers ----------------------------------------------------------------------------------------------------------


def _write_record(writer: Writer, offset_delta: int, record: NewRecord) -> None:
    """Write one record with timestamp delta 0."""
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


def _read_records(data: bytes | memoryview, at: int, head: BatchHeader) -> Iterator[BatchRecord]:
    """Decode the records of the uncompressed batch at position ``at``.

    :raises WireError: when a record is malformed.
    """
    reader = Reader(data, at + BATCH_HEADER_SIZE, at + head.size_bytes)
    if head.record_count * _RECORD_SIZE_MIN > reader.remaining:
        raise WireError(
            f"the header of a batch of {head.size_bytes} bytes states too many records: {head.record_count}"
        )
    for _ in range(head.record_count):
        size = reader.varint()
        end = reader.position + size
        reader.int8()
        timestamp_delta = reader.varlong()
        yield BatchRecord(
            timestamp_ms=(head.max_timestamp_ms if head.has_append_time else head.base_timestamp_ms + timestamp_delta),
            offset=head.base_offset + reader.varint(),
            key=reader.varint_bytes(),
            value=reader.varint_bytes(),
            headers=_read_headers(reader),
        )
        if reader.position != end:
            raise WireError(f"a record is not {size} bytes long, as its length states")
    reader.expect_end()


def _read_headers(reader: Reader) -> tuple[tuple[str, bytes | None], ...]:
    """The names and values of a record's headers.

    :raises WireError: when they are malformed.
    """
    count = reader.varint()
    if not 0 <= count * 2 <= reader.remaining:
        raise WireError(f"a record announces {count} headers, but {reader.remaining} bytes are left")
    return tuple((_header_name(reader), reader.varint_bytes()) for _ in range(count))


def _header_name(reader: Reader) -> str:
    """The name of a record's header; bytes that are not UTF-8 are replaced.

    :raises WireError: when the name is null.
    """
    raw = reader.varint_bytes()
    if raw is None:
        raise WireError("a record's header has no name")
    return raw.decode(errors="replace")
