"""What is asked about a group's offsets, what its log keeps of them, and what is answered; also of a group's end, since
it goes with its last offset."""

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
    """How far one partition has been consumed, with all that Kafka keeps beside it."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    """Of the last record that was consumed."""
    metadata: str = ""
    committed_at_ms: int
    expires_at_ms: int | None = None
    """None: when the group's offsets do. OffsetCommit v2-4 may ask for a time of its own."""
    topic_id: TopicId | None = None


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewOffset:
    """One partition of an OffsetCommit; its topic is known to be there."""

    partition: TopicPartition
    topic_id: TopicId | None
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    reply_to: ReplyTo
    member_id: MemberId
    """Empty for a consumer that is no member: one that assigns itself, or a tool."""
    instance_id: InstanceId | None
    generation: Generation
    """Negative for a consumer that is no member."""
    retention_ms: int | None
    offsets: tuple[NewOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetch:
    reply_to: ReplyTo
    partitions: tuple[TopicPartition, ...] | None
    """None asks for all that there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDelete:
    reply_to: ReplyTo
    partitions: tuple[TopicPartition, ...]
    """Their topics are known to be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    reply_to: ReplyTo


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """A topic is gone; offsets of it mean nothing any more, whoever is in the group."""

    topic: str


OffsetRequest: TypeAlias = OffsetCommit | OffsetFetch | OffsetDelete | DeleteGroup

# -- records: each is the whole of what is known about its key, so that only the last one of a key counts --------------


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
    """``error`` speaks of the whole request; otherwise each partition has its own code, in the request's order."""

    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    error: ErrorCode
    offsets: Mapping[TopicPartition, CommittedOffset]
    """Only partitions that have one; sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse:
    """As `OffsetCommitResponse`."""

    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupResponse:
    error: ErrorCode


OffsetResponse: TypeAlias = OffsetCommitResponse | OffsetFetchResponse | OffsetDeleteResponse | DeleteGroupResponse
