"""The bytes of a connect group's records: keys and values as in `docs/protocol/records`, with the record types of the
KIP-848 draft for Connect.

The version of a key is the type of its record, as in `__consumer_offsets`. There Kafka uses the versions from 3 on for
other kinds of groups, so connect groups have a separate topic. Every value has version 0. The fields that the draft
lacks are tagged fields.
"""

from collections.abc import Mapping
from dataclasses import replace

from coterie.groups.connect.messages import (
    ConfigsWritten,
    ConfiguredJobsWritten,
    CurrentAssignment,
    GroupRecord,
    MemberDeparted,
    MemberRecord,
    TargetWritten,
)
from coterie.groups.connect.record_structs import (
    read_assignors,
    read_configs,
    read_job_epochs,
    read_jobs,
    read_nullable_jobs,
    read_unplaceable_jobs,
    write_assignors,
    write_configs,
    write_job_epochs,
    write_jobs,
    write_nullable_jobs,
    write_unplaceable_jobs,
)
from coterie.nouns.connect_groups import ConfiguredJobs
from coterie.nouns.errors import WireError
from coterie.nouns.ids import ConfigOffset, GroupEpoch, InstanceId, LeaderEpoch, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.target_assignments import TargetOfMember, UnplaceableJobs
from coterie.wire.primitives import UUID_SIZE, Reader, Writer
from coterie.wire.tagged_fields import TaggedField, TaggedFieldsReader, TaggedFieldsWriter

VALUE_VERSION = 0
_NO_TIME = -1
"""The number for a time that is None."""
_NO_ERROR, _NO_METADATA_VERSION, _NO_METADATA = 0, 0, b""
"""The values of fields that only the draft has: a computation's error is in the record of the group, and the metadata
of an assignor in the record of the target."""


def _int32_field(tag: int) -> TaggedField[int]:
    return TaggedField(tag=tag, write=Writer.int32, read=Reader.int32, default=0)


def _string_field(tag: int) -> TaggedField[str]:
    return TaggedField(tag=tag, write=Writer.compact_string, read=Reader.compact_string, default="")


def _nullable_string_field(tag: int) -> TaggedField[str | None]:
    return TaggedField(tag=tag, write=Writer.compact_nullable_string, read=Reader.compact_nullable_string, default=None)


# -- 3: ConnectWorkerGroupMetadata -------------------------------------------------------------------------------------

_ASSIGNMENT_EPOCH = _int32_field(0)
_LEADER_ID = _nullable_string_field(1)
_GROUP_LEADER_EPOCH = _int32_field(2)
_UNPLACEABLE: TaggedField[tuple[UnplaceableJobs, ...]] = TaggedField(
    tag=3, write=write_unplaceable_jobs, read=read_unplaceable_jobs, default=()
)
_ASSIGNMENT_ERROR = _string_field(4)
_NEXT_AT_MS = TaggedField(tag=5, write=Writer.int64, read=Reader.int64, default=_NO_TIME)


def encode_group_record(record: GroupRecord) -> bytes:
    """The encoded value of ``record``; the version of its key is 3."""
    writer = _value_writer()
    writer.int32(record.group_epoch)
    tagged = TaggedFieldsWriter()
    tagged.add(_ASSIGNMENT_EPOCH, record.assignment_epoch)
    tagged.add(_LEADER_ID, record.leader)
    tagged.add(_GROUP_LEADER_EPOCH, record.leader_epoch)
    tagged.add(_UNPLACEABLE, record.unplaceable)
    tagged.add(_ASSIGNMENT_ERROR, record.assignment_error)
    tagged.add(_NEXT_AT_MS, _encode_nullable_time(record.next_at_ms))
    tagged.write_to(writer)
    return writer.getvalue()


def decode_group_record(data: bytes) -> GroupRecord:
    """The record of the group whose encoded value is ``data``.

    :raises WireError: when ``data`` is malformed or its version is unknown.
    """
    reader = _value_reader(data)
    group_epoch = GroupEpoch(reader.int32())
    tagged = TaggedFieldsReader(reader, last_known_field=_NEXT_AT_MS)
    reader.expect_end()
    leader = tagged.value(_LEADER_ID)
    return GroupRecord(
        group_epoch=group_epoch,
        assignment_epoch=GroupEpoch(tagged.value(_ASSIGNMENT_EPOCH)),
        leader=None if leader is None else MemberId(leader),
        leader_epoch=LeaderEpoch(tagged.value(_GROUP_LEADER_EPOCH)),
        unplaceable=tagged.value(_UNPLACEABLE),
        assignment_error=tagged.value(_ASSIGNMENT_ERROR),
        next_at_ms=_decode_nullable_time(tagged.value(_NEXT_AT_MS)),
    )


# -- 4: ConnectWorkerGroupConnectorsTasksMetadata ----------------------------------------------------------------------

_CONFIG_TOPIC_ID = TaggedField(tag=0, write=Writer.uuid, read=Reader.uuid, default=bytes(UUID_SIZE))
_CONFIG_OFFSET = TaggedField(tag=1, write=Writer.int64, read=Reader.int64, default=-1)
_CONFIGURED_LEADER_EPOCH = _int32_field(2)


def encode_configured_jobs(record: ConfiguredJobsWritten) -> bytes:
    """The encoded value of a `ConfiguredJobsWritten` record, whose key has version 4."""
    writer = _value_writer()
    writer.int32(record.group_epoch)
    write_jobs(writer, record.configured.jobs)
    tagged = TaggedFieldsWriter()
    tagged.add(_CONFIG_TOPIC_ID, record.config_topic_id)
    tagged.add(_CONFIG_OFFSET, record.configured.config_offset)
    tagged.add(_CONFIGURED_LEADER_EPOCH, record.leader_epoch)
    tagged.write_to(writer)
    return writer.getvalue()


def decode_configured_jobs(data: bytes) -> ConfiguredJobsWritten:
    """The `ConfiguredJobsWritten` record with the encoded value ``data``.

    :raises WireError: when ``data`` is malformed or its version is unknown.
    """
    reader = _value_reader(data)
    group_epoch = GroupEpoch(reader.int32())
    jobs = read_jobs(reader)
    tagged = TaggedFieldsReader(reader, last_known_field=_CONFIGURED_LEADER_EPOCH)
    reader.expect_end()
    return ConfiguredJobsWritten(
        group_epoch=group_epoch,
        config_topic_id=tagged.value(_CONFIG_TOPIC_ID),
        leader_epoch=LeaderEpoch(tagged.value(_CONFIGURED_LEADER_EPOCH)),
        configured=ConfiguredJobs(config_offset=ConfigOffset(tagged.value(_CONFIG_OFFSET)), jobs=jobs),
    )


# -- 5: ConnectWorkerGroupMemberMetadata -------------------------------------------------------------------------------

_JOINED_EPOCH = _int32_field(0)
_URL = _string_field(1)
_NAME = _string_field(2)
_REBALANCE_TIMEOUT_MS = _int32_field(3)
_SESSION_TIMEOUT_MS = _int32_field(4)
_CONNECTION_GRACE_MS = _int32_field(5)
_SERVER_ASSIGNOR = _nullable_string_field(6)
_CLAIMS = TaggedField(tag=7, write=write_nullable_jobs, read=read_nullable_jobs, default=None)
_DRAINING = TaggedField(tag=8, write=Writer.boolean, read=Reader.boolean, default=False)
_FORMER = TaggedField(tag=9, write=write_jobs, read=read_jobs, default=NO_JOBS)


def encode_member_record(record: MemberRecord) -> bytes:
    """The encoded value of ``record``; the version of its key is 5."""
    writer = _value_writer()
    writer.int32(record.group_epoch)
    writer.compact_nullable_string(record.instance_id)
    writer.compact_string(record.client_id)
    writer.compact_string(record.client_host)
    write_assignors(writer, record.client_assignors)
    tagged = TaggedFieldsWriter()
    tagged.add(_JOINED_EPOCH, record.joined_epoch)
    tagged.add(_URL, record.url)
    tagged.add(_NAME, record.name)
    tagged.add(_REBALANCE_TIMEOUT_MS, record.rebalance_timeout_ms)
    tagged.add(_SESSION_TIMEOUT_MS, record.session_timeout_ms)
    tagged.add(_CONNECTION_GRACE_MS, record.connection_grace_ms)
    tagged.add(_SERVER_ASSIGNOR, record.server_assignor)
    tagged.add(_CLAIMS, record.claims)
    tagged.add(_DRAINING, record.draining)
    tagged.add(_FORMER, record.former)
    tagged.write_to(writer)
    return writer.getvalue()


def decode_member_record(member_id: MemberId, data: bytes) -> MemberRecord:
    """The record of the member ``member_id``, which is in the record's key, from the encoded value ``data``.

    :raises WireError: when ``data`` is malformed or its version is unknown.
    """
    reader = _value_reader(data)
    group_epoch = GroupEpoch(reader.int32())
    instance_id = _read_instance_id(reader)
    client_id = reader.compact_string()
    client_host = reader.compact_string()
    client_assignors = read_assignors(reader)
    tagged = TaggedFieldsReader(reader, last_known_field=_FORMER)
    reader.expect_end()
    return MemberRecord(
        member_id=member_id,
        group_epoch=group_epoch,
        joined_epoch=GroupEpoch(tagged.value(_JOINED_EPOCH)),
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        url=WorkerUrl(tagged.value(_URL)),
        name=tagged.value(_NAME),
        rebalance_timeout_ms=tagged.value(_REBALANCE_TIMEOUT_MS),
        session_timeout_ms=tagged.value(_SESSION_TIMEOUT_MS),
        connection_grace_ms=tagged.value(_CONNECTION_GRACE_MS),
        server_assignor=tagged.value(_SERVER_ASSIGNOR),
        client_assignors=client_assignors,
        claims=tagged.value(_CLAIMS),
        draining=tagged.value(_DRAINING),
        former=tagged.value(_FORMER),
    )


# -- 6: ConnectWorkerGroupTargetAssignment -----------------------------------------------------------------------------


def encode_target(record: TargetWritten) -> bytes:
    """The encoded value of a `TargetWritten` record, whose key has version 6."""
    writer = _value_writer()
    writer.int32(record.assignment_epoch)
    writer.int8(_NO_ERROR)
    write_jobs(writer, record.target.jobs)
    writer.int16(record.target.version)
    writer.compact_bytes(record.target.metadata)
    writer.no_tagged_fields()
    return writer.getvalue()


def decode_target(member_id: MemberId, data: bytes) -> TargetWritten:
    """The `TargetWritten` record with the encoded value ``data``; the record's key contains ``member_id``.

    :raises WireError: when ``data`` is malformed or its version is unknown.
    """
    reader = _value_reader(data)
    assignment_epoch = GroupEpoch(reader.int32())
    reader.int8()
    target = TargetOfMember(jobs=read_jobs(reader), version=reader.int16(), metadata=reader.compact_bytes())
    reader.skip_tagged_fields()
    reader.expect_end()
    return TargetWritten(member_id=member_id, assignment_epoch=assignment_epoch, target=target)


# -- 7: ConnectWorkerGroupCurrentMemberAssignment ----------------------------------------------------------------------

_PREVIOUS_EPOCH = _int32_field(0)
_PENDING = TaggedField(tag=1, write=write_jobs, read=read_jobs, default=NO_JOBS)
_JOB_EPOCHS: TaggedField[Mapping[GroupEpoch, Jobs]] = TaggedField(
    tag=2, write=write_job_epochs, read=read_job_epochs, default={}
)
_REQUEST_NUMBER = TaggedField(tag=3, write=Writer.int64, read=Reader.int64, default=0)


def encode_current_assignment(record: CurrentAssignment) -> bytes:
    """The encoded value of a `CurrentAssignment` record, whose key has version 7."""
    writer = _value_writer()
    writer.int32(record.member_epoch)
    writer.int8(_NO_ERROR)
    write_jobs(writer, record.assigned)
    writer.int16(_NO_METADATA_VERSION)
    writer.compact_bytes(_NO_METADATA)
    tagged = TaggedFieldsWriter()
    tagged.add(_PREVIOUS_EPOCH, record.previous_epoch)
    tagged.add(_PENDING, record.pending)
    tagged.add(_JOB_EPOCHS, record.job_epochs)
    tagged.add(_REQUEST_NUMBER, record.request_number)
    tagged.write_to(writer)
    return writer.getvalue()


def decode_current_assignment(member_id: MemberId, data: bytes) -> CurrentAssignment:
    """The `CurrentAssignment` record with the encoded value ``data``; the record's key contains ``member_id``.

    :raises WireError: when ``data`` is malformed or its version is unknown.
    """
    reader = _value_reader(data)
    member_epoch = MemberEpoch(reader.int32())
    reader.int8()
    assigned = read_jobs(reader)
    reader.int16()
    reader.compact_bytes()
    tagged = TaggedFieldsReader(reader, last_known_field=_REQUEST_NUMBER)
    reader.expect_end()
    return CurrentAssignment(
        member_id=member_id,
        member_epoch=member_epoch,
        previous_epoch=MemberEpoch(tagged.value(_PREVIOUS_EPOCH)),
        assigned=assigned,
        pending=tagged.value(_PENDING),
        job_epochs=tagged.value(_JOB_EPOCHS),
        request_number=tagged.value(_REQUEST_NUMBER),
    )


# -- 8: ConnectWorkerGroupConfiguration --------------------------------------------------------------------------------


def encode_configs(record: ConfigsWritten) -> bytes:
    """The encoded value of a `ConfigsWritten` record, whose key has version 8."""
    writer = _value_writer()
    write_configs(writer, record.configs)
    writer.no_tagged_fields()
    return writer.getvalue()


def decode_configs(data: bytes) -> ConfigsWritten:
    """The `ConfigsWritten` record with the encoded value ``data``.

    :raises WireError: when ``data`` is malformed or its version is unknown.
    """
    reader = _value_reader(data)
    configs = read_configs(reader)
    reader.skip_tagged_fields()
    reader.expect_end()
    return ConfigsWritten(configs=configs)


# -- 9: ConnectWorkerGroupDepartedMember -------------------------------------------------------------------------------

_REASON = _string_field(0)


def encode_departed_member(record: MemberDeparted) -> bytes:
    """The encoded value of a `MemberDeparted` record, whose key has version 9."""
    writer = _value_writer()
    writer.compact_nullable_string(record.instance_id)
    writer.compact_string(record.url)
    write_jobs(writer, record.jobs)
    write_jobs(writer, record.held)
    writer.int64(record.held_until_ms)
    writer.int64(record.left_at_ms)
    writer.int64(_encode_nullable_time(record.deadline_ms))
    writer.int64(record.request_number)
    tagged = TaggedFieldsWriter()
    tagged.add(_REASON, record.reason)
    tagged.write_to(writer)
    return writer.getvalue()


def decode_departed_member(member_id: MemberId, data: bytes) -> MemberDeparted:
    """The `MemberDeparted` record with the encoded value ``data``; the record's key contains ``member_id``.

    :raises WireError: when ``data`` is malformed or its version is unknown.
    """
    reader = _value_reader(data)
    departed = MemberDeparted(
        member_id=member_id,
        instance_id=_read_instance_id(reader),
        url=WorkerUrl(reader.compact_string()),
        jobs=read_jobs(reader),
        held=read_jobs(reader),
        held_until_ms=reader.int64(),
        left_at_ms=reader.int64(),
        deadline_ms=_decode_nullable_time(reader.int64()),
        request_number=reader.int64(),
    )
    tagged = TaggedFieldsReader(reader, last_known_field=_REASON)
    reader.expect_end()
    return replace(departed, reason=tagged.value(_REASON))


# -- helpers -----------------------------------------------------------------------------------------------------------


def _value_writer() -> Writer:
    """A new writer for the value of a record. It has already written the version, with which every value begins."""
    writer = Writer()
    writer.int16(VALUE_VERSION)
    return writer


def _value_reader(data: bytes) -> Reader:
    """A reader for the value ``data`` of a record. It has already read the version, with which every value begins.

    :raises WireError: when the version is unknown.
    """
    reader = Reader(data)
    version = reader.int16()
    if version != VALUE_VERSION:
        raise WireError(
            f"the record of a connect group has version {version}; the only known version is {VALUE_VERSION}: a newer"
            " version of Coterie may have written it"
        )
    return reader


def _read_instance_id(reader: Reader) -> InstanceId | None:
    instance_id = reader.compact_nullable_string()
    return None if instance_id is None else InstanceId(instance_id)


def _encode_nullable_time(time_ms: int | None) -> int:
    """``time_ms`` as a number for a record: -1 (`_NO_TIME`) for None."""
    return _NO_TIME if time_ms is None else time_ms


def _decode_nullable_time(number: int) -> int | None:
    """The time for a ``number`` of a record: None for -1 (`_NO_TIME`)."""
    return None if number == _NO_TIME else number
