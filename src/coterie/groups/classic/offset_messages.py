"""The requests, records and responses for a group's committed offsets, and those for the removal of the group: a group
that has neither members nor offsets is removed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType, TypeAlias

from coterie.groups.transaction_messages import ProducerIdAndEpoch
from coterie.nouns.ids import GenerationId, InstanceId, MemberId, ReplyTo
from coterie.nouns.ids import TopicPartition as TopicPartition
from coterie.wire.errors import ErrorCode

TopicId = NewType("TopicId", bytes)
"""The id of a topic: 16 bytes (KIP-516)."""

NO_LEADER_EPOCH = -1
"""The client has sent no leader epoch, or the log does not contain it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """How far one partition has been consumed, with all fields that Kafka stores beside the offset."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    """The leader epoch of the last consumed record."""
    metadata: str = ""
    """Text that the client has committed with the offset."""
    committed_at_ms: int
    expires_at_ms: int | None = None
    """When the offset expires, if the client requested a retention time (OffsetCommit v2 to v4). None: the offset
    expires by `ClassicGroupSettings.offsets_retention_ms`."""
    topic_id: TopicId | None = None
    """None if the client requested a retention time, or if the log's value is of a version without topic ids."""


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOffset:
    """The offset of one partition in an OffsetCommit or a TxnOffsetCommit. The broker has checked that the topic
    exists."""

    partition: TopicPartition
    topic_id: TopicId | None
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    reply_to: ReplyTo
    member_id: MemberId
    """Empty for a client that is not a member: a consumer that assigns its partitions itself, or a tool."""
    instance_id: InstanceId | None
    generation: GenerationId
    """Negative for a client that is not a member."""
    retention_ms: int | None
    """The retention time that the client requests (v2 to v4), from the commit on; None: that of the settings."""
    offsets: tuple[NewOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommit:
    """Commits offsets as a part of a transaction (KIP-98, KIP-447): they count from the commit of the transaction on.
    The broker has checked that the transaction is open."""

    reply_to: ReplyTo
    producer: ProducerIdAndEpoch
    """The producer of the transaction."""
    member_id: MemberId
    """Empty when no member is to be checked: the client sends no member id (before v3 it cannot), or the group is a
    connect group, whose member the broker has checked already."""
    instance_id: InstanceId | None
    generation: GenerationId
    """Negative for a client that does not send its generation."""
    offsets: tuple[NewOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetch:
    reply_to: ReplyTo
    partitions: tuple[TopicPartition, ...] | None
    """None requests all partitions that have a committed offset."""
    requires_stable: bool = False
    """Whether a partition with a pending offset gets UNSTABLE_OFFSET_COMMIT instead of its committed offset
    (KIP-447)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDelete:
    reply_to: ReplyTo
    partitions: tuple[TopicPartition, ...]
    """The broker has checked that the topics exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Deletes the group with its offsets; refused if it has members."""

    reply_to: ReplyTo


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """A topic was deleted. The group's offsets of this topic are invalid and are removed, also while members read the
    topic."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnded:
    """The marker of a producer's transaction is in the log of groups: the pending offsets of this transaction are
    committed or dropped. The coordinator of the transaction writes the marker, so a step never returns it as a
    record. The reader of the log evaluates markers itself: this message reaches only a loaded group."""

    producer_id: int
    is_commit: bool


OffsetRequest: TypeAlias = OffsetCommit | TxnOffsetCommit | OffsetFetch | OffsetDelete | DeleteGroup

# -- records: each contains the whole state of its key, so that only the last record of a key counts ------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetWritten:
    partition: TopicPartition
    committed_offset: CommittedOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOffsetWritten:
    """An offset that is committed as a part of a transaction: written in a batch of that transaction, and pending until
    its marker."""

    producer: ProducerIdAndEpoch
    partition: TopicPartition
    committed_offset: CommittedOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRemoved:
    """The tombstone of a partition's offset, which was deleted or has expired."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRemoved:
    """The tombstone of the group's generation. Each offset has its own tombstone."""


OffsetRecord: TypeAlias = OffsetWritten | PendingOffsetWritten | OffsetRemoved | GroupRemoved

# -- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    """``error`` concerns the whole request. If it is NONE, ``partition_errors`` has the code of each partition, in the
    request's order; otherwise ``partition_errors`` is empty."""

    error: ErrorCode
    partition_errors: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    error: ErrorCode
    offsets: Mapping[TopicPartition, CommittedOffset]
    """The requested partitions that have a committed offset, in the request's order; sorted by partition if all
    partitions were requested."""
    unstable_partitions: frozenset[TopicPartition] = frozenset()
    """The requested partitions that have a pending offset, if the request requires stable offsets: their error code is
    UNSTABLE_OFFSET_COMMIT."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse:
    """``error`` concerns the whole request. If it is NONE, ``partition_errors`` has the code of each partition, in the
    request's order; otherwise ``partition_errors`` is empty."""

    error: ErrorCode
    partition_errors: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupResponse:
    error: ErrorCode


OffsetResponse: TypeAlias = OffsetCommitResponse | OffsetFetchResponse | OffsetDeleteResponse | DeleteGroupResponse
