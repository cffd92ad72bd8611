"""The broker of the producers' simulation: the work of the production broker's log thread for producers, on the real
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
from coterie.groups.transactions import deadline_ms
from coterie.lab.simulator.invariants import MachineCheck
from coterie.lab.simulator.network import Call
from coterie.lab.simulator.producers.checker import DurableWrite, ProducersChecker
from coterie.lab.simulator.producers.sim_topic import SimTopic
from coterie.lab.simulator.records import RecordKind, RecordValue, recorded_name
from coterie.lab.simulator.world import FaultyDisk, SimTimers, World
from coterie.nouns.errors import CoterieError, WorldError
from coterie.wire.errors import ErrorCode, KafkaRefusal

_RETRY_DELAY_MS = 1_000
"""After this time the abort of a transaction that has timed out is tried again, if the disk failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """The response to a batch. ``base_offset`` is the offset of its first record; -1 with an error."""

    error: ErrorCode = ErrorCode.none
    base_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """One write of the log's thread: ``run`` performs it in the store, ``on_outcome`` receives its result or its error
    when it is durable or has failed."""

    transactional_id: str
    what: Event | NewBatch
    """The request: an event of the coordinator, or a batch."""
    by: str
    """The name of the process that has sent the request, or the word timer."""
    run: Callable[[Store], WriteResult]
    on_outcome: Callable[[WriteResult | CoterieError], None]
    now_ms: int
    """When the broker received the request."""


class StoreDisk(FaultyDisk):
    """The disk of the broker's store."""

    failing = False
    """Whether each write fails now."""


class SimBroker:
    """The broker of one log, which crashes and restarts. It starts when it is created."""

    def __init__(self, world: World, checker: ProducersChecker, store: Store, topic: SimTopic) -> None:
        self._world = world
        self._checker = checker
        self._store = store
        self.topic = topic
        self.disk = StoreDisk()
        self.up = False
        self.start()

    def use_up_epochs(self, transactional_id: str, *, epochs_left: int) -> None:
        """Store a producer for ``transactional_id`` whose producer id has only ``epochs_left`` epochs left."""
        self._store.begin()
        producer = ProducerIdAndEpoch(fresh_producer_id(self._store), EPOCH_MAX - epochs_left)
        written = TransactionWritten(
            producer=producer,
            previous=NO_PRODUCER,
            timeout_ms=1,
            state=TransactionState.EMPTY,
            partitions=frozenset(),
            started_at_ms=-1,
            written_at_ms=0,
        )
        write_transaction(self._store.database, transactional_id, written)
        self._store.commit()

    # -- start and crash ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Read the open transactions and set their timers, then accept requests again."""
        self._waiting: list[_Write] = []
        self._writing: list[_Write] = []
        self._calls: dict[Call, None] = {}
        self._timers = SimTimers[str](self._world, self._time_out)
        self.topic.load()
        for transactional_id, written in read_transactions(self._store.database):
            due_ms = deadline_ms(written)
            if due_ms is not None:
                self._timers.set(transactional_id, due_ms)
        self.up = True
        self._world.record(RecordKind.BROKER_UP, *(partition.end_offset for partition in self.topic.partitions))
        self._checker.on_loaded()

    def crash(self) -> None:
        """Crash: open calls fail. The write in progress is durable or lost; those after it are lost."""
        self._world.record(RecordKind.BROKER_CRASHES)
        self.up = False
        self._timers.close()
        if self._writing and self._world.chance(0.5):
            # The write is durable without an acknowledgement.
            self._commit(self._writing)
        self._writing, self._waiting = [], []
        for call in self._calls:
            call.fail("the connection was reset", within_ms=200)

    # -- requests -----------------------------------------------------------------------------------------------------

    def ask(self, call: Call, by: str, transactional_id: str, make_event: Callable[[int], Event]) -> None:
        """Pass the event that ``make_event`` builds from a fresh producer id to the coordinator of
        ``transactional_id``. The response is the coordinator's `Reply`; KAFKA_STORAGE_ERROR if the write fails."""
        now_ms = self._world.now_ms

        def told(written: WriteResult | CoterieError) -> None:
            if isinstance(written, WriteResult):
                call.answer(next(effect for effect in written.effects if isinstance(effect, Reply)))
            else:
                call.answer(Reply(error=ErrorCode.kafka_storage_error))

        self._serve(
            call,
            _Write(
                transactional_id=transactional_id,
                what=make_event(-1),
                by=by,
                run=lambda store: step_coordinator(store, transactional_id, make_event, now_ms=now_ms),
                on_outcome=told,
                now_ms=now_ms,
            ),
        )

    def produce(self, call: Call, by: str, batch: NewBatch) -> None:
        """Append a batch of the process ``by``. The response is a `Produced`."""
        now_ms = self._world.now_ms

        def told(written: WriteResult | CoterieError) -> None:
            match written:
                case WriteResult():
                    call.answer(Produced(base_offset=written.base_offset))
                case KafkaRefusal():
                    call.answer(Produced(error=written.error))
                case _:
                    call.answer(Produced(error=ErrorCode.kafka_storage_error))

        self._serve(
            call,
            _Write(
                transactional_id=batch.transactional_id or "",
                what=batch,
                by=by,
                run=lambda store: append(store, batch, now_ms=now_ms),
                on_outcome=told,
                now_ms=now_ms,
            ),
        )

    def open_transactions(self) -> list[str]:
        """The transactional ids that have an open transaction."""
        return [
            transactional_id
            for transactional_id, written in read_transactions(self._store.database)
            if written.state is TransactionState.ONGOING
        ]

    def time_out(self, transactional_id: str) -> None:
        """Fire the timer of ``transactional_id`` now: the coordinator must check whether its deadline has passed."""
        if self.up:
            self._time_out(transactional_id)

    # -- the log's thread ---------------------------------------------------------------------------------------------

    def _serve(self, call: Call, write: _Write) -> None:
        """Queue the write of a request; the call fails if the broker is down."""
        if not self.up:
            call.fail("connection refused", within_ms=20)
            return
        self._calls[call] = None
        self._put(write)

    def _time_out(self, transactional_id: str) -> None:
        """Queue the abort of the transaction if its deadline has passed."""
        now_ms, alarms = self._world.now_ms, self._timers

        def make(fresh: int) -> Event:
            return TimeoutPassed(fresh_producer_id=fresh)

        def told(written: WriteResult | CoterieError) -> None:
            if isinstance(written, WorldError):
                alarms.set(transactional_id, self._world.now_ms + _RETRY_DELAY_MS)

        self._put(
            _Write(
                transactional_id=transactional_id,
                what=make(-1),
                by="timer",
                run=lambda store: step_coordinator(store, transactional_id, make, now_ms=now_ms),
                on_outcome=told,
                now_ms=now_ms,
            )
        )

    def _put(self, write: _Write) -> None:
        """Queue ``write``, and begin to write unless a write is in progress."""
        self._waiting.append(write)
        if not self._writing:
            self._begin()

    def _begin(self) -> None:
        """Write all queued writes together."""
        self._writing, self._waiting = self._waiting, []
        writing = self._writing

        def written() -> None:
            if writing is not self._writing:
                return  # the broker has crashed since
            outcomes = self._fail(writing) if self.disk.failing else self._commit(writing)
            self._writing = []
            for write, outcome in outcomes:
                self._deliver_outcome(write, outcome)
            self._checker.on_partitions_updated()
            if self._waiting:
                self._begin()

        self._world.after(self.disk.write_ms(self._world.rng), written)

    def _commit(self, writes: list[_Write]) -> list[tuple[_Write, WriteResult | CoterieError]]:
        """Run ``writes`` as one transaction of the store, commit and check it. Returns each write with its result or
        its error."""
        self._store.begin()
        steps, outcomes = self._run(writes)
        self._store.commit()
        for step, (_, outcome) in zip(steps, outcomes, strict=True):
            values = _values(step, outcome)
            self._world.record(RecordKind.STEP, step.transactional_id, recorded_name(step.what), step.by, *values)
        self._checker.on_durable(steps)
        return outcomes

    def _fail(self, writes: list[_Write]) -> list[tuple[_Write, WriteResult | CoterieError]]:
        """Run ``writes`` as one transaction of the store and roll it back, as when the disk fails. Returns each write
        with the error."""
        self._store.begin()
        self._run(writes)
        self._store.rollback()
        self._world.record(RecordKind.ROLLED_BACK, len(writes))
        return [(write, WorldError("the disk fails")) for write in writes]

    def _run(self, writes: list[_Write]) -> tuple[list[DurableWrite], list[tuple[_Write, WriteResult | CoterieError]]]:
        """Run ``writes`` in the store's open transaction. Returns what the checks need of each write, and each write
        with its result or its refusal."""
        steps: list[DurableWrite] = []
        outcomes: list[tuple[_Write, WriteResult | CoterieError]] = []
        for write in writes:
            before = read_transaction(self._store.database, write.transactional_id)
            changes = self._store.changes
            outcome: WriteResult | CoterieError
            with MachineCheck("broker"):
                try:
                    outcome = write.run(self._store)
                except CoterieError as refused:
                    assert self._store.changes == changes, "refuse before the first write"
                    outcome = refused
            after = read_transaction(self._store.database, write.transactional_id)
            steps.append(DurableWrite(write.transactional_id, write.what, write.by, before, after, write.now_ms))
            outcomes.append((write, outcome))
        return steps, outcomes

    def _deliver_outcome(self, write: _Write, outcome: WriteResult | CoterieError) -> None:
        """Update partitions and timers with the result of ``write``, then respond to its request."""
        if isinstance(outcome, WriteResult):
            for grown in outcome.partitions:
                partition = self.topic.partitions[grown.topic_partition.partition]
                partition.first_unstable_offset = grown.first_unstable_offset
                partition.advance_end_offset(grown.end_offset)
            for effect in outcome.effects:
                match effect:
                    case SetTimer(at_ms=at_ms):
                        self._timers.set(write.transactional_id, at_ms)
                    case CancelTimer():
                        self._timers.cancel(write.transactional_id)
                    case Reply():
                        pass  # `write.on_outcome` sends it
        write.on_outcome(outcome)


def _values(step: DurableWrite, outcome: WriteResult | CoterieError) -> tuple[RecordValue, ...]:
    """The values of one write in a record."""
    match outcome:
        case WriteResult():
            ends = (f"{grown.topic_partition.partition}:{grown.end_offset}" for grown in outcome.partitions)
            return outcome.base_offset, step.after.state if step.after is not None else None, *ends
        case KafkaRefusal():
            return (outcome.error.name,)
        case _:
            return ("failed",)
