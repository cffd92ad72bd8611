"""Batches taken apart and put together again: with every codec, as every client can still read them."""

import contextlib
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
from coterie.wire.batches import (
    BatchHead,
    NewRecord,
    check_crc,
    decode_records,
    encode_batch,
    read_head,
    with_append_time,
)
from coterie.wire.compression import GZIP, LZ4, SNAPPY, ZSTD, packed_gzip, unpacked
from coterie.wire.sifting import sifted, slices
from tests.wire.fuzzing import batch_of, with_codec

Pack = Callable[[bytes], bytes]

PLAIN = bytes(range(256)) * 40


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
def test_what_each_codec_packs_is_unpacked(codec: int, pack: Pack) -> None:
    assert unpacked(codec, pack(PLAIN), size_max=len(PLAIN)) == PLAIN


@pytest.mark.parametrize(("codec", "pack"), PACKED)
def test_more_than_the_limit_is_refused_before_it_is_unpacked(codec: int, pack: Pack) -> None:
    with pytest.raises(WireError, match="more than 9999 bytes"):
        unpacked(codec, pack(PLAIN), size_max=9_999)


@pytest.mark.parametrize(("codec", "pack"), PACKED)
@pytest.mark.parametrize("damage", [b"", b"\xff" * 30])
def test_damaged_bytes_are_a_peers_fault(codec: int, pack: Pack, damage: bytes) -> None:
    data = pack(PLAIN)
    with pytest.raises(WireError):
        # What a damaged stream still gives may be short; then it is no row of records.
        slices(b"\0" * 61 + data[: len(data) // 2] + damage, head_of_one_record(codec))


def test_an_unknown_codec_is_refused() -> None:
    with pytest.raises(WireError, match="number 6"):
        unpacked(6, b"", size_max=1)


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
def test_what_is_left_reads_as_it_did_before(records: list[NewRecord], keep: set[int], is_packed: bool) -> None:
    plain = encode_batch(records, timestamp_ms=7, base_offset=30)
    data = packed_batch(GZIP, lambda body: zlib.compress(body, wbits=31), records) if is_packed else plain
    head = read_head(data)
    before = decode_records(plain)
    found = slices(data, head)
    assert [(s.offset, s.timestamp_ms, s.key, s.is_tombstone) for s in found] == [
        (r.offset, r.timestamp_ms, r.key, r.value is None) for r in before
    ]
    after = sifted(data, head, [record for record in found if record.offset - 30 in keep])
    head_after = read_head(after)
    check_crc(after, 0, head_after)
    assert head_after.size_bytes == len(after)
    assert (head_after.base_offset, head_after.last_offset) == (head.base_offset, head.last_offset)
    assert slices(after, head_after) == [record for record in found if record.offset - 30 in keep]
    if not is_packed:
        assert decode_records(after) == [record for record in before if record.offset - 30 in keep]


@pytest.mark.parametrize("codec", [0, GZIP])
def test_the_greatest_timestamp_is_that_of_what_is_left(codec: int) -> None:
    plain = batch_of((0, 0, b"a"), (9, 1, b"b"), (4, 2, b"c"), (70, 3, b"d"), base_timestamp_ms=100)
    data = plain if codec == 0 else with_codec(plain, codec, packed_gzip(plain[61:]))
    head = read_head(data)
    found = slices(data, head)
    after = read_head(sifted(data, head, found[:3]))
    assert (after.base_timestamp_ms, after.max_timestamp_ms, after.record_count) == (100, 109, 3)
    assert (after.last_offset_delta, after.codec) == (3, codec)
    appended, head = with_append_time(data, head, 5_000)
    (kept, *_) = found = slices(appended, head)
    assert [record.timestamp_ms for record in found] == [5_000] * 4
    assert read_head(sifted(appended, head, [kept])).max_timestamp_ms == 5_000


@pytest.mark.parametrize("base_timestamp_ms", [0, 1_700_000_000_000, -1])
def test_a_timestamp_beyond_64_bits_is_a_peers_fault(base_timestamp_ms: int) -> None:
    deltas = (2**63, 2**63 - 1 - base_timestamp_ms, -(2**63) - 1 - base_timestamp_ms, -(2**63) - base_timestamp_ms)
    read: list[int] = []
    for delta in deltas:
        data = batch_of((delta, 0, b"k"), base_timestamp_ms=base_timestamp_ms)
        with contextlib.suppress(WireError):
            read += [record.timestamp_ms for record in slices(data, read_head(data))]
    assert sorted(read) == [-(2**63), 2**63 - 1, *([2**63 - 1] if base_timestamp_ms == -1 else [])]


@pytest.mark.parametrize("delta", [-1, 2, 2**31, 2**63])
def test_an_offset_outside_of_its_batch_is_a_peers_fault(delta: int) -> None:
    data = batch_of((0, 0, b"k"), (0, delta, b"k"))
    with pytest.raises(WireError, match=f"offset delta {delta}, but its batch ends at 1"):
        slices(data, read_head(data))


def test_a_small_batch_that_unpacks_to_millions_of_records_is_refused_early() -> None:
    body = zlib.compress(encode_batch([NewRecord(key=None, value=None)], timestamp_ms=7)[61:] * 2_000_000, wbits=31)
    assert len(body) < 50_000
    with pytest.raises(WireError, match="does not contain the 1 records"):
        slices(b"\0" * 61 + body, head_of_one_record(GZIP))
    with pytest.raises(WireError, match="at most 250000"):
        slices(b"\0" * 61 + body, replace(head_of_one_record(GZIP), record_count=2_000_000))


@given(data=st.binary(max_size=200))
def test_any_bytes_behind_a_head_are_records_or_a_peers_fault(data: bytes) -> None:
    with contextlib.suppress(WireError):
        slices(b"\0" * 61 + data, head_of_one_record())


def head_of_one_record(attributes: int = 0) -> BatchHead:
    return read_head(packed_batch(attributes, bytes, [NewRecord(key=b"k", value=b"v")]))
