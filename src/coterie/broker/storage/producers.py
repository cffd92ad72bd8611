"""The state of an idempotent producer in a partition (KIP-98): its rules, as pure functions.

A batch that was written is not written again if its producer sends it again because the response was lost; a batch out
of sequence, or of a fenced epoch, is refused. `transaction_store` stores the state of each producer in the SQLite
transaction that appends its batch.
"""

from dataclasses import dataclass
from typing import NamedTuple

from coterie.wire.batches import BatchHead
from coterie.wire.errors import ErrorCode, KafkaRefusal

REMEMBERED = 5
"""Batches whose sequence numbers are kept: as many as a client may have in flight
(``max.in.flight.requests.per.connection``)."""
_SEQUENCES = 2**31
"""Sequence numbers wrap around to 0 before this."""


class Numbered(NamedTuple):
    """The sequence numbers and base offset of a batch that was written."""

    first_sequence: int
    last_sequence: int
    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """The state of one producer id in one partition."""

    epoch: int
    batches: tuple[Numbered, ...] = ()
    """The last batches of this epoch, at most `REMEMBERED`, oldest first."""
    open_offset: int | None = None
    """First offset of the producer's open transaction in this partition."""


def duplicate_of(producer: Producer | None, head: BatchHead) -> Numbered | None:
    """The earlier batch with the same sequence numbers, if the producer sent this batch before."""
    if producer is None or producer.epoch != head.producer_epoch:
        return None
    first, last = head.base_sequence, last_sequence(head)
    return next((batch for batch in producer.batches if batch[:2] == (first, last)), None)


def check_batch(producer: Producer | None, head: BatchHead, *, starts_at_zero: bool) -> None:
    """Check a batch against the producer's state. ``starts_at_zero``: a producer without state must begin with
    sequence number 0; else it may begin with any number, because its state may have expired.

    :raises KafkaRefusal: the batch may not follow the producer's earlier batches here.
    """
    if producer is None:
        if starts_at_zero and head.base_sequence:
            raise KafkaRefusal(ErrorCode.out_of_order_sequence_number)
        return
    if head.producer_epoch < producer.epoch:
        raise KafkaRefusal(ErrorCode.invalid_producer_epoch)
    last = producer.batches[-1].last_sequence if producer.batches and head.producer_epoch == producer.epoch else -1
    if head.base_sequence != (last + 1) % _SEQUENCES:
        raise KafkaRefusal(ErrorCode.out_of_order_sequence_number)
    if producer.open_offset is not None and not head.is_transactional:
        raise KafkaRefusal(ErrorCode.invalid_txn_state)


def after_batch(producer: Producer | None, head: BatchHead, base_offset: int) -> Producer:
    """The producer's state after the batch was written at ``base_offset``."""
    is_known = producer is not None and producer.epoch == head.producer_epoch
    batches = producer.batches if producer is not None and is_known else ()
    open_offset = producer.open_offset if producer is not None else None
    if head.is_transactional and open_offset is None:
        open_offset = base_offset
    numbered = Numbered(head.base_sequence, last_sequence(head), base_offset)
    return Producer(epoch=head.producer_epoch, batches=(*batches, numbered)[-REMEMBERED:], open_offset=open_offset)


def after_marker(producer: Producer | None, epoch: int) -> Producer:
    """The producer's state after a marker of ``epoch`` ended its transaction in this partition. Within the same epoch
    its sequence numbers continue."""
    is_known = producer is not None and producer.epoch == epoch
    return Producer(epoch=epoch, batches=producer.batches if producer is not None and is_known else ())


def last_sequence(head: BatchHead) -> int:
    return (head.base_sequence + head.last_offset_delta) % _SEQUENCES
