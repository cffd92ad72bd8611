"""The bytes of a group's committed offsets in `__consumer_offsets`, which Kafka calls OffsetCommit (key version 1,
value versions 0 to 4).

They are encoded as by Kafka 4.3: value version 4, or version 1 when a client requested a retention time.
"""

from sys import intern

from coterie.groups.classic.offset_messages import NO_LEADER_EPOCH, CommittedOffset, TopicId, TopicPartition
from coterie.nouns.errors import WireError
from coterie.nouns.ids import GroupId
from coterie.wire.primitives import Reader, Writer

OFFSET_KEY_VERSIONS = (0, 1)
"""The versions of the key of an offset. Brokers before 0.9 wrote version 0, with the same bytes."""
_VERSION_WITH_EXPIRY, _VERSION_FLEXIBLE = 1, 4
"""The version of values with an expiry time; the newest version, which has tagged fields."""
_LEADER_EPOCH_VERSION_MIN = 3
"""The first version of values with a leader epoch."""
_TOPIC_ID_TAG, _TOPIC_ID_SIZE = 0, 16


def encode_offset_key(group_id: GroupId, partition: TopicPartition) -> bytes:
    writer = Writer()
    writer.int16(OFFSET_KEY_VERSIONS[-1])
    writer.string(group_id)
    topic, partition_index = partition
    writer.string(topic)
    writer.int32(partition_index)
    return writer.getvalue()


def decode_offset_key(data: bytes) -> tuple[GroupId, TopicPartition]:
    """The group id and the partition in a record's key. The caller has checked that the key's version is one of
    `OFFSET_KEY_VERSIONS`.

    :raises WireError: when ``data`` is malformed.
    """
    reader = Reader(data)
    version = reader.int16()
    assert version in OFFSET_KEY_VERSIONS, "the caller has checked the version"
    group_id = GroupId(reader.string())
    # A load of a million offsets has only a few topics: each name is stored once.
    partition = TopicPartition(intern(reader.string()), reader.int32())
    reader.expect_end()
    return group_id, partition


def encode_offset_value(committed: CommittedOffset) -> bytes:
    """The value of a committed offset. With ``expires_at_ms`` it has version 1, which has no leader epoch and no topic
    id."""
    writer = Writer()
    if committed.expires_at_ms is not None:
        writer.int16(_VERSION_WITH_EXPIRY)
        writer.int64(committed.offset)
        writer.string(committed.metadata)
        writer.int64(committed.committed_at_ms)
        writer.int64(committed.expires_at_ms)
        return writer.getvalue()
    writer.int16(_VERSION_FLEXIBLE)
    writer.int64(committed.offset)
    writer.int32(committed.leader_epoch)
    writer.compact_string(committed.metadata)
    writer.int64(committed.committed_at_ms)
    if committed.topic_id is None:
        writer.no_tagged_fields()
    else:
        writer.uvarint(1)
        writer.uvarint(_TOPIC_ID_TAG)
        writer.uvarint(_TOPIC_ID_SIZE)
        writer.raw(committed.topic_id)
    return writer.getvalue()


def decode_offset_value(data: bytes) -> CommittedOffset:
    """The committed offset in a record's value. Fields that the value's version lacks have their defaults.

    :raises WireError: when ``data`` is malformed or its version is unknown.
    """
    reader = Reader(data)
    version = reader.int16()
    if not 0 <= version <= _VERSION_FLEXIBLE:
        raise WireError(
            f"the record of a committed offset has version {version}; the known versions are 0 to {_VERSION_FLEXIBLE}: "
            "a newer version of Coterie may have written it"
        )
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= _LEADER_EPOCH_VERSION_MIN else NO_LEADER_EPOCH
    metadata = reader.compact_string() if version == _VERSION_FLEXIBLE else reader.string()
    committed_at_ms = reader.int64()
    expires_at_ms = reader.int64() if version == _VERSION_WITH_EXPIRY else None
    topic_id = _read_topic_id(reader) if version == _VERSION_FLEXIBLE else None
    reader.expect_end()
    return CommittedOffset(
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        committed_at_ms=committed_at_ms,
        expires_at_ms=expires_at_ms,
        topic_id=topic_id,
    )


def _read_topic_id(reader: Reader) -> TopicId | None:
    """Read the tagged fields of a value of version 4; return the topic id, None if there is none."""
    topic_id = None
    for _ in range(reader.uvarint()):
        tag, data = reader.uvarint(), reader.raw(reader.uvarint())
        if tag == _TOPIC_ID_TAG:
            if len(data) != _TOPIC_ID_SIZE:
                raise WireError(
                    f"the topic id in the record of a committed offset has {len(data)} bytes; 16 are required: the "
                    "record is damaged"
                )
            topic_id = TopicId(data)
    return topic_id
