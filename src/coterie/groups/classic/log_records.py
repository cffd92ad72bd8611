"""Encodes and decodes a group's records of all kinds as key and value in `__consumer_offsets`. The value None is a
tombstone."""

from coterie.groups.classic.messages import GenerationWritten
from coterie.groups.classic.offset_messages import (
    GroupRemoved,
    OffsetRecord,
    OffsetRemoved,
    OffsetWritten,
    PendingOffsetWritten,
)
from coterie.groups.classic.offset_records import (
    OFFSET_KEY_VERSIONS,
    decode_offset_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
)
from coterie.groups.classic.records import (
    decode_generation,
    decode_generation_key,
    encode_generation,
    encode_generation_key,
)
from coterie.nouns.ids import GroupId
from coterie.wire.primitives import Reader


def encode_record(group_id: GroupId, record: GenerationWritten | OffsetRecord) -> tuple[bytes, bytes | None]:
    """The key and the value of ``record`` in the log; the value of a tombstone is None."""
    match record:
        case GenerationWritten():
            return encode_generation_key(group_id), encode_generation(record)
        case GroupRemoved():
            return encode_generation_key(group_id), None
        case (
            OffsetWritten(partition=partition, committed_offset=committed)
            | PendingOffsetWritten(partition=partition, committed_offset=committed)
        ):
            # The batch of a pending offset has its producer and transaction; the record itself is like any other.
            return encode_offset_key(group_id, partition), encode_offset_value(committed)
        case OffsetRemoved(partition=partition):
            return encode_offset_key(group_id, partition), None


def decode_record(key: bytes, value: bytes | None) -> tuple[GroupId, GenerationWritten | OffsetRecord] | None:
    """The group id and the record of one key and value; a value None gives the tombstone. None when the key is of a
    kind that Coterie does not write. An offset is always returned as `OffsetWritten`: that it is pending in a
    transaction follows only from the header of its batch.

    :raises WireError: when key or value is malformed, or the version of the value is unknown.
    """
    if Reader(key).int16() in OFFSET_KEY_VERSIONS:
        group_id, partition = decode_offset_key(key)
        if value is None:
            return group_id, OffsetRemoved(partition=partition)
        return group_id, OffsetWritten(partition=partition, committed_offset=decode_offset_value(value))
    generation_group_id = decode_generation_key(key)
    if generation_group_id is None:
        return None
    return generation_group_id, GroupRemoved() if value is None else decode_generation(value)
