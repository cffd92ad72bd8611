"""The broker of the producers' simulation: what the log thread of the production broker does for producers, on the real
store, in memory. Its disk has slow writes and failing writes, and may lose unacknowledged writes in a crash.

As in production, the requests that arrive while the disk is busy become one transaction of the store: either all of
them are durable, or none.
"""

from collections.abc import Callable
from dataclasses import dataclass

from coterie.broker.storage.store import Store
from coterie.broker.storage.transaction_store import (
    read_transaction,
    read_transactions,
    write_transaction,
)
from coterie.broker.transactions.writes import NewBatch, WriteResult, append, fresh_producer_id, step_coordinator
from coterie.groups.transaction_messages import (
    EPOCH_MAX,
    NO_PRODUCER,
    CancelTimer,
    Event,
    ProducerIdAndEpoch,
    Reply,
    SetTimer,
    TimeoutPassed,
    TransactionState,
    TransactionWritten,
)
from coterie.groups.transactions import open_transaction_deadline_ms
from coterie.lab.simulator.invariants import AssertionsAsViolations
from coterie.lab.simulator.network import NetworkCall
from coterie.lab.simulator.producers.checker import ExecutedRequest, ProducersChecker
from coterie.lab.simulator.producers.sim_topic import SimTopic
from coterie.lab.simulator.records import RecordKind, RecordValue, recorded_name
from coterie.lab.simulator.world import FaultyDisk, SimTimers, World
from coterie.nouns.errors import CoterieError, WorldError
from coterie.wire.errors import ErrorCode, KafkaRefusal

_ABORT_RETRY_DELAY_MS = 1_000
"""How long after a failed write the abort of a transaction that has timed out is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceResponse:
    """The response to a batch. ``base_offset`` is the offset of the batch's first record; -1 with an error."""

    error: ErrorCode = ErrorCode.none
    base_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueuedWrite:
    """One write of the log thread, for the request of a process or (``sender``: ``timer``) for the timeout of a
    transaction. ``execute`` performs the write in the store. ``on_outcome`` receives the result when the write is
    durable, or the error when the write was refused or has failed."""

    transactional_id: str
    request: Event | NewBatch
    """An event for the coordinator of the transactional id, or a batch."""
    sender: str
    """The name of the process that has sent the request; the word ``timer`` for the timeout of a transaction."""
    execute: Callable[[Store], WriteResult]
    on_outcome: Callable[[WriteResult | CoterieError], None]
    received_at_ms: int
    """When the broker received the request."""


class StoreDisk(FaultyDisk):
    """The disk of the broker's store."""

    is_failing = False
    """Whether every write that ends now fails."""


class SimBroker:
    """The broker with the topic and its producers' transactions, which faults crash and restart. It starts when it is
    created."""

    def __init__(self, world: World, checker: ProducersChecker, store: Store, topic: SimTopic) -> None:
        self._world = world
        self._checker = checker
        self._store = store
        self.topic = topic
        self.disk = StoreDisk()
        self.is_up = False
        self.start()

    def store_producer_with_few_epochs(self, transactional_id: str, *, epochs_left: int) -> None:
        """Store a producer id for ``transactional_id`` of which only ``epochs_left`` epochs are left."""
        self._store.begin()
        producer = ProducerIdAndEpoch(fresh_producer_id(self._store), EPOCH_MAX - epochs_left)
        written = TransactionWritten(
            producer=producer,
            previous_producer=NO_PRODUCER,
            transaction_timeout_ms=1,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            started_at_ms=-1,
            written_at_ms=0,
        )
        write_transaction(self._store.database, transactional_id, written)
        self._store.commit()

    # -- start and crash ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the partitions, set the timers of the open transactions, and accept requests again. The checker compares
        the logs with those before."""
        self._queued_writes: list[_QueuedWrite] = []
        self._writes_in_progress: list[_QueuedWrite] = []
        self._open_calls: dict[NetworkCall, None] = {}
        self._timers = SimTimers[str](self._world, self._queue_timeout_write)
        self.topic.load_partitions()
        for transactional_id, written in read_transactions(self._store.database):
            due_ms = open_transaction_deadline_ms(written)
            if due_ms is not None:
                self._timers.set(transactional_id, due_ms)
        self.is_up = True
        self._world.add_record(RecordKind.BROKER_UP, *(partition.end_offset for partition in self.topic.partitions))
        self._checker.check_logs_kept_after_start()

    def crash(self) -> None:
        """Crash: all calls without a response fail within 0.2 s. The writes in progress are all durable or all lost, at
        random; the queued writes are lost."""
        self._world.add_record(RecordKind.BROKER_CRASHES)
        self.is_up = False
        self._timers.close()
        if self._writes_in_progress and self._world.draw_bool(0.5):
            # The write is durable without an acknowledgement.
            self._execute_and_commit_writes(self._writes_in_progress)
        self._writes_in_progress, self._queued_writes = [], []
        for call in self._open_calls:
            call.fail_later("the connection was reset", within_ms=200)

    # -- requests -----------------------------------------------------------------------------------------------------

    def queue_transaction_event(
        self, call: NetworkCall, sender: str, transactional_id: str, make_event: Callable[[int], Event]
    ) -> None:
        """Queue the event that ``make_event`` builds from a fresh producer id for the coordinator of
        ``transactional_id``. The response of ``call`` is the coordinator's `Reply`, or one with KAFKA_STORAGE_ERROR if
        the write fails. ``call`` fails if the broker is down, or crashes before it responds."""
        received_at_ms = self._world.now_ms

        def respond(outcome: WriteResult | CoterieError) -> None:
            if isinstance(outcome, WriteResult):
                call.respond(next(effect for effect in outcome.effects if isinstance(effect, Reply)))
            else:
                call.respond(Reply(error=ErrorCode.kafka_storage_error))

        self._queue_or_fail_request(
            call,
            _QueuedWrite(
                transactional_id=transactional_id,
                request=make_event(-1),
                sender=sender,
                execute=lambda store: step_coordinator(store, transactional_id, make_event, now_ms=received_at_ms),
                on_outcome=respond,
                received_at_ms=received_at_ms,
            ),
        )

    def queue_batch_append(self, call: NetworkCall, sender: str, batch: NewBatch) -> None:
        """Queue the append of ``batch``, which the process ``sender`` has sent. The response of ``call`` is a
        `ProduceResponse`, with an error if the batch is refused or the write fails. ``call`` fails if the broker is
        down, or crashes before it responds."""
        received_at_ms = self._world.now_ms

        def respond(outcome: WriteResult | CoterieError) -> None:
            match outcome:
                case WriteResult():
                    call.respond(ProduceResponse(base_offset=outcome.base_offset))
                case KafkaRefusal():
                    call.respond(ProduceResponse(error=outcome.error))
                case _:
                    call.respond(ProduceResponse(error=ErrorCode.kafka_storage_error))

        self._queue_or_fail_request(
            call,
            _QueuedWrite(
                transactional_id=batch.transactional_id or "",
                request=batch,
                sender=sender,
                execute=lambda store: append(store, batch, now_ms=received_at_ms),
                on_outcome=respond,
                received_at_ms=received_at_ms,
            ),
        )

    def ids_of_open_transactions(self) -> list[str]:
        """The transactional ids that have an open transaction by the durable state."""
        return [
            transactional_id
            for transactional_id, written in read_transactions(self._store.database)
            if written.state is TransactionState.ONGOING
        ]

    def fire_transaction_timer(self, transactional_id: str) -> None:
        """Fire the timer of ``transactional_id`` now, before or after its time, unless the broker is down. The
        coordinator must check whether the deadline of a transaction has passed."""
        if self.is_up:
            self._queue_timeout_write(transactional_id)

    # -- the log's thread ---------------------------------------------------------------------------------------------

    def _queue_or_fail_request(self, call: NetworkCall, write: _QueuedWrite) -> None:
        """Queue the write of the request of ``call``; ``call`` fails if the broker is down."""
        if not self.is_up:
            call.fail_later("connection refused", within_ms=20)
            return
        self._open_calls[call] = None
        self._queue_write(write)

    def _queue_timeout_write(self, transactional_id: str) -> None:
        """Queue a write that aborts the open transaction of ``transactional_id`` if the deadline of this transaction
        has passed. If the write fails, the timer is set again, to `_ABORT_RETRY_DELAY_MS` later."""
        now_ms, timers = self._world.now_ms, self._timers

        def make_event(fresh: int) -> Event:
            return TimeoutPassed(fresh_producer_id=fresh)

        def retry_after_failure(outcome: WriteResult | CoterieError) -> None:
            if isinstance(outcome, WorldError):
                timers.set(transactional_id, self._world.now_ms + _ABORT_RETRY_DELAY_MS)

        self._queue_write(
            _QueuedWrite(
                transactional_id=transactional_id,
                request=make_event(-1),
                sender="timer",
                execute=lambda store: step_coordinator(store, transactional_id, make_event, now_ms=now_ms),
                on_outcome=retry_after_failure,
                received_at_ms=now_ms,
            )
        )

    def _queue_write(self, write: _QueuedWrite) -> None:
        """Queue ``write``. If no write is in progress, begin to write."""
        self._queued_writes.append(write)
        if not self._writes_in_progress:
            self._begin_queued_writes()

    def _begin_queued_writes(self) -> None:
        """Begin to perform all queued writes together. When the disk has written them, deliver their results (errors if
        the disk fails), and begin those that were queued meanwhile."""
        self._writes_in_progress, self._queued_writes = self._queued_writes, []
        writes = self._writes_in_progress

        def execute_and_deliver_unless_crashed() -> None:
            if writes is not self._writes_in_progress:
                return  # the broker has crashed since
            outcomes = (
                self._execute_and_roll_back_writes(writes)
                if self.disk.is_failing
                else self._execute_and_commit_writes(writes)
            )
            self._writes_in_progress = []
            for write, outcome in outcomes:
                self._apply_and_deliver_outcome(write, outcome)
            self._checker.check_last_stable_offset_upper_bounds()
            if self._queued_writes:
                self._begin_queued_writes()

        self._world.call_after(self.disk.draw_write_duration_ms(self._world.rng), execute_and_deliver_unless_crashed)

    def _execute_and_commit_writes(
        self, writes: list[_QueuedWrite]
    ) -> list[tuple[_QueuedWrite, WriteResult | CoterieError]]:
        """Execute ``writes`` in one transaction of the store, commit the transaction, and record and check the writes.
        Returns each write with its result or its refusal."""
        self._store.begin()
        durable_writes, outcomes = self._execute_writes(writes)
        self._store.commit()
        for durable_write, (_, outcome) in zip(durable_writes, outcomes, strict=True):
            values = _recorded_values_of_write(durable_write, outcome)
            self._world.add_record(
                RecordKind.STEP,
                durable_write.transactional_id,
                recorded_name(durable_write.request),
                durable_write.sender,
                *values,
            )
        self._checker.check_durable_writes(durable_writes)
        return outcomes

    def _execute_and_roll_back_writes(
        self, writes: list[_QueuedWrite]
    ) -> list[tuple[_QueuedWrite, WriteResult | CoterieError]]:
        """Execute ``writes`` in one transaction of the store and roll the transaction back, as when the disk fails.
        Returns each write with the error."""
        self._store.begin()
        self._execute_writes(writes)
        self._store.rollback()
        self._world.add_record(RecordKind.ROLLED_BACK, len(writes))
        return [(write, WorldError("the disk fails")) for write in writes]

    def _execute_writes(
        self, writes: list[_QueuedWrite]
    ) -> tuple[list[ExecutedRequest], list[tuple[_QueuedWrite, WriteResult | CoterieError]]]:
        """Execute ``writes`` in the store's open transaction. Returns two lists in the order of ``writes``: the input
        of the checks for each write, and each write with its result or its refusal."""
        durable_writes: list[ExecutedRequest] = []
        outcomes: list[tuple[_QueuedWrite, WriteResult | CoterieError]] = []
        for write in writes:
            state_before = read_transaction(self._store.database, write.transactional_id)
            changes = self._store.changed_row_count_so_far
            outcome: WriteResult | CoterieError
            with AssertionsAsViolations("broker"):
                try:
                    outcome = write.execute(self._store)
                except CoterieError as refusal:
                    assert self._store.changed_row_count_so_far == changes, (
                        "a write was refused after it had changed rows of the store"
                    )
                    outcome = refusal
            state_after = read_transaction(self._store.database, write.transactional_id)
            durable_writes.append(
                ExecutedRequest(
                    write.transactional_id, write.request, write.sender, state_before, state_after, write.received_at_ms
                )
            )
            outcomes.append((write, outcome))
        return durable_writes, outcomes

    def _apply_and_deliver_outcome(self, write: _QueuedWrite, outcome: WriteResult | CoterieError) -> None:
        """Update the offsets of partitions and the timers with the result of ``write``, then call its
        ``on_outcome``."""
        if isinstance(outcome, WriteResult):
            for partition_change in outcome.partition_offsets:
                partition = self.topic.partitions[partition_change.topic_partition.partition]
                partition.first_unstable_offset = partition_change.first_unstable_offset
                partition.advance_end_offset(partition_change.end_offset)
            for effect in outcome.effects:
                match effect:
                    case SetTimer(at_ms=at_ms):
                        self._timers.set(write.transactional_id, at_ms)
                    case CancelTimer():
                        self._timers.cancel(write.transactional_id)
                    case Reply():
                        pass  # `write.on_outcome` sends it
        write.on_outcome(outcome)


def _recorded_values_of_write(
    durable_write: ExecutedRequest, outcome: WriteResult | CoterieError
) -> tuple[RecordValue, ...]:
    """The values of ``outcome`` in the record of a write."""
    match outcome:
        case WriteResult():
            end_offsets = (
                f"{partition_change.topic_partition.partition}:{partition_change.end_offset}"
                for partition_change in outcome.partition_offsets
            )
            return (
                outcome.base_offset,
                durable_write.state_after.state if durable_write.state_after is not None else None,
                *end_offsets,
            )
        case KafkaRefusal():
            return (outcome.error.name,)
        case _:
            return ("failed",)
