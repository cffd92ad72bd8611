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
from coterie.wire.batches import BatchHead, NewRecord, check_crc, decode_records, encode_batch, read_head
from coterie.wire.compression import GZIP, LZ4, SNAPPY, ZSTD, unpacked
from coterie.wire.sifting import sifted, slices

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


def test_a_small_batch_that_unpacks_to_millions_of_records_is_refused_early() -> None:
    body = zlib.compress(encode_batch([NewRecord(key=None, value=None)], timestamp_ms=7)[61:] * 2_000_000, wbits=31)
    assert len(body) < 50_000
    with pytest.raises(WireError, match="does not hold the 1 records"):
        slices(b"\0" * 61 + body, head_of_one_record(GZIP))
    with pytest.raises(WireError, match="at most 250000"):
        slices(b"\0" * 61 + body, replace(head_of_one_record(GZIP), record_count=2_000_000))


@given(data=st.binary(max_size=200))
def test_any_bytes_behind_a_head_are_records_or_a_peers_fault(data: bytes) -> None:
    with contextlib.suppress(WireError):
        slices(b"\0" * 61 + data, head_of_one_record())


def head_of_one_record(attributes: int = 0) -> BatchHead:
    return read_head(packed_batch(attributes, bytes, [NewRecord(key=b"k", value=b"v")]))
