"""The bytes of a stored group, field by field in Kafka's layout."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.groups.classic.messages import GenerationWritten, StoredMember
from coterie.groups.classic.records import (
    decode_generation,
    decode_generation_key,
    encode_generation,
    encode_generation_key,
)
from coterie.nouns.errors import WireError
from coterie.nouns.ids import GenerationId, GroupId, InstanceId, MemberId

INT32 = st.integers(0, 2**31 - 1)
MEMBERS = st.builds(
    StoredMember,
    client_id=st.text(max_size=9),
    client_host=st.text(max_size=9),
    session_timeout_ms=INT32,
    rebalance_timeout_ms=INT32,
    subscription=st.binary(max_size=30),
    assignment=st.binary(max_size=30),
    instance_id=st.none() | st.text(max_size=9).map(InstanceId),
)
MEMBER_IDS = st.text(max_size=9).map(MemberId)
RECORDS = st.builds(
    GenerationWritten,
    protocol_type=st.text(max_size=9),
    generation=INT32.map(GenerationId),
    protocol=st.none() | st.text(max_size=9),
    leader=st.none() | MEMBER_IDS,
    written_at_ms=st.integers(-1, 2**63 - 1),
    members=st.dictionaries(MEMBER_IDS, MEMBERS, max_size=4),
)


def test_the_bytes_are_those_of_group_metadata() -> None:
    record = GenerationWritten(
        protocol_type="connect",
        generation=GenerationId(5),
        protocol="v1",
        leader=MemberId("m1"),
        written_at_ms=1_000,
        members={
            MemberId("m1"): StoredMember(
                client_id="c",
                client_host="/h",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=60_000,
                subscription=b"S",
                assignment=b"AA",
            ),
            MemberId("m2"): StoredMember(
                client_id="",
                client_host="",
                session_timeout_ms=1,
                rebalance_timeout_ms=2,
                subscription=b"",
                assignment=b"",
                instance_id=InstanceId("i"),
            ),
        },
    )
    assert encode_generation_key(GroupId("g")).hex(" ") == "00 02 00 01 67"
    assert encode_generation(record) == bytes.fromhex(
        "0003 0007636f6e6e656374 00000005 00027631 00026d31 00000000000003e8 00000002"
        "00026d31 ffff 000163 00022f68 0000ea60 00002710 0000000153 000000024141"
        "00026d32 000169 0000 0000 00000002 00000001 00000000 00000000"
    )


@given(RECORDS)
def test_an_encoded_record_is_decoded_to_the_same_generation(record: GenerationWritten) -> None:
    decoded = decode_generation(encode_generation(record))
    assert decoded == record
    assert list(decoded.members) == list(record.members), "in the same order, too"


@given(st.text(max_size=20).map(GroupId))
def test_a_key_contains_its_group_id(group_id: GroupId) -> None:
    assert decode_generation_key(encode_generation_key(group_id)) == group_id


def test_the_key_of_an_offset_is_ignored() -> None:
    assert decode_generation_key(bytes.fromhex("0001 0001 67 0001 74 00000000")) is None


@given(RECORDS, st.data())
def test_a_truncated_or_overlong_record_is_refused(record: GenerationWritten, data: st.DataObject) -> None:
    whole = encode_generation(record)
    with pytest.raises(WireError):
        decode_generation(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(WireError):
        decode_generation(whole + b"\0")


@given(st.binary(max_size=80))
def test_any_bytes_of_group_metadata_are_decoded_or_refused(data: bytes) -> None:
    try:
        decode_generation(b"\0\x03" + data)
    except WireError:
        return
