"""What comes in to the coordinator of one transactional id, is kept by it, and goes out: events, records, effects.

Version-free, as `messages` is. A transaction's coordinator and its partitions live on one disk here, so the decision
and the markers that tell it to readers are one output, durable together: Kafka's states between Ongoing and Complete,
in which markers are on their way, are nobody's.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from coterie.nouns.ids import TopicPartition as TopicPartition
from coterie.wire.batches import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from coterie.wire.errors import ErrorCode

EPOCH_MAX = 2**15 - 2
"""The greatest epoch that a producer is given: the one after it is left for the markers that fence it."""


class Identity(NamedTuple):
    """Who a producer is; of one id only the greatest epoch may write."""

    producer_id: int
    epoch: int


NOBODY = Identity(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """The coordinator's settings; defaults are Kafka's."""

    timeout_max_ms: int = 900_000
    """``transaction.max.timeout.ms``."""
    transactional_id_expiration_ms: int = 604_800_000
    """``transactional.id.expiration.ms``: when an id without an open transaction is forgotten."""
    producer_id_expiration_ms: int = 86_400_000
    """``producer.id.expiration.ms``: when a partition forgets the numbers of a producer that writes no more."""


class TransactionState(StrEnum):
    """Kafka's words, as ListTransactions tells them."""

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
    """Who the producer believes to be (KIP-360); None: it has just started."""
    fresh_producer_id: int
    """Taken where the transactional id is new, or its producer id has no epoch left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    producer: Identity
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartitions:
    """Whether each of them is in the producer's open transaction (KIP-890)."""

    producer: Identity
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    producer: Identity
    is_commit: bool
    bumps_epoch: bool
    """EndTxn v5 and later: each transaction has an epoch of its own, so that nothing late can enter the next one."""
    fresh_producer_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutPassed:
    """A claim to check: the transaction may have ended, and another begun."""

    fresh_producer_id: int


Request: TypeAlias = InitProducerId | AddPartitions | VerifyPartitions | EndTransaction
Event: TypeAlias = Request | TimeoutPassed

# -- records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersWritten:
    """The end of a transaction, told in each of its partitions."""

    producer: Identity
    is_commit: bool
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionWritten:
    """All that is known of a transactional id; takes the place of what was written before."""

    producer: Identity
    previous: Identity
    """Who the producer was before the last bump: it may not have heard of it, and ask again."""
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    """Of the open transaction."""
    started_at_ms: int
    """When the open transaction began; without one, -1."""
    written_at_ms: int


Record: TypeAlias = MarkersWritten | TransactionWritten

# -- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """To whoever sent the event; in the words of the newest version."""

    error: ErrorCode = ErrorCode.none
    producer: Identity = NOBODY
    missing: frozenset[TopicPartition] = frozenset()
    """To `VerifyPartitions`: what is not in the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Send `TimeoutPassed` at ``at_ms``; if it is set already, move it."""

    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer:
    pass


Effect: TypeAlias = Reply | SetTimer | CancelTimer
