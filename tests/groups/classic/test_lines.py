"""Any record of a group as a line of its log."""

import pytest

from coterie.groups.classic.lines import decode_line, encode_line
from coterie.groups.classic.messages import GenerationWritten
from coterie.groups.classic.offset_messages import (
    CommittedOffset,
    GroupRemoved,
    OffsetRecord,
    OffsetRemoved,
    OffsetWritten,
)
from coterie.nouns.ids import Generation, GroupId, TopicPartition

GENERATION = GenerationWritten(
    protocol_type="connect", generation=Generation(1), protocol=None, leader=None, written_at_ms=1, members={}
)
OFFSET = OffsetWritten(partition=TopicPartition("t", 3), committed=CommittedOffset(offset=1, committed_at_ms=2))


@pytest.mark.parametrize(
    "record", [GENERATION, GroupRemoved(), OFFSET, OffsetRemoved(partition=TopicPartition("t", 3))]
)
def test_a_line_is_read_as_it_was_written(record: GenerationWritten | OffsetRecord) -> None:
    key, value = encode_line(GroupId("g"), record)
    assert decode_line(key, value) == (GroupId("g"), record)


def test_a_tombstone_has_the_key_of_what_it_removes() -> None:
    assert (
        encode_line(GroupId("g"), OFFSET)[0]
        == encode_line(GroupId("g"), OffsetRemoved(partition=TopicPartition("t", 3)))[0]
    )
    assert encode_line(GroupId("g"), GENERATION)[0] == encode_line(GroupId("g"), GroupRemoved())[0]


def test_lines_of_another_kind_are_somebody_elses() -> None:
    consumer_group_metadata = bytes.fromhex("0003 0001 67")
    assert decode_line(consumer_group_metadata, b"anything") is None
