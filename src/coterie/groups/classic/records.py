"""The bytes of a group's generations in `__consumer_offsets`, which Kafka calls GroupRecord (key version 2, value
version 3).

Unlike in Kafka, a value with members may have a null protocol: it is a generation in which no member has an assignment
yet (see `GenerationWritten`). Kafka writes a null protocol for empty groups only.
"""

from coterie.groups.classic.messages import GenerationWritten, StoredMember
from coterie.nouns.errors import WireError
from coterie.nouns.ids import GenerationId, GroupId, InstanceId, MemberId
from coterie.wire.primitives import Reader, Writer

GENERATION_KEY_VERSION = 2
GENERATION_VALUE_VERSION = 3
_MEMBER_SIZE_MIN = 2 + 2 + 2 + 2 + 4 + 4 + 4 + 4
"""The size in bytes of a member whose strings and byte fields are empty: a limit for the number of members in a
value."""


def encode_generation_key(group_id: GroupId) -> bytes:
    """The key of the records of a group's generations."""
    writer = Writer()
    writer.int16(GENERATION_KEY_VERSION)
    writer.string(group_id)
    return writer.getvalue()


def decode_generation_key(data: bytes) -> GroupId | None:
    """The group id in a record's key; None when the key is not of version `GENERATION_KEY_VERSION` (offsets have
    versions 0 and 1).

    :raises WireError: when ``data`` is malformed.
    """
    reader = Reader(data)
    if reader.int16() != GENERATION_KEY_VERSION:
        return None
    group_id = GroupId(reader.string())
    reader.expect_end()
    return group_id


def encode_generation(record: GenerationWritten) -> bytes:
    writer = Writer()
    writer.int16(GENERATION_VALUE_VERSION)
    writer.string(record.protocol_type)
    writer.int32(record.generation)
    writer.nullable_string(record.protocol)
    writer.nullable_string(record.leader)
    writer.int64(record.written_at_ms)
    writer.array_count(len(record.members))
    for member_id, member in record.members.items():
        writer.string(member_id)
        writer.nullable_string(member.instance_id)
        writer.string(member.client_id)
        writer.string(member.client_host)
        writer.int32(member.rebalance_timeout_ms)
        writer.int32(member.session_timeout_ms)
        writer.bytes_(member.subscription)
        writer.bytes_(member.assignment)
    return writer.getvalue()


def decode_generation(data: bytes) -> GenerationWritten:
    """The generation in a record's value.

    :raises WireError: when ``data`` is malformed or its version is not `GENERATION_VALUE_VERSION`.
    """
    reader = Reader(data)
    version = reader.int16()
    if version != GENERATION_VALUE_VERSION:
        raise WireError(
            f"the record of a group's generation has version {version}; the only known version is "
            f"{GENERATION_VALUE_VERSION}: another version of Coterie may have written it"
        )
    protocol_type = reader.string()
    generation = GenerationId(reader.int32())
    protocol = reader.nullable_string()
    leader = reader.nullable_string()
    written_at_ms = reader.int64()
    members = dict(reader.array(lambda: _read_member(reader), element_size_min=_MEMBER_SIZE_MIN))
    reader.expect_end()
    return GenerationWritten(
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol,
        leader=MemberId(leader) if leader is not None else None,
        written_at_ms=written_at_ms,
        members=members,
    )


def _read_member(reader: Reader) -> tuple[MemberId, StoredMember]:
    """Read one member of a generation; returns its member id, and the rest of it."""
    member_id = MemberId(reader.string())
    instance_id = reader.nullable_string()
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout_ms = reader.int32()
    session_timeout_ms = reader.int32()
    return member_id, StoredMember(
        client_id=client_id,
        client_host=client_host,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_ms,
        subscription=reader.bytes_(),
        assignment=reader.bytes_(),
        instance_id=InstanceId(instance_id) if instance_id is not None else None,
    )
