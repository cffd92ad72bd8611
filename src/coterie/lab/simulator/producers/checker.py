"""The checks of the invariants in the producers' simulation. They read the bytes of the logs, and not the broker's
state about them."""

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
from coterie.lab.simulator.producers.sim_topic import PARTITIONS, SimTopic
from coterie.lab.simulator.producers.transaction_contents import (
    LogBatch,
    TransactionContents,
    filter_committed,
    read_log_batch,
)
from coterie.lab.simulator.records import RecordKind, recorded_name
from coterie.lab.simulator.world import World
from coterie.wire.errors import ErrorCode


class DurableWrite(NamedTuple):
    """One write of the broker that is durable: the request ``what`` of the process ``by``, and the state of the
    transactional id before and after it."""

    transactional_id: str
    what: Event | NewBatch
    by: str
    before: TransactionWritten | None
    after: TransactionWritten | None
    now_ms: int
    """When the broker received the request."""


@dataclass(slots=True)
class _PartitionLog:
    """One partition: its log as far as it was read, its open batches and its reader."""

    batches: list[LogBatch] = field(default_factory=list)
    open: dict[int, list[LogBatch]] = field(default_factory=dict)
    """By producer id, the batches that no commit or abort marker has followed."""
    offset: int = 0
    """The next offset of the checks."""
    read_offset: int = 0
    """The next offset of the read_committed reader."""

    @property
    def open_offset(self) -> int | None:
        """The first offset of all open batches; None if there are none."""
        return min((entries[0].base_offset for entries in self.open.values()), default=None)


class ProducersChecker:
    """Checks every write, response and read. A method raises a `Violation` when an invariant is broken."""

    def __init__(self, world: World, topic: SimTopic, *, timeout_ms: int) -> None:
        self._world = world
        self._topic = topic
        self._timeout_ms = timeout_ms
        self._logs = [_PartitionLog() for _ in range(PARTITIONS)]
        self._transactions: dict[bytes, TransactionContents] = {}
        """The transaction of each label."""
        self._written: dict[bytes, tuple[int, int]] = {}
        """The partition and the offset at which each label was written."""
        self._committed: set[bytes] = set()
        """The labels whose commit marker was read."""
        self._ends: dict[TransactionContents, bool] = {}
        """For each transaction of which a marker was read, whether it commits."""
        self._over: set[TransactionContents] = set()
        """The transactions that have ended in all partitions, or of whose end the producer has received the
        response."""
        self._received_identities: dict[str, ProducerIdAndEpoch] = {}
        """By transactional id, the greatest producer id and epoch that a process has received."""
        self._processes: dict[ProducerIdAndEpoch, str] = {}
        """The process that has received each producer id and epoch."""
        self._started: dict[str, set[str]] = {}
        """By transactional id, the processes that have requested a producer id as newly started."""
        self._may_be_refused: set[str] = set()
        """The processes whose requests may be refused: there is a newer process of their transactional id, or its
        transaction has timed out."""
        self._begun: dict[str, tuple[str, int]] = {}
        """By transactional id with an open transaction, the process that began the transaction, and when."""
        self.ended = 0
        """Number of transactions that have ended."""

    # -- producers' requests and responses ----------------------------------------------------------------------------

    def on_label(self, transaction: TransactionContents, label: bytes) -> None:
        """Take note that a batch of ``transaction`` has the label ``label``."""
        self._transactions[label] = transaction

    def on_identity(self, by: str, transactional_id: str, producer: ProducerIdAndEpoch) -> None:
        """Check the producer id and epoch that the process ``by`` receives.

        :raises Violation: ONE_PRODUCER.
        """
        if self._processes.setdefault(producer, by) != by:
            raise Violation(Invariant.ONE_PRODUCER, f"{by} receives {producer}, as did {self._processes[producer]}")
        self._received_identities[transactional_id] = max(
            self._received_identities.get(transactional_id, producer), producer
        )

    def on_written(self, partition: int, label: bytes, base_offset: int) -> None:
        """Check the offset that a producer receives for its batch.

        :raises Violation: EXACTLY_ONCE.
        """
        told, found = (partition, base_offset), self._written.get(label)
        if found != told:
            raise Violation(Invariant.EXACTLY_ONCE, f"{label!r} is acknowledged at {told}, and is at {found}")

    def on_out_of_order(self, label: bytes, *, had_earlier: bool) -> None:
        """Check that a batch may be refused as out of order: when it was sent, an earlier batch had no response
        (``had_earlier``).

        :raises Violation: IN_SEQUENCE.
        """
        if not had_earlier:
            raise Violation(Invariant.IN_SEQUENCE, f"{label!r} is refused as out of order")

    def on_refused(self, by: str, error: ErrorCode) -> None:
        """Check that a request of the process ``by`` may be refused.

        :raises Violation: FENCED_FOR_A_REASON.
        """
        if by not in self._may_be_refused:
            raise Violation(Invariant.FENCED_FOR_A_REASON, f"{by} is refused with {error.name}")

    def on_ended(self, transaction: TransactionContents, *, is_commit: bool) -> None:
        """Check the success of the commit or abort of ``transaction`` that its producer receives.

        :raises Violation: TOLD_IS_DONE.
        """
        self._over.add(transaction)
        labels = {label for labels in transaction.labels.values() for label in labels}
        if is_commit and not labels <= self._committed:
            raise Violation(
                Invariant.TOLD_IS_DONE,
                f"{transaction.name} is reported as committed; {sorted(labels - self._committed)} is not",
            )
        if not is_commit and labels & self._written.keys() and self._ends.get(transaction) is not False:
            raise Violation(Invariant.TOLD_IS_DONE, f"{transaction.name} is reported as aborted, and is not")

    # -- the broker's writes ------------------------------------------------------------------------------------------

    def on_durable(self, steps: Sequence[DurableWrite]) -> None:
        """Check the writes of one transaction of the store, which are durable now, and the batches that they have added
        to the logs.

        :raises Violation: ALL_OR_NOTHING, and those of the steps and of the batches.
        """
        for step in steps:
            self._on_step(step)
        ended = [transaction for number in range(len(self._logs)) for transaction in self._follow(number)]
        for transaction in ended:
            for number, log in enumerate(self._logs):
                if any(
                    self._transaction_of(entry) is transaction for entries in log.open.values() for entry in entries
                ):
                    raise Violation(
                        Invariant.ALL_OR_NOTHING, f"{transaction.name} has ended, and is open in partition {number}"
                    )
        self._over.update(ended)

    def on_partitions_updated(self) -> None:
        """Check each partition's last stable offset, after the broker has updated it.

        :raises Violation: STABLE.
        """
        for partition, log in zip(self._topic.partitions, self._logs, strict=True):
            undecided = log.open_offset
            if undecided is not None and partition.last_stable_offset > undecided:
                raise Violation(
                    Invariant.STABLE,
                    f"partition {partition.number} is stable up to {partition.last_stable_offset}, open from "
                    f"{undecided}",
                )

    def on_loaded(self) -> None:
        """Check after a start of the broker that the logs contain the same batches as before.

        :raises Violation: NOTHING_LOST, STABLE.
        """
        for partition, log in zip(self._topic.partitions, self._logs, strict=True):
            found = [read_log_batch(data) for data in self._topic.read(partition, 0, log.offset)]
            if found != log.batches:
                raise Violation(Invariant.NOTHING_LOST, f"partition {partition.number} has a changed log after a crash")
        self.on_partitions_updated()

    def on_read(self, number: int, *, batches_max: int = -1) -> None:
        """Let the read_committed consumer fetch the next batches of partition ``number``, ``batches_max`` at most (-1:
        all), and check what it receives.

        :raises Violation: COMMITTED_ONLY.
        """
        log, partition = self._logs[number], self._topic.partitions[number]
        offset = log.read_offset
        entries = [
            read_log_batch(data)
            for data in self._topic.read(partition, offset, partition.last_stable_offset, batches_max=batches_max)
        ]
        if not entries:
            return
        end_offset = entries[-1].last_offset + 1
        seen = filter_committed(
            entries, [one[:2] for one in self._topic.aborted_transactions(partition, offset, end_offset)]
        )
        expected = [entry.label for entry in entries if entry.label in self._committed]
        if seen != expected:
            raise Violation(
                Invariant.COMMITTED_ONLY,
                f"the reader of partition {number} from {offset} receives {seen}, committed is {expected}",
            )
        log.read_offset = end_offset

    def rewind(self) -> None:
        """Let the read_committed consumer begin again at the start of all logs."""
        for log in self._logs:
            log.read_offset = 0

    def unread(self) -> str | None:
        """Let the read_committed consumer read on. Returns the reason why it has not reached the end of all logs; None
        when it has."""
        for number, log in enumerate(self._logs):
            self.on_read(number)
            if log.read_offset != log.offset:
                return f"partition {number} is read up to {log.read_offset} and ends at {log.offset}"
        return None

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _on_step(self, step: DurableWrite) -> None:
        """Check the end of a transaction, and take note of begun transactions and newly started processes.

        :raises Violation: ABORTED_FOR_A_REASON.
        """
        started = self._started.setdefault(step.transactional_id, set())
        if isinstance(step.what, InitProducerId) and step.after != step.before and step.what.expected_producer is None:
            # A process may be its own successor: its earlier requests may arrive late.
            self._may_be_refused |= started
            started.add(step.by)
        was_open = step.before is not None and step.before.state is TransactionState.ONGOING
        is_open = step.after is not None and step.after.state is TransactionState.ONGOING
        if was_open and not is_open:
            self.ended += 1
            if isinstance(step.what, TimeoutPassed):
                self._may_be_refused |= started
            by, since_ms = self._begun.pop(step.transactional_id)
            assert step.after is not None
            self._world.record(RecordKind.TRANSACTION_ENDED, recorded_name(step.what), step.by, by)
            if why_not := self._why_open(step, by, since_ms):
                raise Violation(Invariant.ABORTED_FOR_A_REASON, f"the transaction of {by} ends: {why_not}")
        elif is_open and not was_open:
            self._begun[step.transactional_id] = (step.by, step.now_ms)

    def _why_open(self, step: DurableWrite, by: str, since_ms: int) -> str | None:
        """The reason why the step must not end the transaction that the process ``by`` began at ``since_ms``; None if
        it may."""
        match step.what:
            case TimeoutPassed():
                age_ms = step.now_ms - since_ms
                return None if age_ms >= self._timeout_ms else f"it is {age_ms} ms old"
            case InitProducerId():
                return None
            case EndTransaction():
                return None if step.by == by else f"by {step.by}"
            case _:
                return f"by {step.what}"

    def _follow(self, number: int) -> list[TransactionContents]:
        """Read the new batches of partition ``number``. Returns the transactions that have ended in them.

        :raises Violation: NOTHING_LOST, and those of `_on_batch` and `_on_end`.
        """
        log, partition, ended = self._logs[number], self._topic.partitions[number], list[TransactionContents]()
        for entry in map(read_log_batch, self._topic.read(partition, log.offset, 2**63 - 1)):
            if entry.base_offset != log.offset:
                raise Violation(
                    Invariant.NOTHING_LOST,
                    f"partition {number} continues at {entry.base_offset}, not at {log.offset}",
                )
            log.batches.append(entry)
            log.offset = entry.last_offset + 1
            if entry.label is not None:
                self._on_batch(number, entry)
                log.open.setdefault(entry.producer.producer_id, []).append(entry)
            elif batches := log.open.pop(entry.producer.producer_id, []):
                ended.append(self._on_end(number, batches, is_commit=entry.is_commit))
        return ended

    def _on_batch(self, number: int, batch: LogBatch) -> None:
        """Check a new batch of data.

        :raises Violation: EXACTLY_ONCE, NOTHING_LATE.
        """
        label, transaction = batch.label, self._transaction_of(batch)
        assert label is not None
        if label in self._written:
            raise Violation(Invariant.EXACTLY_ONCE, f"{label!r} is written again, at {batch.base_offset}")
        self._written[label] = (number, batch.base_offset)
        if transaction in self._over:
            raise Violation(Invariant.NOTHING_LATE, f"{label!r} is written after its transaction has ended")
        told = self._received_identities[transaction.transactional_id]
        if batch.producer < told:
            raise Violation(Invariant.NOTHING_LATE, f"{label!r} is written by {batch.producer}, {told} was sent")

    def _on_end(self, number: int, batches: Sequence[LogBatch], *, is_commit: bool) -> TransactionContents:
        """Check a new marker, which ends the transaction of ``batches`` in partition ``number``. Returns the
        transaction.

        :raises Violation: ALL_OR_NOTHING, COMMITTED_ONLY, EXACTLY_ONCE.
        """
        transaction = self._transaction_of(batches[0])
        if self._ends.setdefault(transaction, is_commit) is not is_commit:
            raise Violation(Invariant.ALL_OR_NOTHING, f"{transaction.name} is committed and aborted")
        if is_commit:
            if not transaction.is_commit_asked:
                raise Violation(Invariant.COMMITTED_ONLY, f"{transaction.name} is committed without a request")
            labels = [entry.label for entry in batches]
            if labels != transaction.labels[number]:
                raise Violation(
                    Invariant.EXACTLY_ONCE,
                    f"{transaction.name} is committed with {labels}, sent was {transaction.labels[number]}",
                )
            self._committed.update(transaction.labels[number])
        return transaction

    def _transaction_of(self, batch: LogBatch) -> TransactionContents:
        """The transaction whose producer has sent the batch."""
        assert batch.label is not None
        return self._transactions[batch.label]
