"""The checks of the invariants in the producers' simulation. They decode the batches in the partitions' logs, and do
not rely on the broker's own state."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coterie.broker.transactions.writes import NewBatch
from coterie.groups.transaction_messages import (
    EndTransaction,
    Event,
    InitProducerId,
    ProducerIdAndEpoch,
    TimeoutPassed,
    TransactionState,
    TransactionWritten,
)
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.producers.sim_topic import PARTITION_COUNT, SimTopic
from coterie.lab.simulator.producers.transaction_contents import (
    LogBatch,
    TransactionContents,
    decode_log_batch,
    labels_visible_to_read_committed,
)
from coterie.lab.simulator.records import RecordKind, recorded_name
from coterie.lab.simulator.world import World
from coterie.wire.errors import ErrorCode


class ExecutedRequest(NamedTuple):
    """One request that the broker has executed in a committed transaction of its store, for a process or (``sender``:
    ``timer``) for the timeout of a transaction; also a refused request, which has changed nothing."""

    transactional_id: str
    request: Event | NewBatch
    sender: str
    """The name of the process that has sent the request; the word ``timer`` for the timeout of a transaction."""
    state_before: TransactionWritten | None
    """The state of the transactional id before the request; None if it had none."""
    state_after: TransactionWritten | None
    """The state of the transactional id after the request; None if it has none."""
    received_at_ms: int
    """When the broker received the request."""


@dataclass(slots=True)
class _CheckedPartitionLog:
    """One partition as the checks know it: the part of its log that was read, and the position of its reader."""

    batches: list[LogBatch] = field(default_factory=list)
    """All batches that the checks have read, from the start of the log."""
    open_batches_by_producer_id: dict[int, list[LogBatch]] = field(default_factory=dict)
    """By producer id, its batches after its last commit or abort marker: those of its open transaction."""
    next_unchecked_offset: int = 0
    """The offset of the next batch that the checks will read."""
    read_committed_position: int = 0
    """The offset of the next batch that the read_committed reader will fetch."""

    @property
    def first_open_transaction_offset(self) -> int | None:
        """The lowest first offset of the batches of open transactions; None if no transaction is open in the
        partition."""
        return min((entries[0].base_offset for entries in self.open_batches_by_producer_id.values()), default=None)


class ProducersChecker:
    """Checks the broker's writes, the responses that producers receive, and what the read_committed reader receives. A
    method raises a `Violation` when an invariant is broken."""

    def __init__(self, world: World, topic: SimTopic, *, timeout_ms: int) -> None:
        self._world = world
        self._topic = topic
        self._timeout_ms = timeout_ms
        self._partition_logs = [_CheckedPartitionLog() for _ in range(PARTITION_COUNT)]
        self._transaction_by_label: dict[bytes, TransactionContents] = {}
        """The transaction of each batch, by the batch's label."""
        self._position_by_label: dict[bytes, tuple[int, int]] = {}
        """The partition and the offset at which each label was written."""
        self._committed_labels: set[bytes] = set()
        """The labels of batches in committed transactions: a commit marker after them was read."""
        self._is_commit_by_transaction: dict[TransactionContents, bool] = {}
        """For each transaction of which a marker was read, whether it is a commit marker."""
        self._ended_transactions: set[TransactionContents] = set()
        """The transactions that have ended in all partitions, or of whose end the producer has received the
        response."""
        self._received_identities: dict[str, ProducerIdAndEpoch] = {}
        """By transactional id, the greatest producer id and epoch that a process has received."""
        self._process_by_identity: dict[ProducerIdAndEpoch, str] = {}
        """The process that has received each producer id and epoch."""
        self._started_processes: dict[str, set[str]] = {}
        """By transactional id, the processes whose InitProducerId at their start was executed."""
        self._refusable_processes: set[str] = set()
        """The processes whose requests may be refused, because there is a newer process of their transactional id, or a
        transaction of this transactional id has timed out."""
        self._open_transaction_start: dict[str, tuple[str, int]] = {}
        """For each transactional id with an open transaction, the process that began the transaction, and when the
        broker received the request that began it, in ms."""
        self.ended_transaction_count = 0
        """Number of transactions that have ended."""

    # -- producers' requests and responses ----------------------------------------------------------------------------

    def note_batch_label(self, transaction: TransactionContents, label: bytes) -> None:
        """Store that ``label`` is the label of a batch of ``transaction``."""
        self._transaction_by_label[label] = transaction

    def check_and_store_identity(self, process: str, transactional_id: str, producer: ProducerIdAndEpoch) -> None:
        """Store the producer id and epoch ``producer``, which ``process`` receives for ``transactional_id``, and check
        that no other process has received it.

        :raises Violation: ONE_PRODUCER.
        """
        if self._process_by_identity.setdefault(producer, process) != process:
            raise Violation(
                Invariant.ONE_PRODUCER,
                f"{process} receives {producer}, which {self._process_by_identity[producer]} has received before",
            )
        self._received_identities[transactional_id] = max(
            self._received_identities.get(transactional_id, producer), producer
        )

    def check_acknowledged_batch(self, partition: int, label: bytes, base_offset: int) -> None:
        """Check that the batch ``label`` was written at the offset ``base_offset``, which its producer receives.

        :raises Violation: EXACTLY_ONCE.
        """
        acknowledged, written = (partition, base_offset), self._position_by_label.get(label)
        if written != acknowledged:
            raise Violation(
                Invariant.EXACTLY_ONCE,
                f"{label!r} is acknowledged at (partition, offset) {acknowledged}, but was written at {written}",
            )

    def check_out_of_order_refusal(self, label: bytes, *, had_unacknowledged_earlier_batch: bool) -> None:
        """Check that the batch ``label`` may be refused with OUT_OF_ORDER_SEQUENCE_NUMBER.
        ``had_unacknowledged_earlier_batch``: whether an earlier batch in the same partition was not acknowledged when
        the batch was sent.

        :raises Violation: IN_SEQUENCE.
        """
        if not had_unacknowledged_earlier_batch:
            raise Violation(
                Invariant.IN_SEQUENCE,
                f"{label!r} is refused as out of order, but when this batch was sent, every earlier batch in its "
                "partition was acknowledged",
            )

    def check_request_refusal(self, process: str, error: ErrorCode) -> None:
        """Check that a request of ``process`` may be refused (``error``): there is a newer process of its transactional
        id, or a transaction of this transactional id has timed out.

        :raises Violation: FENCED_FOR_A_REASON.
        """
        if process not in self._refusable_processes:
            raise Violation(
                Invariant.FENCED_FOR_A_REASON,
                f"{process} is refused with {error.name}, but has no successor, and no transaction has timed out",
            )

    def check_acknowledged_transaction_end(self, transaction: TransactionContents, *, is_commit: bool) -> None:
        """Check that ``transaction``, whose producer receives the success of its commit or abort, is committed or
        aborted. The transaction then counts as ended.

        :raises Violation: TOLD_IS_DONE.
        """
        self._ended_transactions.add(transaction)
        labels = {label for labels in transaction.labels.values() for label in labels}
        if is_commit and not labels <= self._committed_labels:
            raise Violation(
                Invariant.TOLD_IS_DONE,
                f"{transaction.name} is reported as committed; {sorted(labels - self._committed_labels)} are not",
            )
        if (
            not is_commit
            and labels & self._position_by_label.keys()
            and self._is_commit_by_transaction.get(transaction) is not False
        ):
            raise Violation(Invariant.TOLD_IS_DONE, f"{transaction.name} is reported as aborted, and is not")

    # -- the broker's writes ------------------------------------------------------------------------------------------

    def check_durable_writes(self, writes: Sequence[ExecutedRequest]) -> None:
        """Check ``writes``, which one transaction of the store has made durable, and the batches that they have added
        to the logs.

        :raises Violation: ALL_OR_NOTHING, and those of `_check_and_store_write` and `_check_batches_and_find_ended`.
        """
        for write in writes:
            self._check_and_store_write(write)
        ended_transactions = [
            transaction
            for number in range(len(self._partition_logs))
            for transaction in self._check_batches_and_find_ended(number)
        ]
        for transaction in ended_transactions:
            for number, log in enumerate(self._partition_logs):
                if any(
                    self._transaction_of(batch) is transaction
                    for batches in log.open_batches_by_producer_id.values()
                    for batch in batches
                ):
                    raise Violation(
                        Invariant.ALL_OR_NOTHING, f"{transaction.name} has ended, and is open in partition {number}"
                    )
        self._ended_transactions.update(ended_transactions)

    def check_last_stable_offset_upper_bounds(self) -> None:
        """Check, after the broker has updated its partitions, that no last stable offset is beyond the first offset of
        an open transaction.

        :raises Violation: STABLE.
        """
        for partition, log in zip(self._topic.partitions, self._partition_logs, strict=True):
            first_open_transaction_offset = log.first_open_transaction_offset
            if (
                first_open_transaction_offset is not None
                and partition.last_stable_offset > first_open_transaction_offset
            ):
                raise Violation(
                    Invariant.STABLE,
                    f"the last stable offset of partition {partition.number} is {partition.last_stable_offset}, beyond "
                    f"the open transaction that begins at {first_open_transaction_offset}",
                )

    def check_logs_kept_after_start(self) -> None:
        """Check, after a start of the broker, that the logs still have all batches that the checks have read before.

        :raises Violation: NOTHING_LOST, STABLE.
        """
        for partition, log in zip(self._topic.partitions, self._partition_logs, strict=True):
            batches = [
                decode_log_batch(data) for data in self._topic.read_batches(partition, 0, log.next_unchecked_offset)
            ]
            if batches != log.batches:
                raise Violation(
                    Invariant.NOTHING_LOST,
                    f"the batches of partition {partition.number} are not the same after a crash",
                )
        self.check_last_stable_offset_upper_bounds()

    def read_and_check_batches(self, number: int, *, batches_max: int = -1) -> None:
        """Let the read_committed reader fetch the next batches of partition ``number`` up to the last stable offset,
        ``batches_max`` at most (-1: all), and check that it receives exactly the committed ones.

        :raises Violation: COMMITTED_ONLY.
        """
        log, partition = self._partition_logs[number], self._topic.partitions[number]
        offset = log.read_committed_position
        batches = [
            decode_log_batch(data)
            for data in self._topic.read_batches(
                partition, offset, partition.last_stable_offset, batches_max=batches_max
            )
        ]
        if not batches:
            return
        end_offset = batches[-1].last_offset + 1
        received_labels = labels_visible_to_read_committed(
            batches, [aborted[:2] for aborted in self._topic.aborted_transactions(partition, offset, end_offset)]
        )
        committed_labels = [batch.label for batch in batches if batch.label in self._committed_labels]
        if received_labels != committed_labels:
            raise Violation(
                Invariant.COMMITTED_ONLY,
                f"the reader of partition {number} receives {received_labels} from offset {offset} on, but "
                f"{committed_labels} are committed",
            )
        log.read_committed_position = end_offset

    def restart_reader(self) -> None:
        """Let the read_committed reader begin again at the start of each partition."""
        for log in self._partition_logs:
            log.read_committed_position = 0

    def read_and_describe_lag(self) -> str | None:
        """Let the read_committed reader read on. Returns the reason why the reader has not reached the end of all logs;
        None when it has.

        :raises Violation: COMMITTED_ONLY.
        """
        for number, log in enumerate(self._partition_logs):
            self.read_and_check_batches(number)
            if log.read_committed_position != log.next_unchecked_offset:
                return (
                    f"partition {number} is read up to {log.read_committed_position} and ends at "
                    f"{log.next_unchecked_offset}"
                )
        return None

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _check_and_store_write(self, write: ExecutedRequest) -> None:
        """If ``write`` ends a transaction, check that it may. Also store which transactions and processes have begun,
        and which processes may be refused from now on.

        :raises Violation: ABORTED_FOR_A_REASON.
        """
        started_processes = self._started_processes.setdefault(write.transactional_id, set())
        if (
            isinstance(write.request, InitProducerId)
            and write.state_after != write.state_before
            and write.request.expected_producer is None
        ):
            # A process may be its own successor: its earlier requests may arrive late.
            self._refusable_processes |= started_processes
            started_processes.add(write.sender)
        was_open = write.state_before is not None and write.state_before.state is TransactionState.ONGOING
        is_open = write.state_after is not None and write.state_after.state is TransactionState.ONGOING
        if was_open and not is_open:
            self.ended_transaction_count += 1
            if isinstance(write.request, TimeoutPassed):
                self._refusable_processes |= started_processes
            beginner, since_ms = self._open_transaction_start.pop(write.transactional_id)
            assert write.state_after is not None
            self._world.add_record(RecordKind.TRANSACTION_ENDED, recorded_name(write.request), write.sender, beginner)
            if reason_to_stay_open := self._reason_to_stay_open(write, beginner, since_ms):
                raise Violation(
                    Invariant.ABORTED_FOR_A_REASON, f"the transaction of {beginner} ends, but {reason_to_stay_open}"
                )
        elif is_open and not was_open:
            self._open_transaction_start[write.transactional_id] = (write.sender, write.received_at_ms)

    def _reason_to_stay_open(self, write: ExecutedRequest, beginner: str, since_ms: int) -> str | None:
        """The reason why ``write`` must not end the transaction that the process ``beginner`` began at ``since_ms``;
        None if ``write`` may end it."""
        match write.request:
            case TimeoutPassed():
                age_ms = write.received_at_ms - since_ms
                return (
                    None
                    if age_ms >= self._timeout_ms
                    else f"it is only {age_ms} ms old, its timeout is {self._timeout_ms} ms"
                )
            case InitProducerId():
                return None
            case EndTransaction():
                return None if write.sender == beginner else f"the process that ends it is {write.sender}"
            case _:
                return f"this request does not end transactions: {write.request}"

    def _check_batches_and_find_ended(self, number: int) -> list[TransactionContents]:
        """Read and check the new batches of partition ``number``. Returns the transactions whose markers are among
        them.

        :raises Violation: NOTHING_LOST, and those of `_check_data_batch` and `_check_marker`.
        """
        log, partition, ended_transactions = (
            self._partition_logs[number],
            self._topic.partitions[number],
            list[TransactionContents](),
        )
        for batch in map(decode_log_batch, self._topic.read_batches(partition, log.next_unchecked_offset, 2**63 - 1)):
            if batch.base_offset != log.next_unchecked_offset:
                raise Violation(
                    Invariant.NOTHING_LOST,
                    f"partition {number} goes on at {batch.base_offset}, not at {log.next_unchecked_offset}",
                )
            log.batches.append(batch)
            log.next_unchecked_offset = batch.last_offset + 1
            if batch.label is not None:
                self._check_data_batch(number, batch)
                log.open_batches_by_producer_id.setdefault(batch.producer.producer_id, []).append(batch)
            elif batches := log.open_batches_by_producer_id.pop(batch.producer.producer_id, []):
                ended_transactions.append(self._check_marker(number, batches, is_commit=batch.is_commit_marker))
        return ended_transactions

    def _check_data_batch(self, number: int, batch: LogBatch) -> None:
        """Check a new batch of data: it was not written before, its transaction has not ended, and no newer producer id
        and epoch of its transactional id was received.

        :raises Violation: EXACTLY_ONCE, NOTHING_LATE.
        """
        label, transaction = batch.label, self._transaction_of(batch)
        assert label is not None
        if label in self._position_by_label:
            raise Violation(Invariant.EXACTLY_ONCE, f"{label!r} is written again, at {batch.base_offset}")
        self._position_by_label[label] = (number, batch.base_offset)
        if transaction in self._ended_transactions:
            raise Violation(Invariant.NOTHING_LATE, f"{label!r} is written after its transaction has ended")
        newest_identity = self._received_identities[transaction.transactional_id]
        if batch.producer < newest_identity:
            raise Violation(
                Invariant.NOTHING_LATE,
                f"{label!r} of {batch.producer} is written, but {newest_identity} was received before",
            )

    def _check_marker(self, number: int, batches: Sequence[LogBatch], *, is_commit: bool) -> TransactionContents:
        """Check a new commit or abort marker, which ends the transaction of ``batches`` in partition ``number``. The
        transaction must not have a marker of the other kind; a commit must have been requested, and ``batches`` must
        then be all batches that the producer has sent to the partition, in order. Returns the transaction.

        :raises Violation: ALL_OR_NOTHING, COMMITTED_ONLY, EXACTLY_ONCE.
        """
        transaction = self._transaction_of(batches[0])
        if self._is_commit_by_transaction.setdefault(transaction, is_commit) is not is_commit:
            raise Violation(Invariant.ALL_OR_NOTHING, f"{transaction.name} is committed and aborted")
        if is_commit:
            if not transaction.is_commit_requested:
                raise Violation(
                    Invariant.COMMITTED_ONLY,
                    f"{transaction.name} is committed, but its producer has not requested that",
                )
            labels = [batch.label for batch in batches]
            if labels != transaction.labels[number]:
                raise Violation(
                    Invariant.EXACTLY_ONCE,
                    f"{transaction.name} is committed with {labels}, but {transaction.labels[number]} were sent",
                )
            self._committed_labels.update(transaction.labels[number])
        return transaction

    def _transaction_of(self, batch: LogBatch) -> TransactionContents:
        """The transaction to which ``batch``, a batch of data, belongs by its label."""
        assert batch.label is not None
        return self._transaction_by_label[batch.label]
