"""Record batches: encoded and decoded, compared with kio's reader, and damaged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch

from coterie.nouns.errors import WireError
from coterie.wire.batches import (
    BATCH_HEADER_SIZE,
    NewRecord,
    check_produced_batch,
    decode_uncompressed_records_without_control,
    encode_batch,
    encode_transaction_marker,
    iter_whole_batch_headers,
    with_base_offset_and_leader_epoch,
    with_log_append_time,
)

NOW_MS = 1_700_000_000_000
THREE = encode_batch([NewRecord(key=b"k%d" % i, value=b"v" * i) for i in range(3)], timestamp_ms=NOW_MS)

keys = st.none() | st.binary(max_size=40)
new_records = st.lists(
    st.builds(NewRecord, key=keys, value=keys, headers=st.lists(st.tuples(st.text(max_size=5), keys), max_size=3)),
    min_size=1,
    max_size=20,
)


@given(new_records, st.integers(0, 2**62), st.integers(0, 2**41))
def test_records_are_unchanged_by_encoding_and_decoding(
    records: list[NewRecord], base_offset: int, timestamp_ms: int
) -> None:
    batch = with_base_offset_and_leader_epoch(encode_batch(records, timestamp_ms=timestamp_ms), base_offset)
    check_produced_batch(batch)
    read = decode_uncompressed_records_without_control(batch)
    assert [(r.key, r.value, list(r.headers)) for r in read] == [(r.key, r.value, list(r.headers)) for r in records]
    assert [r.offset for r in read] == list(range(base_offset, base_offset + len(records)))
    assert {r.timestamp_ms for r in read} == {timestamp_ms}


def test_another_implementation_reads_our_batches() -> None:
    batch, size = read_batch(with_base_offset_and_leader_epoch(THREE, 40, leader_epoch=2), 0)
    assert size == len(THREE)
    assert (batch.base_offset, batch.partition_leader_epoch, batch.last_offset_delta) == (40, 2, 2)
    assert [record.key for record in batch.records] == [b"k0", b"k1", b"k2"]


def test_setting_the_base_offset_changes_no_byte_that_the_crc_covers() -> None:
    placed = with_base_offset_and_leader_epoch(THREE, 1000, leader_epoch=3)
    assert placed[21:] == THREE[21:]
    head = check_produced_batch(placed)
    assert (head.base_offset, head.last_offset, head.max_timestamp_ms) == (1000, 1002, NOW_MS)


@pytest.mark.parametrize("is_commit", [True, False])
def test_another_implementation_reads_our_markers(is_commit: bool) -> None:
    marker = encode_transaction_marker(producer_id=4, producer_epoch=4, is_commit=is_commit, timestamp_ms=NOW_MS)
    batch, _ = read_batch(marker, 0)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (4, 4, -1)
    assert batch.attributes == 0x30
    (record,) = batch.records
    assert record.key == (b"\0\0\0\1" if is_commit else b"\0\0\0\0")
    assert check_produced_batch(marker).is_control
    assert decode_uncompressed_records_without_control(marker) == []


def test_a_marker_has_the_same_bytes_as_kafkas() -> None:
    # Written by Apache Kafka 4.3.1.
    kafkas = bytes.fromhex(
        "0000000000000000000000420000000002a793615c0030000000000000"
        "01a1fcecbe49000001a1fcecbe4900000000000000040004ffffffff00000001"
        "2000000008000000010c00000000000000"
    )
    ours = encode_transaction_marker(producer_id=4, producer_epoch=4, is_commit=True, timestamp_ms=0x01A1FCECBE49)
    assert ours == kafkas


def test_the_log_append_time_is_written_into_the_batch() -> None:
    head = check_produced_batch(THREE)
    stamped, stamped_head = with_log_append_time(THREE, head, NOW_MS + 5)
    assert check_produced_batch(stamped) == stamped_head
    assert {record.timestamp_ms for record in decode_uncompressed_records_without_control(stamped)} == {NOW_MS + 5}
    assert [record.key for record in decode_uncompressed_records_without_control(stamped)] == [b"k0", b"k1", b"k2"]


def test_an_incomplete_batch_at_the_end_of_a_fetch_is_ignored() -> None:
    row = THREE + with_base_offset_and_leader_epoch(THREE, 3)
    assert [head.base_offset for _, head in iter_whole_batch_headers(row)] == [0, 3]
    assert [head.base_offset for _, head in iter_whole_batch_headers(row[:-1])] == [0]
    assert len(decode_uncompressed_records_without_control(row[:-1])) == 3
    assert list(iter_whole_batch_headers(row[: BATCH_HEADER_SIZE - 1])) == []


def edited(at: int, raw: bytes) -> bytes:
    return THREE[:at] + raw + THREE[at + len(raw) :]


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (b"", "no complete header"),
        (THREE[:60], "no complete header"),
        (THREE[:-1], "are left"),
        (THREE + b"\0", "follow the one batch"),
        (THREE + THREE, "follow the one batch"),
        (edited(8, b"\x7f\xff\xff\xff"), "are left"),
        (edited(8, b"\xff\xff\xff\xff"), "states magic 2 and 11 bytes"),
        (edited(16, b"\x01"), "magic 1"),
        (edited(70, b"\xee"), "CRC"),
        (edited(57, b"\x7f\xff\xff\xff"), "offset delta"),
        (edited(23, b"\x7f\xff\xff\xfe") [:57] + b"\x7f\xff\xff\xff" + THREE[61:], "records"),
        (edited(57, b"\xff\xff\xff\xff"), "records"),
    ],
)  # fmt: skip
def test_an_invalid_batch_is_refused(batch: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        check_produced_batch(batch)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (check_produced_batch, decode_uncompressed_records_without_control):
        try:
            read(data)
        except WireError:
            continue
