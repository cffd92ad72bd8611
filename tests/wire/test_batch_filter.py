"""Batches split into records and rebuilt: with every codec, and readable by every client."""

import contextlib
import gzip
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace

import pyarrow
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from coterie.nouns.errors import WireError
from coterie.wire.batch_filter import rebuild_with_records, split_records
from coterie.wire.batches import (
    BatchHeader,
    NewRecord,
    check_crc,
    decode_uncompressed_records_without_control,
    encode_batch,
    read_batch_header,
    with_log_append_time,
)
from coterie.wire.compression import GZIP, LZ4, SNAPPY, ZSTD, compress_gzip, decompress
from tests.wire.fuzzing import batch_of, with_codec

Pack = Callable[[bytes], bytes]

PLAIN = bytes(range(256)) * 40
PACKED_PLAIN = compress_gzip(PLAIN)


def xerial(data: bytes) -> bytes:
    blocks = [bytes(pyarrow.compress(data[at : at + 1000], codec="snappy")) for at in range(0, len(data), 1000)]
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(b)) + b for b in blocks)


PACKED = [
    pytest.param(GZIP, lambda data: zlib.compress(data, wbits=31), id="gzip"),
    pytest.param(SNAPPY, lambda data: bytes(pyarrow.compress(data, codec="snappy")), id="snappy-bare"),
    pytest.param(SNAPPY, xerial, id="snappy-of-java"),
    pytest.param(LZ4, lambda data: bytes(pyarrow.compress(data, codec="lz4")), id="lz4"),
    pytest.param(ZSTD, lambda data: bytes(pyarrow.compress(data, codec="zstd")), id="zstd"),
]


def packed_batch(codec: int, pack: Pack, records: list[NewRecord]) -> bytes:
    plain = encode_batch(records, timestamp_ms=7, base_offset=30)
    covered = struct.pack(">h", codec) + plain[23:61] + pack(plain[61:])
    return plain[:8] + struct.pack(">i", len(covered) + 9) + plain[12:17] + struct.pack(">I", crc32c(covered)) + covered


@pytest.mark.parametrize(("codec", "pack"), PACKED)
def test_each_codec_decompresses_what_it_compressed(codec: int, pack: Pack) -> None:
    assert decompress(codec, pack(PLAIN), size_max=len(PLAIN)) == PLAIN


@pytest.mark.parametrize(("codec", "pack"), PACKED)
def test_data_above_the_limit_is_refused_before_it_is_decompressed(codec: int, pack: Pack) -> None:
    with pytest.raises(WireError, match="more than 9999 bytes"):
        decompress(codec, pack(PLAIN), size_max=9_999)


@pytest.mark.parametrize(("codec", "pack"), PACKED)
@pytest.mark.parametrize("damage", [b"", b"\xff" * 30])
def test_damaged_bytes_raise_a_wire_error(codec: int, pack: Pack, damage: bytes) -> None:
    data = pack(PLAIN)
    with pytest.raises(WireError):
        # A damaged stream may decompress to fewer bytes, which then are no sequence of records.
        split_records(b"\0" * 61 + data[: len(data) // 2] + damage, head_of_one_record(codec))


@pytest.mark.parametrize("size", [0, 5, 9, len(PACKED_PLAIN) // 2, len(PACKED_PLAIN) - 8, len(PACKED_PLAIN) - 1])
def test_gzip_data_that_is_cut_off_is_refused(size: int) -> None:
    with pytest.raises(WireError, match="compressed records are damaged: they end inside of a gzip member"):
        decompress(GZIP, PACKED_PLAIN[:size], size_max=len(PLAIN))
    with pytest.raises(WireError, match="compressed records are damaged"):
        decompress(GZIP, PACKED_PLAIN + (PACKED_PLAIN[:size] or PACKED_PLAIN[:3]), size_max=2 * len(PLAIN))


@given(parts=st.lists(st.integers(0, len(PLAIN)), min_size=1, max_size=5), level=st.integers(0, 9))
def test_all_members_of_a_gzip_stream_are_decompressed(parts: list[int], level: int) -> None:
    data = b"".join(gzip.compress(PLAIN[:size], compresslevel=level) for size in parts)
    assert decompress(GZIP, data, size_max=sum(parts)) == b"".join(PLAIN[:size] for size in parts)
    if sum(parts):
        with pytest.raises(WireError, match=f"more than {sum(parts) - 1} bytes"):
            decompress(GZIP, data, size_max=sum(parts) - 1)


@pytest.mark.parametrize("rest", [b"\0", b"\0" * 600, b"\x1f\x8b\x07" + b"\0" * 40, b"garbage"])
def test_bytes_after_a_gzip_stream_are_ignored_as_in_java(rest: bytes) -> None:
    assert decompress(GZIP, PACKED_PLAIN + rest, size_max=len(PLAIN)) == PLAIN


@pytest.mark.timeout(20)
def test_a_gzip_stream_of_very_many_members_is_decompressed_in_linear_time() -> None:
    assert decompress(GZIP, gzip.compress(b"") * 50_000 + PACKED_PLAIN, size_max=len(PLAIN)) == PLAIN


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(WireError, match="number 6"):
        decompress(6, b"", size_max=1)


records = st.lists(
    st.builds(
        NewRecord,
        key=st.none() | st.binary(max_size=100),
        value=st.none() | st.binary(max_size=300),
        headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2),
    ),
    min_size=1,
    max_size=30,
)


@given(records=records, keep=st.sets(st.integers(0, 29)), is_packed=st.booleans())
def test_filtering_a_batch_does_not_change_the_kept_records(
    records: list[NewRecord], keep: set[int], is_packed: bool
) -> None:
    plain = encode_batch(records, timestamp_ms=7, base_offset=30)
    data = packed_batch(GZIP, lambda body: zlib.compress(body, wbits=31), records) if is_packed else plain
    head = read_batch_header(data)
    before = decode_uncompressed_records_without_control(plain)
    found = split_records(data, head)
    assert [(s.offset, s.timestamp_ms, s.key, s.is_tombstone) for s in found] == [
        (r.offset, r.timestamp_ms, r.key, r.value is None) for r in before
    ]
    after = rebuild_with_records(data, head, [record for record in found if record.offset - 30 in keep])
    head_after = read_batch_header(after)
    check_crc(after, 0, head_after)
    assert head_after.size_bytes == len(after)
    assert (head_after.base_offset, head_after.last_offset) == (head.base_offset, head.last_offset)
    assert split_records(after, head_after) == [record for record in found if record.offset - 30 in keep]
    if not is_packed:
        assert decode_uncompressed_records_without_control(after) == [
            record for record in before if record.offset - 30 in keep
        ]


@pytest.mark.parametrize("codec", [0, GZIP])
def test_the_max_timestamp_is_that_of_the_kept_records(codec: int) -> None:
    plain = batch_of((0, 0, b"a"), (9, 1, b"b"), (4, 2, b"c"), (70, 3, b"d"), base_timestamp_ms=100)
    data = plain if codec == 0 else with_codec(plain, codec, compress_gzip(plain[61:]))
    head = read_batch_header(data)
    found = split_records(data, head)
    after = read_batch_header(rebuild_with_records(data, head, found[:3]))
    assert (after.base_timestamp_ms, after.max_timestamp_ms, after.record_count) == (100, 109, 3)
    assert (after.last_offset_delta, after.codec) == (3, codec)
    appended, head = with_log_append_time(data, head, 5_000)
    (kept, *_) = found = split_records(appended, head)
    assert [record.timestamp_ms for record in found] == [5_000] * 4
    assert read_batch_header(rebuild_with_records(appended, head, [kept])).max_timestamp_ms == 5_000


@pytest.mark.parametrize("base_timestamp_ms", [0, 1_700_000_000_000, -1])
def test_a_timestamp_beyond_64_bits_raises_a_wire_error(base_timestamp_ms: int) -> None:
    deltas = (2**63, 2**63 - 1 - base_timestamp_ms, -(2**63) - 1 - base_timestamp_ms, -(2**63) - base_timestamp_ms)
    read: list[int] = []
    for delta in deltas:
        data = batch_of((delta, 0, b"k"), base_timestamp_ms=base_timestamp_ms)
        with contextlib.suppress(WireError):
            read += [record.timestamp_ms for record in split_records(data, read_batch_header(data))]
    assert sorted(read) == [-(2**63), 2**63 - 1, *([2**63 - 1] if base_timestamp_ms == -1 else [])]


@pytest.mark.parametrize("delta", [-1, 2, 2**31, 2**63])
def test_an_offset_outside_of_its_batch_raises_a_wire_error(delta: int) -> None:
    data = batch_of((0, 0, b"k"), (0, delta, b"k"))
    with pytest.raises(WireError, match=f"offset delta {delta}, but its batch ends at 1"):
        split_records(data, read_batch_header(data))


def test_a_small_batch_that_decompresses_to_millions_of_records_is_refused_early() -> None:
    body = zlib.compress(encode_batch([NewRecord(key=None, value=None)], timestamp_ms=7)[61:] * 2_000_000, wbits=31)
    assert len(body) < 50_000
    with pytest.raises(WireError, match="does not contain the 1 records"):
        split_records(b"\0" * 61 + body, head_of_one_record(GZIP))
    with pytest.raises(WireError, match="at most 250000"):
        split_records(b"\0" * 61 + body, replace(head_of_one_record(GZIP), record_count=2_000_000))


@given(data=st.binary(max_size=200))
def test_any_bytes_after_a_header_are_records_or_raise_a_wire_error(data: bytes) -> None:
    with contextlib.suppress(WireError):
        split_records(b"\0" * 61 + data, head_of_one_record())


def head_of_one_record(attributes: int = 0) -> BatchHeader:
    return read_batch_header(packed_batch(attributes, bytes, [NewRecord(key=b"k", value=b"v")]))
