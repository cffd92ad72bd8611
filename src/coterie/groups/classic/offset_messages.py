"""The requests, records and responses for a group's offsets; also for the removal of a group, because a group without
members is removed with its last offset."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType, TypeAlias

from coterie.nouns.ids import Generation, InstanceId, MemberId, ReplyTo
from coterie.nouns.ids import TopicPartition as TopicPartition
from coterie.wire.errors import ErrorCode

TopicId = NewType("TopicId", bytes)
"""16 bytes (KIP-516)."""

NO_LEADER_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """How far one partition has been consumed, with all fields that Kafka stores beside the offset."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    """The leader epoch of the last consumed record."""
    metadata: str = ""
    committed_at_ms: int
    expires_at_ms: int | None = None
    """None: the group's retention applies. OffsetCommit v2-4 may specify a retention time."""
    topic_id: TopicId | None = None


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOffset:
    """One partition of an OffsetCommit; the broker has checked that its topic exists."""

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
    generation: Generation
    """Negative for a client that is not a member."""
    retention_ms: int | None
    offsets: tuple[NewOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetch:
    reply_to: ReplyTo
    partitions: tuple[TopicPartition, ...] | None
    """None requests all partitions with a committed offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDelete:
    reply_to: ReplyTo
    partitions: tuple[TopicPartition, ...]
    """The broker has checked that their topics exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    reply_to: ReplyTo


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """A topic was deleted: its offsets are invalid and are removed, regardless of the group's members."""

    topic: str


OffsetRequest: TypeAlias = OffsetCommit | OffsetFetch | OffsetDelete | DeleteGroup

# -- records: each contains the whole state of its key, so that only the last record of a key counts ------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetWritten:
    partition: TopicPartition
    committed: CommittedOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRemoved:
    """Deleted or expired: a tombstone."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRemoved:
    """The tombstone of the group itself; its offsets have their own."""


OffsetRecord: TypeAlias = OffsetWritten | OffsetRemoved | GroupRemoved

# -- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    """``error`` concerns the whole request. If it is NONE, ``errors`` has the code of each partition, in the request's
    order."""

    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    error: ErrorCode
    offsets: Mapping[TopicPartition, CommittedOffset]
    """Only partitions with a committed offset; sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse:
    """The fields are as in `OffsetCommitResponse`."""

    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupResponse:
    error: ErrorCode


OffsetResponse: TypeAlias = OffsetCommitResponse | OffsetFetchResponse | OffsetDeleteResponse | DeleteGroupResponse
