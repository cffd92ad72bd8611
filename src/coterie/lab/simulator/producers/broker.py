"""The broker of this simulation: the work of the production broker's log thread for producers, on the real store, in
memory. Its disk has slow writes and failing writes, and may lose unacknowledged writes in a crash.

As in production, the requests that arrive while the disk is busy become one transaction of the store: all of them are
durable, or none.
"""

from collections.abc import Callable
from dataclasses import dataclass

from coterie.broker.storage.store import Store
from coterie.broker.storage.transaction_store import (
    read_transaction,
    read_transactions,
    write_transaction,
)
from coterie.broker.transactions.writes import NewBatch, Written, append, decide, fresh_producer_id
from coterie.groups.transaction_messages import (
    EPOCH_MAX,
    NOBODY,
    CancelTimer,
    Event,
    Identity,
    Reply,
    SetTimer,
    TimeoutPassed,
    TransactionState,
    TransactionWritten,
)
from coterie.groups.transactions import deadline_ms
from coterie.lab.simulator.invariants import MachineCheck
from coterie.lab.simulator.network import Call
from coterie.lab.simulator.producers.ledger import Ledger
from coterie.lab.simulator.producers.watch import DurableWrite, ProducersWatch
from coterie.lab.simulator.records import RecordKind, RecordValue, name_of
from coterie.lab.simulator.world import Alarms, FaultyDisk, World
from coterie.nouns.errors import CoterieError, WorldError
from coterie.wire.errors import ErrorCode, KafkaRefusal

_RETRY_DELAY_MS = 1_000
"""Time after which the abort of a timed-out transaction is tried again, if the disk failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """The response to a batch."""

    error: ErrorCode = ErrorCode.none
    base_offset: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    """One write of the log's thread, and the callback that receives its outcome."""

    transactional_id: str
    what: Event | NewBatch
    by: str
    run: Callable[[Store], Written]
    told: Callable[[Written | CoterieError], None]
    now_ms: int


class StoreDisk(FaultyDisk):
    failing = False
    """Whether each of its writes fails."""


class SimBroker:
    """The broker of one log, which crashes and restarts."""

    def __init__(self, world: World, watch: ProducersWatch, store: Store, ledger: Ledger) -> None:
        self._world = world
        self._watch = watch
        self._store = store
        self.ledger = ledger
        self.disk = StoreDisk()
        self.up = False
        self.start()

    def age(self, transactional_id: str, *, epochs_left: int) -> None:
        """Store a producer for ``transactional_id`` that has ``epochs_left`` epochs left."""
        self._store.begin()
        producer = Identity(fresh_producer_id(self._store), EPOCH_MAX - epochs_left)
        written = TransactionWritten(
            producer=producer,
            previous=NOBODY,
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
        self._alarms = Alarms[str](self._world, self._time_out)
        self.ledger.load()
        for transactional_id, written in read_transactions(self._store.database):
            due_ms = deadline_ms(written)
            if due_ms is not None:
                self._alarms.set(transactional_id, due_ms)
        self.up = True
        self._world.record(RecordKind.BROKER_UP, *(partition.end_offset for partition in self.ledger.partitions))
        self._watch.on_loaded()

    def crash(self) -> None:
        self._world.record(RecordKind.BROKER_CRASHES)
        self.up = False
        self._alarms.off()
        if self._writing and self._world.chance(0.5):
            # The write is durable without an acknowledgement.
            self._commit(self._writing)
        self._writing, self._waiting = [], []
        for call in self._calls:
            call.fail("the connection was reset", within_ms=200)

    # -- requests -----------------------------------------------------------------------------------------------------

    def ask(self, call: Call, by: str, transactional_id: str, make: Callable[[int], Event]) -> None:
        """Pass an event to the coordinator of ``transactional_id``; the response is its `Reply`."""
        now_ms = self._world.now_ms

        def told(written: Written | CoterieError) -> None:
            if isinstance(written, Written):
                call.answer(next(effect for effect in written.effects if isinstance(effect, Reply)))
            else:
                call.answer(Reply(error=ErrorCode.kafka_storage_error))

        self._serve(
            call,
            _Write(
                transactional_id=transactional_id,
                what=make(-1),
                by=by,
                run=lambda store: decide(store, transactional_id, make, now_ms=now_ms),
                told=told,
                now_ms=now_ms,
            ),
        )

    def produce(self, call: Call, by: str, batch: NewBatch) -> None:
        """Append a batch; the response is `Produced`."""
        now_ms = self._world.now_ms

        def told(written: Written | CoterieError) -> None:
            match written:
                case Written():
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
                told=told,
                now_ms=now_ms,
            ),
        )

    def open_transactions(self) -> list[str]:
        """The transactional ids with an open transaction."""
        return [
            transactional_id
            for transactional_id, written in read_transactions(self._store.database)
            if written.state is TransactionState.ONGOING
        ]

    def time_out(self, transactional_id: str) -> None:
        """Fire the timeout of ``transactional_id`` early: the coordinator must check whether it is due."""
        if self.up:
            self._time_out(transactional_id)

    # -- the log's thread ---------------------------------------------------------------------------------------------

    def _serve(self, call: Call, write: _Write) -> None:
        if not self.up:
            call.fail("connection refused", within_ms=20)
            return
        self._calls[call] = None
        self._put(write)

    def _time_out(self, transactional_id: str) -> None:
        now_ms, alarms = self._world.now_ms, self._alarms

        def make(fresh: int) -> Event:
            return TimeoutPassed(fresh_producer_id=fresh)

        def told(written: Written | CoterieError) -> None:
            if isinstance(written, WorldError):
                alarms.set(transactional_id, self._world.now_ms + _RETRY_DELAY_MS)

        self._put(
            _Write(
                transactional_id=transactional_id,
                what=make(-1),
                by="timer",
                run=lambda store: decide(store, transactional_id, make, now_ms=now_ms),
                told=told,
                now_ms=now_ms,
            )
        )

    def _put(self, write: _Write) -> None:
        self._waiting.append(write)
        if not self._writing:
            self._begin()

    def _begin(self) -> None:
        self._writing, self._waiting = self._waiting, []
        writing = self._writing

        def written() -> None:
            if writing is not self._writing:
                return  # the broker has crashed since
            outcomes = self._fail(writing) if self.disk.failing else self._commit(writing)
            self._writing = []
            for write, outcome in outcomes:
                self._tell(write, outcome)
            self._watch.on_told()
            if self._waiting:
                self._begin()

        self._world.after(self.disk.write_ms(self._world.rng), written)

    def _commit(self, writes: list[_Write]) -> list[tuple[_Write, Written | CoterieError]]:
        self._store.begin()
        steps, outcomes = self._run(writes)
        self._store.commit()
        for step, (_, outcome) in zip(steps, outcomes, strict=True):
            values = _values(step, outcome)
            self._world.record(RecordKind.STEP, step.transactional_id, name_of(step.what), step.by, *values)
        self._watch.on_durable(steps)
        return outcomes

    def _fail(self, writes: list[_Write]) -> list[tuple[_Write, Written | CoterieError]]:
        """Run ``writes`` as one transaction of the store and roll it back, as when the disk fails."""
        self._store.begin()
        self._run(writes)
        self._store.rollback()
        self._world.record(RecordKind.ROLLED_BACK, len(writes))
        return [(write, WorldError("the disk fails")) for write in writes]

    def _run(self, writes: list[_Write]) -> tuple[list[DurableWrite], list[tuple[_Write, Written | CoterieError]]]:
        steps: list[DurableWrite] = []
        outcomes: list[tuple[_Write, Written | CoterieError]] = []
        for write in writes:
            before = read_transaction(self._store.database, write.transactional_id)
            changes = self._store.changes
            outcome: Written | CoterieError
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

    def _tell(self, write: _Write, outcome: Written | CoterieError) -> None:
        if isinstance(outcome, Written):
            for grown in outcome.grown:
                partition = self.ledger.partitions[grown.of.partition]
                partition.open_offset = grown.open_offset
                partition.grew(grown.end_offset)
            for effect in outcome.effects:
                match effect:
                    case SetTimer(at_ms=at_ms):
                        self._alarms.set(write.transactional_id, at_ms)
                    case CancelTimer():
                        self._alarms.cancel(write.transactional_id)
                    case Reply():
                        pass  # `write.told` sends it
        write.told(outcome)


def _values(step: DurableWrite, outcome: Written | CoterieError) -> tuple[RecordValue, ...]:
    match outcome:
        case Written():
            ends = (f"{grown.of.partition}:{grown.end_offset}" for grown in outcome.grown)
            return outcome.base_offset, step.after.state if step.after is not None else None, *ends
        case KafkaRefusal():
            return (outcome.error.name,)
        case _:
            return ("failed",)
