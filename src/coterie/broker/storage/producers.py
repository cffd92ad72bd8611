"""The state of an idempotent producer in a partition (KIP-98): its rules, as pure functions.

If the response to a batch is lost, the producer sends the batch again, and the broker does not write it a second time.
A batch that is out of sequence, or of a fenced epoch (lower than the producer's last), is refused. `transaction_store`
stores the state of each producer in the SQLite transaction that appends its batch.
"""

from dataclasses import dataclass
from typing import NamedTuple

from coterie.wire.batches import BatchHeader
from coterie.wire.errors import ErrorCode, KafkaRefusal

BATCHES_TO_RETAIN = 5
"""The number of batches of a producer whose sequence numbers are kept: as many as a client may have in flight
(``max.in.flight.requests.per.connection``)."""
_SEQUENCES = 2**31
"""The number of different sequence numbers: after 2^31 - 1 the next sequence number is 0."""


class ProducerBatch(NamedTuple):
    """The sequence numbers and base offset of a batch that was written."""

    first_sequence: int
    last_sequence: int
    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerState:
    """The state of one producer id in one partition."""

    epoch: int
    batches: tuple[ProducerBatch, ...] = ()
    """The last batches of this epoch, at most `BATCHES_TO_RETAIN`, oldest first."""
    current_transaction_first_offset: int | None = None
    """First offset of the producer's open transaction in this partition; None if it has none."""


def find_duplicate(producer: ProducerState | None, head: BatchHeader) -> ProducerBatch | None:
    """The batch that was written when the producer sent the batch with the header ``head`` before: the one with the
    same epoch and sequence numbers among the last `BATCHES_TO_RETAIN` batches of the epoch. None if there is none."""
    if producer is None or producer.epoch != head.producer_epoch:
        return None
    first, last = head.base_sequence, last_sequence(head)
    return next((batch for batch in producer.batches if batch[:2] == (first, last)), None)


def check_batch_sequence_epoch_and_transaction(
    producer: ProducerState | None, head: BatchHeader, *, unknown_producer_starts_at_zero: bool
) -> None:
    """Check that a batch, which must not be a duplicate (`find_duplicate`), follows the producer's last batch in this
    partition. ``unknown_producer_starts_at_zero`` applies to a producer without state: if True, its first sequence
    number must be 0; else any number is allowed, because its state may have expired.

    :raises KafkaRefusal: the first sequence number is not the next one (0 for a new epoch), the epoch is lower than the
        producer's last, or the producer has an open transaction and the batch is not transactional.
    """
    if producer is None:
        if unknown_producer_starts_at_zero and head.base_sequence:
            raise KafkaRefusal(ErrorCode.out_of_order_sequence_number)
        return
    if head.producer_epoch < producer.epoch:
        raise KafkaRefusal(ErrorCode.invalid_producer_epoch)
    last = producer.batches[-1].last_sequence if producer.batches and head.producer_epoch == producer.epoch else -1
    if head.base_sequence != (last + 1) % _SEQUENCES:
        raise KafkaRefusal(ErrorCode.out_of_order_sequence_number)
    if producer.current_transaction_first_offset is not None and not head.is_transactional:
        raise KafkaRefusal(ErrorCode.invalid_txn_state)


def state_after_batch(producer: ProducerState | None, head: BatchHeader, base_offset: int) -> ProducerState:
    """The producer's state after the batch with the header ``head`` was written at ``base_offset``. ``producer`` is the
    producer's state before the write; None if it had none."""
    is_known = producer is not None and producer.epoch == head.producer_epoch
    batches = producer.batches if producer is not None and is_known else ()
    first_offset = producer.current_transaction_first_offset if producer is not None else None
    if head.is_transactional and first_offset is None:
        first_offset = base_offset
    numbered = ProducerBatch(head.base_sequence, last_sequence(head), base_offset)
    return ProducerState(
        epoch=head.producer_epoch,
        batches=(*batches, numbered)[-BATCHES_TO_RETAIN:],
        current_transaction_first_offset=first_offset,
    )


def state_after_marker(producer: ProducerState | None, epoch: int) -> ProducerState:
    """The producer's state after a marker of ``epoch`` ended its transaction in this partition. ``producer`` is the
    producer's state before the marker; None if it had none. If the producer already had this epoch, its sequence
    numbers continue; else they begin at 0."""
    is_known = producer is not None and producer.epoch == epoch
    return ProducerState(epoch=epoch, batches=producer.batches if producer is not None and is_known else ())


def last_sequence(head: BatchHeader) -> int:
    """The sequence number of the batch's last record."""
    return (head.base_sequence + head.last_offset_delta) % _SEQUENCES
