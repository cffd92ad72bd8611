"""The bytes of stored offsets; the vectors are records that Apache Kafka 4.3.1 has written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.groups.classic.offset_messages import CommittedOffset, TopicId
from coterie.groups.classic.offset_records import (
    decode_offset_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from coterie.nouns.errors import WireError
from coterie.nouns.ids import GroupId, TopicPartition

KEY = "0001 000d 70726f62652d33303137646678 000c 70726f62652d333031376466 00000000"
LATEST = (
    "0004 0000000000000005 ffffffff 026d 000001a1fcec46d4 01 00 10 bbcc44a0bdbc4f30bf2420fdfda9db48",
    CommittedOffset(
        offset=5,
        metadata="m",
        committed_at_ms=0x01A1FCEC46D4,
        topic_id=TopicId(bytes.fromhex("bbcc44a0bdbc4f30bf2420fdfda9db48")),
    ),
)
WITH_EXPIRY = (
    "0001 0000000000000005 0001 6d 000001a1fcec47c1 000001a1fcf56f81",
    CommittedOffset(
        offset=5, metadata="m", committed_at_ms=0x01A1FCEC47C1, expires_at_ms=0x01A1FCEC47C1 + 600_000, topic_id=None
    ),
)
OLDER = [
    ("0000 0000000000000005 0001 6d 0000000000000007", -1),
    ("0002 0000000000000005 0001 6d 0000000000000007", -1),
    ("0003 0000000000000005 00000004 0001 6d 0000000000000007", 4),
]
INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.builds(
    CommittedOffset,
    offset=INT64,
    leader_epoch=st.integers(-(2**31), 2**31 - 1),
    metadata=st.text(max_size=9),
    committed_at_ms=INT64,
    topic_id=st.none() | st.binary(min_size=16, max_size=16).map(TopicId),
)


def test_an_encoded_key_equals_kafkas_bytes() -> None:
    key = encode_offset_key(GroupId("probe-3017dfx"), TopicPartition("probe-3017df", 0))
    assert key == bytes.fromhex(KEY)
    assert decode_offset_key(key) == (GroupId("probe-3017dfx"), TopicPartition("probe-3017df", 0))


@pytest.mark.parametrize(("data", "committed"), [LATEST, WITH_EXPIRY])
def test_an_encoded_value_equals_kafkas_bytes(data: str, committed: CommittedOffset) -> None:
    assert encode_offset_value(committed) == bytes.fromhex(data)
    assert decode_offset_value(bytes.fromhex(data)) == committed


@pytest.mark.parametrize(("data", "leader_epoch"), OLDER)
def test_values_of_older_brokers_are_decoded(data: str, leader_epoch: int) -> None:
    committed = CommittedOffset(offset=5, leader_epoch=leader_epoch, metadata="m", committed_at_ms=7)
    assert decode_offset_value(bytes.fromhex(data)) == committed


@given(OFFSETS)
def test_an_encoded_value_is_decoded_to_the_same_offset(committed: CommittedOffset) -> None:
    assert decode_offset_value(encode_offset_value(committed)) == committed


@given(OFFSETS, st.data())
def test_a_truncated_or_overlong_value_is_refused(committed: CommittedOffset, data: st.DataObject) -> None:
    whole = encode_offset_value(committed)
    with pytest.raises(WireError):
        decode_offset_value(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(WireError):
        decode_offset_value(whole + b"\0")


@given(st.integers(0, 5), st.binary(max_size=80))
def test_any_bytes_are_decoded_or_refused(version: int, data: bytes) -> None:
    try:
        decode_offset_value(version.to_bytes(2) + data)
    except WireError:
        return
    assert version <= 4
