"""The messages of the coordinator of one transactional id: its events, records and effects.

Independent of API versions, as `messages` is. A transaction's coordinator and its partitions are on one disk here, so
the decision and the markers that publish it to readers are one output and become durable together. So Kafka's states
between Ongoing and Complete, in which markers are being sent, do not exist here.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from coterie.nouns.ids import TopicPartition as TopicPartition
from coterie.wire.batches import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from coterie.wire.errors import ErrorCode

EPOCH_MAX = 2**15 - 2
"""The greatest epoch that a producer gets: the next one is reserved for the markers that fence the producer."""


class Identity(NamedTuple):
    """A producer id and epoch; of one producer id only the greatest epoch may write."""

    producer_id: int
    epoch: int


NOBODY = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """The coordinator's settings; defaults are Kafka's."""

    timeout_max_ms: int = 900_000
    """``transaction.max.timeout.ms``."""
    transactional_id_expiration_ms: int = 604_800_000
    """``transactional.id.expiration.ms``: after this time an id without an open transaction is removed."""
    producer_id_expiration_ms: int = 86_400_000
    """``producer.id.expiration.ms``: this long after a producer's last write, its sequence numbers are removed from a
    partition."""


class TransactionState(StrEnum):
    """Kafka's names, as in ListTransactions responses."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerId:
    timeout_ms: int
    timeout_max_ms: int
    expected: Identity | None
    """The producer id and epoch that the producer sent (KIP-360); None: it has just started."""
    fresh_producer_id: int
    """Used when the transactional id is new, or when its producer id has no epoch left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    producer: Identity
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartitions:
    """Checks whether each partition is in the producer's open transaction (KIP-890)."""

    producer: Identity
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    producer: Identity
    is_commit: bool
    bumps_epoch: bool
    """EndTxn v5 and later: each transaction has its own epoch, so that no late batch can enter the next transaction."""
    fresh_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutPassed:
    """The deadline passed. The transaction may have ended and another begun: the machine checks the deadline."""

    fresh_producer_id: int


Request: TypeAlias = InitProducerId | AddPartitions | VerifyPartitions | EndTransaction
Event: TypeAlias = Request | TimeoutPassed

# -- records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersWritten:
    """The markers that end a transaction, one in each of its partitions."""

    producer: Identity
    is_commit: bool
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionWritten:
    """The whole state of a transactional id; replaces the record before it."""

    producer: Identity
    previous: Identity
    """The producer before the last bump of its epoch: it may not have received that response, and may retry."""
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    """The partitions of the open transaction."""
    started_at_ms: int
    """When the open transaction began; -1 without an open transaction."""
    written_at_ms: int


Record: TypeAlias = MarkersWritten | TransactionWritten

# -- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The response to the request; with the fields of the newest API version."""

    error: ErrorCode = ErrorCode.none
    producer: Identity = NOBODY
    missing: frozenset[TopicPartition] = frozenset()
    """In response to `VerifyPartitions`: the partitions that are not in the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Send `TimeoutPassed` at ``at_ms``; if the timer is set already, move it."""

    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer:
    pass


Effect: TypeAlias = Reply | SetTimer | CancelTimer
