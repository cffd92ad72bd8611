"""Record batches of magic 2 (KIP-98): reads and writes their headers and records.

A broker stores producers' batches unchanged, compressed or not. It checks the header and the CRC, and overwrites only
the base offset and the leader epoch: both precede the bytes that the CRC covers. The only batches that a broker creates
itself are the markers that end a transaction: control batches of one record.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from crc32c import crc32c

from coterie.nouns.errors import WireError
from coterie.wire.primitives import Reader, Writer

_HEAD = struct.Struct(">qiibIhiqqqhii")
HEAD_SIZE = _HEAD.size
"""61 bytes precede the first record."""
_LENGTH_END = 12
"""The end of the length field, which counts the bytes after itself."""
_CRC_END = 21
"""The end of the CRC field, which covers the bytes after itself."""
_COVERED_HEAD = struct.Struct(">hiqqqhii")
"""The part of the header that the CRC covers."""
_BASE_OFFSET = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_LEADER_EPOCH = struct.Struct(">i")

_COMPRESSION_MASK = 0x07
_LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
"""The bit in a batch's attributes of a batch that belongs to its producer's transaction."""
_CONTROL = 0x20
_RECORD_SIZE_MIN = 7
"""Length, attributes, timestamp delta, offset delta, key, value and headers take at least a byte each."""

_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = range(2)

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1


class DamagedBatchError(WireError):
    """A batch was damaged on its way; if the sender sends it again, it may arrive undamaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHead:
    """The header of one batch; ``size_bytes`` is the size of the whole batch."""

    base_offset: int
    size_bytes: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """The number of the codec, as in `compression`."""
        return self.attributes & _COMPRESSION_MASK

    @property
    def is_compressed(self) -> bool:
        return bool(self.codec)

    @property
    def has_append_time(self) -> bool:
        """``max_timestamp_ms``, the time of the append to the log, is the timestamp of all records; the timestamps
        inside the records are ignored."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    def with_codec(self, codec: int) -> "BatchHead":
        return replace(self, attributes=self.attributes & ~_COMPRESSION_MASK | codec)

    @property
    def is_numbered(self) -> bool:
        """The batch has a producer id and a sequence number: it is from an idempotent producer."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """One record of a batch. ``value`` None is a tombstone."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """One record to write."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = field(default=())


def read_head(data: bytes | memoryview, at: int = 0) -> BatchHead:
    """Read the header of the batch at ``at`` and check that the whole batch is present. Does not check the CRC.

    :raises WireError: when the batch is cut off, is not of magic 2, or its numbers contradict each other;
        `DamagedBatchError` when no client sends such a header.
    """
    left = len(data) - at
    if left < HEAD_SIZE:
        raise WireError(f"a batch of {left} bytes has no complete header")
    (
        base_offset, length, _, magic, _, attributes, last_offset_delta, base_timestamp_ms, max_timestamp_ms,
        producer_id, producer_epoch, base_sequence, record_count,
    ) = _HEAD.unpack_from(data, at)  # fmt: skip
    size_bytes = length + _LENGTH_END
    if magic > 2 or size_bytes < HEAD_SIZE:
        raise DamagedBatchError(f"the header of a batch states magic {magic} and {size_bytes} bytes")
    if magic < 2:
        raise WireError(f"a batch has magic {magic}, not 2")
    if size_bytes > left:
        raise WireError(f"the header of a batch states {size_bytes} bytes, but {left} bytes are left")
    if last_offset_delta < 0 or record_count < 0:
        raise WireError(
            f"the header of a batch states {record_count} records and the last offset delta {last_offset_delta}"
        )
    return BatchHead(
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


def check_crc(data: bytes | memoryview, at: int, head: BatchHead) -> None:
    """:raises DamagedBatchError: when the batch at ``at`` was damaged on its way."""
    (expected,) = struct.unpack_from(">I", data, at + _CRC_END - 4)
    if crc32c(memoryview(data)[at + _CRC_END : at + head.size_bytes]) != expected:
        raise DamagedBatchError("the CRC of a batch does not match its bytes")


def check_produced(data: bytes | memoryview) -> BatchHead:
    """Check the data that a producer sent for one partition, and return its header: exactly one valid batch.

    :raises WireError: when the data is not exactly one valid batch; `DamagedBatchError` when it was damaged on its way.
    """
    head = read_head(data)
    if head.size_bytes != len(data):
        raise WireError(f"{len(data) - head.size_bytes} bytes follow the one batch that a producer may send")
    if head.record_count != head.last_offset_delta + 1:
        raise WireError(f"a batch of {head.record_count} records ends at the offset delta {head.last_offset_delta}")
    if not head.is_compressed and head.record_count * _RECORD_SIZE_MIN > head.size_bytes - HEAD_SIZE:
        raise WireError(f"the header of a batch of {head.size_bytes} bytes states {head.record_count} records")
    check_crc(data, 0, head)
    return head


def with_base_offset(data: bytes | memoryview, base_offset: int, *, leader_epoch: int = 0) -> bytes:
    """The batch with this base offset and leader epoch."""
    return b"".join((_BASE_OFFSET.pack(base_offset), data[8:_LENGTH_END], _LEADER_EPOCH.pack(leader_epoch), data[16:]))


def iter_heads(data: bytes | memoryview) -> Iterator[tuple[int, BatchHead]]:
    """The position and header of each whole batch in ``data``. A batch that is cut off at the end, as in a fetch
    response, is left out.

    :raises WireError: when a batch is malformed.
    """
    at = 0
    while len(data) - at >= HEAD_SIZE:
        (length,) = struct.unpack_from(">i", data, at + 8)
        if length + _LENGTH_END > len(data) - at:
            return
        head = read_head(data, at)
        yield at, head
        at += head.size_bytes


def with_append_time(data: bytes | memoryview, head: BatchHead, now_ms: int) -> tuple[bytes, BatchHead]:
    """The batch as a topic with ``message.timestamp.type=LogAppendTime`` stores it, and its header."""
    head = replace(head, attributes=head.attributes | _LOG_APPEND_TIME, max_timestamp_ms=now_ms)
    return rebuilt(data, head, data[HEAD_SIZE:]), head


def rebuilt(data: bytes | memoryview, head: BatchHead, body: bytes | memoryview) -> bytes:
    """The batch in ``data`` with the fields of ``head`` and with the records in ``body``; its base offset and leader
    epoch stay."""
    covered = b"".join(
        (
            _COVERED_HEAD.pack(
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
    """One uncompressed batch of at least one record; ``timestamp_ms`` is the timestamp of each record."""
    body = Writer()
    count = 0
    for count, record in enumerate(records, start=1):
        _write_record(body, count - 1, record)
    assert count, "a batch contains at least one record"
    covered = _COVERED_HEAD.pack(
        attributes, count - 1, timestamp_ms, timestamp_ms, producer_id, producer_epoch, base_sequence,
        count,
    ) + body.getvalue()  # fmt: skip
    length = len(covered) + _CRC_END - _LENGTH_END
    return struct.pack(">qiibI", base_offset, length, leader_epoch, 2, crc32c(covered)) + covered


def encode_marker(*, producer_id: int, producer_epoch: int, is_commit: bool, timestamp_ms: int) -> bytes:
    """The control batch that ends a producer's transaction in one partition."""
    record = NewRecord(key=_MARKER_KEY.pack(0, _COMMIT if is_commit else _ABORT), value=_MARKER_VALUE.pack(0, 0))
    return encode_batch(
        [record],
        timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL | _CONTROL,
    )


def decode_records(data: bytes | memoryview) -> list[BatchRecord]:
    """The records of the whole batches in ``data``, with their CRC checked.

    :raises WireError: when a batch is malformed, damaged, or compressed: only batches that Coterie wrote are read.
    """
    records: list[BatchRecord] = []
    for at, head in iter_heads(data):
        check_crc(data, at, head)
        if head.is_compressed:
            raise WireError("a batch is compressed; only uncompressed batches are read here")
        if not head.is_control:
            records.extend(_read_records(data, at, head))
    return records


# -- helpers ----------------------------------------------------------------------------------------------------------


def _write_record(writer: Writer, offset_delta: int, record: NewRecord) -> None:
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


def _read_records(data: bytes | memoryview, at: int, head: BatchHead) -> Iterator[BatchRecord]:
    reader = Reader(data, at + HEAD_SIZE, at + head.size_bytes)
    if head.record_count * _RECORD_SIZE_MIN > reader.left:
        raise WireError(f"the header of a batch of {head.size_bytes} bytes states {head.record_count} records")
    for _ in range(head.record_count):
        size = reader.varint()
        end = reader.at + size
        reader.int8()
        timestamp_delta = reader.varlong()
        yield BatchRecord(
            timestamp_ms=(head.max_timestamp_ms if head.has_append_time else head.base_timestamp_ms + timestamp_delta),
            offset=head.base_offset + reader.varint(),
            key=reader.varint_bytes(),
            value=reader.varint_bytes(),
            headers=_read_headers(reader),
        )
        if reader.at != end:
            raise WireError(f"a record is not {size} bytes long, as its length states")
    reader.expect_end()


def _read_headers(reader: Reader) -> tuple[tuple[str, bytes | None], ...]:
    count = reader.varint()
    if not 0 <= count * 2 <= reader.left:
        raise WireError(f"a record announces {count} headers, {reader.left} bytes are left")
    return tuple((_header_name(reader), reader.varint_bytes()) for _ in range(count))


def _header_name(reader: Reader) -> str:
    raw = reader.varint_bytes()
    if raw is None:
        raise WireError("a record's header has no name")
    return raw.decode(errors="replace")
