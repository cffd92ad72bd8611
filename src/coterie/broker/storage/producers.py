"""What a partition knows of a producer that numbers its batches (KIP-98): the rules, as pure functions.

A batch that was written is not written again when its producer, having missed the answer, sends it again; one that
comes out of its order, or of an epoch that was fenced, is refused. `transaction_store` keeps the state of each producer
in the transaction in which its batch is appended.
"""

from dataclasses import dataclass
from typing import NamedTuple

from coterie.wire.batches import BatchHead
from coterie.wire.errors import ErrorCode, KafkaRefusal

REMEMBERED = 5
"""As many batches as a client may have in flight (``max.in.flight.requests.per.connection``)."""
_SEQUENCES = 2**31
"""Sequence numbers wrap around before this."""


class Numbered(NamedTuple):
    """A batch that was written."""

    first_sequence: int
    last_sequence: int
    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """One producer id in one partition."""

    epoch: int
    batches: tuple[Numbered, ...] = ()
    """The last few of this epoch, the oldest first."""
    open_offset: int | None = None
    """Where its open transaction begins in this partition."""


def duplicate_of(producer: Producer | None, head: BatchHead) -> Numbered | None:
    """What was written when this batch came before."""
    if producer is None or producer.epoch != head.producer_epoch:
        return None
    first, last = head.base_sequence, last_sequence(head)
    return next((batch for batch in producer.batches if batch[:2] == (first, last)), None)


def check_batch(producer: Producer | None, head: BatchHead, *, starts_at_zero: bool) -> None:
    """``starts_at_zero``: a producer that nothing is known of begins with 0. Others may begin anywhere: what was known
    may have expired.

    :raises KafkaRefusal: when the batch may not follow what the producer has written here.
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
    """The batch was written at ``base_offset``."""
    is_known = producer is not None and producer.epoch == head.producer_epoch
    batches = producer.batches if producer is not None and is_known else ()
    open_offset = producer.open_offset if producer is not None else None
    if head.is_transactional and open_offset is None:
        open_offset = base_offset
    numbered = Numbered(head.base_sequence, last_sequence(head), base_offset)
    return Producer(epoch=head.producer_epoch, batches=(*batches, numbered)[-REMEMBERED:], open_offset=open_offset)


def after_marker(producer: Producer | None, epoch: int) -> Producer:
    """Its transaction has ended here, by a marker of ``epoch``. In the same epoch its numbers go on."""
    is_known = producer is not None and producer.epoch == epoch
    return Producer(epoch=epoch, batches=producer.batches if producer is not None and is_known else ())


def last_sequence(head: BatchHead) -> int:
    return (head.base_sequence + head.last_offset_delta) % _SEQUENCES
