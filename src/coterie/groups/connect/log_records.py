"""Encodes and decodes a connect group's records of all kinds as key and value. The value None is a tombstone."""

from collections.abc import Callable, Mapping
from enum import IntEnum

from coterie.groups.connect.messages import (
    ConfigsRemoved,
    ConfigsWritten,
    ConfiguredJobsRemoved,
    ConfiguredJobsWritten,
    CurrentAssignment,
    CurrentAssignmentRemoved,
    DepartedMemberRemoved,
    GroupRecord,
    GroupRemoved,
    MemberDeparted,
    MemberRecord,
    MemberRemoved,
    Record,
    TargetRemoved,
    TargetWritten,
)
from coterie.groups.connect.records import (
    decode_configs,
    decode_configured_jobs,
    decode_current_assignment,
    decode_departed_member,
    decode_group_record,
    decode_member_record,
    decode_target,
    encode_configs,
    encode_configured_jobs,
    encode_current_assignment,
    encode_departed_member,
    encode_group_record,
    encode_member_record,
    encode_target,
)
from coterie.nouns.ids import GroupId, MemberId
from coterie.wire.primitives import Reader, Writer


class KeyVersion(IntEnum):
    """The versions of the keys in the log of connect groups: each version is one type of record."""

    GROUP = 3
    CONFIGURED = 4
    MEMBER = 5
    TARGET = 6
    CURRENT = 7
    CONFIGS = 8
    DEPARTED = 9


_DECODER_AND_TOMBSTONE_BY_GROUP_KEY_VERSION: Mapping[int, tuple[Callable[[bytes], Record], Record]] = {
    KeyVersion.GROUP: (decode_group_record, GroupRemoved()),
    KeyVersion.CONFIGURED: (decode_configured_jobs, ConfiguredJobsRemoved()),
    KeyVersion.CONFIGS: (decode_configs, ConfigsRemoved()),
}
"""By the version of a key that contains the group id only: the decoder of the value, and the tombstone."""
_DECODER_AND_TOMBSTONE_BY_MEMBER_KEY_VERSION: Mapping[
    int, tuple[Callable[[MemberId, bytes], Record], Callable[[MemberId], Record]]
] = {
    KeyVersion.MEMBER: (decode_member_record, lambda member_id: MemberRemoved(member_id=member_id)),
    KeyVersion.TARGET: (decode_target, lambda member_id: TargetRemoved(member_id=member_id)),
    KeyVersion.CURRENT: (decode_current_assignment, lambda member_id: CurrentAssignmentRemoved(member_id=member_id)),
    KeyVersion.DEPARTED: (decode_departed_member, lambda member_id: DepartedMemberRemoved(member_id=member_id)),
}
"""By the version of a key that contains the group id and a member id: the decoder of the value, and the class of the
tombstone."""


def encode_record(group_id: GroupId, record: Record) -> tuple[bytes, bytes | None]:
    """The key and the value of ``record`` in the log; the value of a tombstone is None."""
    match record:
        case CurrentAssignment(member_id=member_id):
            return _encode_key(KeyVersion.CURRENT, group_id, member_id), encode_current_assignment(record)
        case TargetWritten(member_id=member_id):
            return _encode_key(KeyVersion.TARGET, group_id, member_id), encode_target(record)
        case GroupRecord():
            return _encode_key(KeyVersion.GROUP, group_id), encode_group_record(record)
        case MemberRecord(member_id=member_id):
            return _encode_key(KeyVersion.MEMBER, group_id, member_id), encode_member_record(record)
        case MemberDeparted(member_id=member_id):
            return _encode_key(KeyVersion.DEPARTED, group_id, member_id), encode_departed_member(record)
        case ConfiguredJobsWritten():
            return _encode_key(KeyVersion.CONFIGURED, group_id), encode_configured_jobs(record)
        case ConfigsWritten():
            return _encode_key(KeyVersion.CONFIGS, group_id), encode_configs(record)
        case _:
            return _tombstone_key(group_id, record), None


def decode_record(key: bytes, value: bytes | None) -> tuple[GroupId, Record] | None:
    """The group id and the record of one key and value. For the value None, the record is a tombstone. None when the
    key has a type that Coterie does not write.

    :raises WireError: when key or value is malformed, or the version of the value is unknown.
    """
    reader = Reader(key)
    version = reader.int16()
    if version in _DECODER_AND_TOMBSTONE_BY_GROUP_KEY_VERSION:
        group_id = GroupId(reader.string())
        reader.expect_end()
        decode, removed = _DECODER_AND_TOMBSTONE_BY_GROUP_KEY_VERSION[version]
        return group_id, removed if value is None else decode(value)
    if version in _DECODER_AND_TOMBSTONE_BY_MEMBER_KEY_VERSION:
        group_id, member_id = GroupId(reader.string()), MemberId(reader.string())
        reader.expect_end()
        decode_of_member, removed_of_member = _DECODER_AND_TOMBSTONE_BY_MEMBER_KEY_VERSION[version]
        return group_id, removed_of_member(member_id) if value is None else decode_of_member(member_id, value)
    return None


def _tombstone_key(
    group_id: GroupId,
    record: (
        GroupRemoved
        | ConfiguredJobsRemoved
        | MemberRemoved
        | TargetRemoved
        | CurrentAssignmentRemoved
        | ConfigsRemoved
        | DepartedMemberRemoved
    ),
) -> bytes:
    """The key of the record that the tombstone ``record`` removes."""
    match record:
        case GroupRemoved():
            return _encode_key(KeyVersion.GROUP, group_id)
        case ConfiguredJobsRemoved():
            return _encode_key(KeyVersion.CONFIGURED, group_id)
        case ConfigsRemoved():
            return _encode_key(KeyVersion.CONFIGS, group_id)
        case MemberRemoved(member_id=member_id):
            return _encode_key(KeyVersion.MEMBER, group_id, member_id)
        case TargetRemoved(member_id=member_id):
            return _encode_key(KeyVersion.TARGET, group_id, member_id)
        case CurrentAssignmentRemoved(member_id=member_id):
            return _encode_key(KeyVersion.CURRENT, group_id, member_id)
        case DepartedMemberRemoved(member_id=member_id):
            return _encode_key(KeyVersion.DEPARTED, group_id, member_id)


def _encode_key(version: KeyVersion, *ids: str) -> bytes:
    """The key with this version and these ids: the group id and, in the key of a member's record, the member id."""
    writer = Writer()
    writer.int16(version)
    for each in ids:
        writer.string(each)
    return writer.getvalue()
