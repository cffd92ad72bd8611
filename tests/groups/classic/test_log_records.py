"""Any record of a group as a key and value of its log."""

import pytest

from coterie.groups.classic.log_records import decode_record, encode_record
from coterie.groups.classic.messages import GenerationWritten
from coterie.groups.classic.offset_messages import (
    CommittedOffset,
    GroupRemoved,
    OffsetRecord,
    OffsetRemoved,
    OffsetWritten,
)
from coterie.nouns.ids import GenerationId, GroupId, TopicPartition

GENERATION = GenerationWritten(
    protocol_type="connect", generation=GenerationId(1), protocol=None, leader=None, written_at_ms=1, members={}
)
OFFSET = OffsetWritten(partition=TopicPartition("t", 3), committed_offset=CommittedOffset(offset=1, committed_at_ms=2))


@pytest.mark.parametrize(
    "record", [GENERATION, GroupRemoved(), OFFSET, OffsetRemoved(partition=TopicPartition("t", 3))]
)
def test_an_encoded_record_is_decoded_to_the_same_record(record: GenerationWritten | OffsetRecord) -> None:
    key, value = encode_record(GroupId("g"), record)
    assert decode_record(key, value) == (GroupId("g"), record)


def test_a_tombstone_has_the_key_of_the_record_that_it_removes() -> None:
    assert (
        encode_record(GroupId("g"), OFFSET)[0]
        == encode_record(GroupId("g"), OffsetRemoved(partition=TopicPartition("t", 3)))[0]
    )
    assert encode_record(GroupId("g"), GENERATION)[0] == encode_record(GroupId("g"), GroupRemoved())[0]


def test_a_record_of_another_kind_of_group_is_ignored() -> None:
    consumer_group_metadata = bytes.fromhex("0003 0001 67")
    assert decode_record(consumer_group_metadata, b"anything") is None
