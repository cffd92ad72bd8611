"""The invariant checks of the producers' simulation. They read the bytes of the logs, not the broker's state about
them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coterie.broker.transactions.writes import NewBatch
from coterie.groups.transaction_messages import (
    EndTransaction,
    Event,
    Identity,
    InitProducerId,
    TimeoutPassed,
    TransactionState,
    TransactionWritten,
)
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.producers.bundle import Bundle, Entry, read_entry, sieve
from coterie.lab.simulator.producers.ledger import PARTITIONS, Ledger
from coterie.lab.simulator.records import RecordKind, name_of
from coterie.lab.simulator.world import World
from coterie.wire.errors import ErrorCode


class DurableWrite(NamedTuple):
    """One durable write of the broker: the request ``what`` of the process ``by``, and the state of the transactional
    id before and after it."""

    transactional_id: str
    what: Event | NewBatch
    by: str
    before: TransactionWritten | None
    after: TransactionWritten | None
    now_ms: int
    """Time of the request."""


@dataclass(slots=True)
class _Followed:
    """One partition: its log as read so far, its open batches and its reader."""

    entries: list[Entry] = field(default_factory=list)
    open: dict[int, list[Entry]] = field(default_factory=dict)
    """By producer id, the batches without a commit or abort marker."""
    offset: int = 0
    read_offset: int = 0
    """The next offset of the read_committed reader."""

    @property
    def open_offset(self) -> int | None:
        return min((entries[0].base_offset for entries in self.open.values()), default=None)


class ProducersWatch:
    """Checks every write, response and read; raises a `Violation` when an invariant is broken."""

    def __init__(self, world: World, ledger: Ledger, *, timeout_ms: int) -> None:
        self._world = world
        self._ledger = ledger
        self._timeout_ms = timeout_ms
        self._logs = [_Followed() for _ in range(PARTITIONS)]
        self._bundles: dict[bytes, Bundle] = {}
        self._written: dict[bytes, tuple[int, int]] = {}
        """Partition and offset of each label."""
        self._committed: set[bytes] = set()
        self._ends: dict[Bundle, bool] = {}
        """For each transaction with markers, whether they commit it."""
        self._over: set[Bundle] = set()
        """Transactions that have ended in all partitions, or whose producers have received their end."""
        self._told: dict[str, Identity] = {}
        """By transactional id, the highest producer id and epoch that a process has received."""
        self._processes: dict[Identity, str] = {}
        self._started: dict[str, set[str]] = {}
        """By transactional id, the processes that have become its producer."""
        self._excused: set[str] = set()
        """Processes that may be refused: they have a successor, or their transaction has timed out."""
        self._begun: dict[str, tuple[str, int]] = {}
        """By transactional id with an open transaction, the process that began it, and when."""
        self.ended = 0
        """Number of transactions that have ended."""

    # -- producers' requests and responses ----------------------------------------------------------------------------

    def on_label(self, bundle: Bundle, label: bytes) -> None:
        self._bundles[label] = bundle

    def on_identity(self, by: str, transactional_id: str, producer: Identity) -> None:
        """A process receives its producer id and epoch."""
        if self._processes.setdefault(producer, by) != by:
            raise Violation(Invariant.ONE_PRODUCER, f"{by} receives {producer}, as did {self._processes[producer]}")
        self._told[transactional_id] = max(self._told.get(transactional_id, producer), producer)

    def on_written(self, partition: int, label: bytes, base_offset: int) -> None:
        """A producer receives the offset of its batch."""
        told, found = (partition, base_offset), self._written.get(label)
        if found != told:
            raise Violation(Invariant.EXACTLY_ONCE, f"{label!r} is acknowledged at {told}, and is at {found}")

    def on_out_of_order(self, label: bytes, *, had_earlier: bool) -> None:
        """A batch is refused as out of order. ``had_earlier``: when it was sent, an earlier batch had no response."""
        if not had_earlier:
            raise Violation(Invariant.IN_SEQUENCE, f"{label!r} is refused as out of order")

    def on_refused(self, by: str, error: ErrorCode) -> None:
        """A process receives the refusal ``error``."""
        if by not in self._excused:
            raise Violation(Invariant.FENCED_FOR_A_REASON, f"{by} is refused with {error.name}")

    def on_ended(self, bundle: Bundle, *, is_commit: bool) -> None:
        """A producer receives the response to its commit or abort."""
        self._over.add(bundle)
        labels = {label for labels in bundle.labels.values() for label in labels}
        if is_commit and not labels <= self._committed:
            raise Violation(
                Invariant.TOLD_IS_DONE,
                f"{bundle.name} is reported as committed; {sorted(labels - self._committed)} is not",
            )
        if not is_commit and labels & self._written.keys() and self._ends.get(bundle) is not False:
            raise Violation(Invariant.TOLD_IS_DONE, f"{bundle.name} is reported as aborted, and is not")

    # -- the broker's writes ------------------------------------------------------------------------------------------

    def on_durable(self, steps: Sequence[DurableWrite]) -> None:
        """One transaction of the store is durable."""
        for step in steps:
            self._on_step(step)
        ended = [bundle for number in range(len(self._logs)) for bundle in self._follow(number)]
        for bundle in ended:
            for number, log in enumerate(self._logs):
                if any(self._bundle(entry) is bundle for entries in log.open.values() for entry in entries):
                    raise Violation(
                        Invariant.ALL_OR_NOTHING, f"{bundle.name} has ended, and is open in partition {number}"
                    )
        self._over.update(ended)

    def on_told(self) -> None:
        """The partitions' open offsets and end offsets have been updated."""
        for partition, log in zip(self._ledger.partitions, self._logs, strict=True):
            undecided = log.open_offset
            if undecided is not None and partition.stable_offset > undecided:
                raise Violation(
                    Invariant.STABLE,
                    f"partition {partition.number} is stable up to {partition.stable_offset}, open from {undecided}",
                )

    def on_loaded(self) -> None:
        """The broker has started: the log must contain the same entries as before."""
        for partition, log in zip(self._ledger.partitions, self._logs, strict=True):
            found = [read_entry(data) for data in self._ledger.read(partition, 0, log.offset)]
            if found != log.entries:
                raise Violation(Invariant.NOTHING_LOST, f"partition {partition.number} has a changed log after a crash")
        self.on_told()

    def on_read(self, number: int, *, batches_max: int = -1) -> None:
        """A read_committed consumer fetches the next batches."""
        log, partition = self._logs[number], self._ledger.partitions[number]
        offset = log.read_offset
        entries = [
            read_entry(data)
            for data in self._ledger.read(partition, offset, partition.stable_offset, batches_max=batches_max)
        ]
        if not entries:
            return
        end_offset = entries[-1].last_offset + 1
        seen = sieve(entries, [one[:2] for one in self._ledger.aborted(partition, offset, end_offset)])
        expected = [entry.label for entry in entries if entry.label in self._committed]
        if seen != expected:
            raise Violation(
                Invariant.COMMITTED_ONLY,
                f"the reader of partition {number} from {offset} receives {seen}, committed is {expected}",
            )
        log.read_offset = end_offset

    def rewind(self) -> None:
        """The read_committed consumer reads from the first record again."""
        for log in self._logs:
            log.read_offset = 0

    def unread(self) -> str | None:
        """The reason why the reader has not reached the end of all logs; None when it has."""
        for number, log in enumerate(self._logs):
            self.on_read(number)
            if log.read_offset != log.offset:
                return f"partition {number} is read up to {log.read_offset} and ends at {log.offset}"
        return None

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _on_step(self, step: DurableWrite) -> None:
        started = self._started.setdefault(step.transactional_id, set())
        if isinstance(step.what, InitProducerId) and step.after != step.before and step.what.expected is None:
            # A process may be its own successor: its earlier requests may arrive late.
            self._excused |= started
            started.add(step.by)
        was_open = step.before is not None and step.before.state is TransactionState.ONGOING
        is_open = step.after is not None and step.after.state is TransactionState.ONGOING
        if was_open and not is_open:
            self.ended += 1
            if isinstance(step.what, TimeoutPassed):
                self._excused |= started
            by, since_ms = self._begun.pop(step.transactional_id)
            assert step.after is not None
            self._world.record(RecordKind.TRANSACTION_ENDED, name_of(step.what), step.by, by)
            if why_not := self._why_open(step, by, since_ms):
                raise Violation(Invariant.ABORTED_FOR_A_REASON, f"the transaction of {by} ends: {why_not}")
        elif is_open and not was_open:
            self._begun[step.transactional_id] = (step.by, step.now_ms)

    def _why_open(self, step: DurableWrite, by: str, since_ms: int) -> str | None:
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

    def _follow(self, number: int) -> list[Bundle]:
        """Read the new batches of partition ``number``; return the transactions that have ended in them."""
        log, partition, ended = self._logs[number], self._ledger.partitions[number], list[Bundle]()
        for entry in map(read_entry, self._ledger.read(partition, log.offset, 2**63 - 1)):
            if entry.base_offset != log.offset:
                raise Violation(
                    Invariant.NOTHING_LOST,
                    f"partition {number} continues at {entry.base_offset}, not at {log.offset}",
                )
            log.entries.append(entry)
            log.offset = entry.last_offset + 1
            if entry.label is not None:
                self._on_batch(number, entry)
                log.open.setdefault(entry.producer.producer_id, []).append(entry)
            elif batches := log.open.pop(entry.producer.producer_id, []):
                ended.append(self._on_end(number, batches, is_commit=entry.is_commit))
        return ended

    def _on_batch(self, number: int, entry: Entry) -> None:
        label, bundle = entry.label, self._bundle(entry)
        assert label is not None
        if label in self._written:
            raise Violation(Invariant.EXACTLY_ONCE, f"{label!r} is written again, at {entry.base_offset}")
        self._written[label] = (number, entry.base_offset)
        if bundle in self._over:
            raise Violation(Invariant.NOTHING_LATE, f"{label!r} is written after its transaction has ended")
        told = self._told[bundle.transactional_id]
        if entry.producer < told:
            raise Violation(Invariant.NOTHING_LATE, f"{label!r} is written by {entry.producer}, {told} was sent")

    def _on_end(self, number: int, batches: Sequence[Entry], *, is_commit: bool) -> Bundle:
        bundle = self._bundle(batches[0])
        if self._ends.setdefault(bundle, is_commit) is not is_commit:
            raise Violation(Invariant.ALL_OR_NOTHING, f"{bundle.name} is committed and aborted")
        if is_commit:
            if not bundle.is_commit_asked:
                raise Violation(Invariant.COMMITTED_ONLY, f"{bundle.name} is committed without a request")
            labels = [entry.label for entry in batches]
            if labels != bundle.labels[number]:
                raise Violation(
                    Invariant.EXACTLY_ONCE,
                    f"{bundle.name} is committed with {labels}, sent was {bundle.labels[number]}",
                )
            self._committed.update(bundle.labels[number])
        return bundle

    def _bundle(self, entry: Entry) -> Bundle:
        assert entry.label is not None
        return self._bundles[entry.label]
