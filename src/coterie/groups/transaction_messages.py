"""The messages of the coordinator of one transactional id: its events, records and effects.

The messages are independent of API versions, as `classic.messages` are. A transaction's coordinator and its partitions
are on one disk here, so the decision to commit or abort and the markers that publish it to readers are one output and
become durable together. So Kafka's states between Ongoing and Complete, in which markers are being sent, do not exist
here.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from coterie.nouns.ids import TopicPartition as TopicPartition
from coterie.wire.batches import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from coterie.wire.errors import ErrorCode

EPOCH_MAX = 2**15 - 2
"""The greatest epoch that a producer gets: the next one is reserved for the markers that fence the producer."""


class ProducerIdAndEpoch(NamedTuple):
    """A producer id and an epoch. With one producer id, only the producer with the greatest epoch may write."""

    producer_id: int
    epoch: int


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
"""In a response without a producer id, and in a record without a previous producer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """The settings of transactions; the defaults are Kafka's."""

    timeout_max_ms: int = 900_000
    """``transaction.max.timeout.ms``: the greatest transaction timeout that a producer may request."""
    transactional_id_expiration_ms: int = 604_800_000
    """``transactional.id.expiration.ms``: this long after its last record, a transactional id without an open
    transaction is removed."""
    producer_id_expiration_ms: int = 86_400_000
    """``producer.id.expiration.ms``: this long after a producer's last write to a partition, its sequence numbers are
    removed from this partition."""


class TransactionState(StrEnum):
    """The state of a transactional id, by Kafka's names, as in ListTransactions responses."""

    EMPTY = "Empty"
    """The producer has begun no transaction since it requested its producer id."""
    ONGOING = "Ongoing"
    """A transaction is open."""
    COMPLETE_COMMIT = "CompleteCommit"
    """The last transaction was committed."""
    COMPLETE_ABORT = "CompleteAbort"
    """The last transaction was aborted; or a client with EndTxn v5 or later sent an abort without an open
    transaction."""


# -- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerId:
    """A producer requests a producer id and epoch, at its start or after an error."""

    transaction_timeout_ms: int
    """The transaction timeout that the producer requests."""
    transaction_timeout_max_ms: int
    """`TransactionSettings.timeout_max_ms`: a longer timeout is refused."""
    expected_producer: ProducerIdAndEpoch | None
    """The producer id and epoch that the producer had until now (KIP-360); None: the producer has just started."""
    fresh_producer_id: int
    """An unused producer id, which the producer gets if the transactional id is new, or if its present producer id has
    no epoch left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """Adds partitions to the producer's transaction, and begins a transaction if none is open."""

    producer: ProducerIdAndEpoch
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartitions:
    """Asks which of ``partitions`` are not in the producer's open transaction (KIP-890)."""

    producer: ProducerIdAndEpoch
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """Commits or aborts the producer's transaction."""

    producer: ProducerIdAndEpoch
    is_commit: bool
    bumps_epoch: bool
    """True for EndTxn v5 and later: each transaction has its own epoch, so that no late batch can enter the next
    transaction."""
    fresh_producer_id: int
    """An unused producer id, used if the present one has no epoch left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutPassed:
    """The time of the transaction's timer has come. The transaction may have ended meanwhile, and the next one may have
    begun, so the machine checks the deadline."""

    fresh_producer_id: int
    """As in `EndTransaction`."""


Request: TypeAlias = InitProducerId | AddPartitions | VerifyPartitions | EndTransaction
Event: TypeAlias = Request | TimeoutPassed

# -- records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersWritten:
    """The markers that end a transaction: one commit marker or abort marker in each of ``partitions``, with the
    producer id and epoch of ``producer``."""

    producer: ProducerIdAndEpoch
    is_commit: bool
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionWritten:
    """The whole state of a transactional id; replaces its previous record."""

    producer: ProducerIdAndEpoch
    previous_producer: ProducerIdAndEpoch
    """The producer id and epoch before the last change: the producer may not have received the response with the new
    ones, and may repeat its request. `NO_PRODUCER` if a newly started producer caused the change."""
    transaction_timeout_ms: int
    """The transaction timeout: an open transaction is aborted this long after its begin."""
    state: TransactionState
    partitions: frozenset[TopicPartition]
    """The partitions of the open transaction; empty without one."""
    started_at_ms: int
    """When the open transaction began; -1 without an open transaction."""
    written_at_ms: int


Record: TypeAlias = MarkersWritten | TransactionWritten

# -- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The response to an `InitProducerId`, `AddPartitions`, `VerifyPartitions` or `EndTransaction`. The broker sends
    those fields that the request's API version has."""

    error: ErrorCode = ErrorCode.none
    producer: ProducerIdAndEpoch = NO_PRODUCER
    """The producer id and epoch that the producer uses from now on; `NO_PRODUCER` if the response has none."""
    missing_partitions: frozenset[TopicPartition] = frozenset()
    """In response to `VerifyPartitions`: the partitions that are not in the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Send `TimeoutPassed` at ``at_ms``; if the timer is set already, move it."""

    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTimer:
    """Cancel the timer of `TimeoutPassed`."""

    pass


Effect: TypeAlias = Reply | SetTimer | CancelTimer
