"""One producer: it requests its producer id and epoch, numbers its batches, sends a batch without a response again, and
commits or aborts, as Kafka's producers do, with both transaction protocols (KIP-98 with KIP-360, and KIP-890)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from coterie.broker.transactions.writes import NewBatch
from coterie.groups.transaction_messages import (
    NO_PRODUCER,
    AddPartitions,
    EndTransaction,
    Event,
    InitProducerId,
    ProducerIdAndEpoch,
    Reply,
)
from coterie.lab.simulator.network import Call
from coterie.lab.simulator.producers.broker import Produced
from coterie.lab.simulator.producers.play import (
    DELIVERY_TIMEOUT_MS,
    IN_FLIGHT_MAX,
    LATE_MAX_MS,
    ProducersPlay,
    TransactionProtocol,
)
from coterie.lab.simulator.producers.sim_topic import PARTITIONS, topic_partition
from coterie.lab.simulator.producers.transaction_contents import TransactionContents
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.sim_process import SimProcess
from coterie.wire.batches import TRANSACTIONAL, NewRecord, check_produced, encode_batch
from coterie.wire.errors import ErrorCode


@dataclass(slots=True, eq=False)
class _Batch:
    """One batch of the present transaction."""

    partition: int
    label: bytes
    """The value of the batch's records, which is unique."""
    data: bytes
    made_at_ms: int
    """When the batch was encoded and first sent."""
    is_written: bool = False
    """Whether the broker has acknowledged the batch."""


class ProducerProcess(SimProcess):
    """One process of a producer. After a restart there is a new process with the same transactional id."""

    def __init__(
        self,
        play: ProducersPlay,
        living: "dict[str, ProducerProcess]",
        name: str,
        transactional_id: str,
        protocol: TransactionProtocol,
    ) -> None:
        super().__init__(play.world, name, transactional_id, living)
        self.play = play
        self.transactional_id = transactional_id
        self.protocol = protocol
        self.is_done = False
        """Whether the process has committed its last transaction."""
        self._rng = play.world.rng
        self._identity = NO_PRODUCER
        self._sequences: dict[int, int] = {}
        """The next sequence number in each partition."""
        self._known: set[int] = set()
        """The partitions that have acknowledged a batch of the present producer id and epoch."""
        self._count = 0
        """Number of transactions begun so far."""
        play.world.record(RecordKind.STARTS, name, protocol.name)
        self._init(None)

    # -- between transactions -----------------------------------------------------------------------------------------

    def _init(self, expected: ProducerIdAndEpoch | None) -> None:
        """Request a producer id and epoch, then begin a transaction. ``expected`` are the present ones; None at the
        start of the process."""

        def make(fresh_producer_id: int) -> Event:
            return InitProducerId(
                timeout_ms=self.play.timeout_ms,
                timeout_max_ms=self.play.timeout_ms,
                expected_producer=expected,
                fresh_producer_id=fresh_producer_id,
            )

        def answered(reply: Reply) -> None:
            self._become(reply.producer)
            self._rest()

        self._ask(make, answered)

    def _become(self, producer: ProducerIdAndEpoch) -> None:
        """Use ``producer`` from now on. If it is new, batches are numbered from 0 again."""
        if producer != self._identity:
            self.play.world.record(RecordKind.BECOMES, self.name, *producer)
            self.play.checker.on_identity(self.name, self.transactional_id, producer)
            self._identity = producer
            self._sequences, self._known = {}, set()

    def _rest(self) -> None:
        """Begin the next transaction after up to 600 ms. It is the last one if the faults have ended."""
        is_last = self.play.is_ending
        self.after(self._rng.randint(0, 600), lambda: self._begin(is_last=is_last))

    def _begin(self, *, is_last: bool) -> None:
        """Begin a transaction with 1 to 8 batches; most transactions are to be committed."""
        self._count += 1
        self._transaction = TransactionContents(f"{self.name}/{self._count}", self.name, self.transactional_id)
        self._is_last = is_last
        self._wants_commit = is_last or self.play.world.chance(0.8)
        self._is_aborting = False
        self._added: set[int] = set()
        """The partitions that AddPartitions has added to the transaction."""
        self._batches: list[_Batch] = []
        self._under_way = 0
        """Number of callbacks that must run before the transaction may end."""
        numbers = self._rng.sample(range(PARTITIONS), self._rng.randint(1, PARTITIONS))
        self._plan = [self._rng.choice(numbers) for _ in range(self._rng.choice((1, 2, 4, 8)))]
        """The partitions of the batches that are still to be sent."""
        self._go_on()

    # -- within a transaction -----------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Send the next batch of the plan; end the transaction if there is none."""
        if self._is_aborting or not self._plan:
            self._end_if_idle()
            return
        number = self._plan[0]
        # Before v12 a partition accepts any sequence number of a producer without batches in it, as in Kafka. There the
        # connection keeps batches in order; this network may not, so the first batch is sent alone.
        is_known = self.protocol is TransactionProtocol.V12 or number in self._known
        if self._span(number) == (IN_FLIGHT_MAX if is_known else 1):
            self._within_transaction(50, self._go_on)
        elif self.protocol is not TransactionProtocol.V12 and number not in self._added:
            self._add(number)
        else:
            del self._plan[0]
            self._send(self._numbered(number))
            is_patient = not self._is_last and self.play.world.chance(0.02)
            pause_ms = self._rng.randint(1_000, 2 * self.play.timeout_ms) if is_patient else self._rng.randint(0, 60)
            self._within_transaction(pause_ms, self._go_on)

    def _span(self, number: int) -> int:
        """Number of this transaction's batches in the partition ``number``, counted from the first one without a
        response. The broker keeps the last `IN_FLIGHT_MAX` batches to detect duplicates."""
        answered = [batch.is_written for batch in self._batches if batch.partition == number]
        return len(answered) - answered.index(False) if False in answered else 0

    def _add(self, number: int) -> None:
        """Add the partition ``number`` to the transaction, then go on. Before KIP-890 a partition must be added before
        its first batch is sent."""
        request = AddPartitions(producer=self._identity, partitions=frozenset((topic_partition(number),)))

        def answered(_: Reply) -> None:
            self._under_way -= 1
            self._added.add(number)
            self._go_on()

        self._under_way += 1
        self._ask(lambda _: request, answered)

    def _numbered(self, number: int) -> _Batch:
        """Make the next batch for the partition ``number``."""
        label = self._transaction.label(number)
        self.play.checker.on_label(self._transaction, label)
        sequence, records = self._sequences.get(number, 0), self._rng.randint(1, 3)
        self._sequences[number] = sequence + records
        data = encode_batch(
            [NewRecord(key=None, value=label)] * records,
            timestamp_ms=self.play.world.now_ms,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        batch = _Batch(number, label, data, self.play.world.now_ms)
        self._batches.append(batch)
        return batch

    def _send(self, batch: _Batch) -> None:
        """Send ``batch``; without a response it is sent again."""
        earlier = self._batches[: self._batches.index(batch)]
        had_earlier = any(other.partition == batch.partition and not other.is_written for other in earlier)
        new = NewBatch(
            topic_partition=topic_partition(batch.partition),
            partition_row_id=self.play.broker.topic.partitions[batch.partition].row_id,
            data=batch.data,
            head=check_produced(batch.data),
            transactional_id=self.transactional_id,
            transaction_support=self.protocol.value,
            needs_keys=False,
        )
        self._under_way += 1

        def answered(answer: object) -> None:
            assert isinstance(answer, Produced)
            self._under_way -= 1
            self._on_produced(batch, answer, had_earlier=had_earlier)

        def failed(_: str) -> None:
            self._under_way -= 1
            self._send_again(batch)

        self.play.network.call(
            self.transactional_id,
            lambda call: self.play.broker.produce(call, self.name, new),
            answered=lambda answer: self.deliver(lambda: answered(answer)),
            failed=lambda why: self.deliver(lambda: failed(why)),
            late_max_ms=LATE_MAX_MS,
        )

    def _on_produced(self, batch: _Batch, answer: Produced, *, had_earlier: bool) -> None:
        """Process the broker's response to ``batch``. ``had_earlier``: when it was sent, an earlier batch of its
        partition had no response."""
        self.play.world.record(RecordKind.PRODUCED, self.name, batch.partition, answer.error.name, answer.base_offset)
        match answer.error:
            case ErrorCode.none:
                batch.is_written = True
                self._known.add(batch.partition)
                self.play.checker.on_written(batch.partition, batch.label, answer.base_offset)
                self._end_if_idle()
            case ErrorCode.kafka_storage_error:
                self._send_again(batch)
            case ErrorCode.out_of_order_sequence_number:
                # The batch before this one has not arrived yet.
                self.play.checker.on_out_of_order(batch.label, had_earlier=had_earlier)
                self._send_again(batch)
            case error:
                self.play.checker.on_refused(self.name, error)
                self._is_aborting = True
                self._end_if_idle()

    def _send_again(self, batch: _Batch) -> None:
        """Send ``batch`` again soon. After `DELIVERY_TIMEOUT_MS` abort the transaction instead."""
        if self.play.world.now_ms - batch.made_at_ms > DELIVERY_TIMEOUT_MS:
            self.play.world.record(RecordKind.BATCH_GIVEN_UP, self.name, batch.partition)
            self._is_aborting = True
        self._within_transaction(
            self._rng.randint(10, 200), lambda: self._end_if_idle() if self._is_aborting else self._send(batch)
        )

    # -- end of a transaction -----------------------------------------------------------------------------------------

    def _within_transaction(self, ms: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` after ``ms``; the transaction does not end before this call."""

        def later() -> None:
            self._under_way -= 1
            callback()

        self._under_way += 1
        self.after(ms, later)

    def _end_if_idle(self) -> None:
        """End the transaction if nothing is under way, and all batches are written or it is to be aborted."""
        if self._under_way:
            return
        if self._is_aborting:
            self._end(is_commit=False)
        elif not self._plan and all(batch.is_written for batch in self._batches):
            self._end(is_commit=self._wants_commit)

    def _end(self, *, is_commit: bool) -> None:
        """Commit or abort the transaction. Without KIP-890 an abort with unacknowledged batches also requests a new
        epoch, so that these batches cannot enter the next transaction."""
        transaction, producer = self._transaction, self._identity
        transaction.is_commit_asked = is_commit
        needs_epoch = not self.protocol.bumps_epoch and not all(batch.is_written for batch in self._batches)
        if needs_epoch and self.play.world.chance(0.5):
            # InitProducerId with the present epoch aborts the open transaction and returns the next epoch (KIP-360).
            self._init(producer)
            return

        def make(fresh_producer_id: int) -> Event:
            return EndTransaction(
                producer=producer,
                is_commit=is_commit,
                bumps_epoch=self.protocol.bumps_epoch,
                fresh_producer_id=fresh_producer_id,
            )

        def answered(reply: Reply) -> None:
            self.play.world.record(RecordKind.COMMITTED if is_commit else RecordKind.ABORTED, self.name)
            self.play.checker.on_ended(transaction, is_commit=is_commit)
            if self._is_last and is_commit:
                self.is_done = True
                self.play.world.record(RecordKind.DONE, self.name)
            elif needs_epoch:
                self.after(self._rng.choice((0, 2_000)), lambda: self._init(producer))
            else:
                self._become(reply.producer)
                self._rest()

        self._ask(make, answered)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _ask(self, make: Callable[[int], Event], answered: Callable[[Reply], None]) -> None:
        """Send a request until it has a response. A refusal ends the process; after a storage error the request is sent
        again."""
        # Before KIP-890 all transactions of a process have one epoch, so the coordinator would apply a late request to
        # the next transaction, as Kafka does: the broker must not read it from a closed connection.
        takes_late = self.protocol is TransactionProtocol.V12

        def serve(call: Call) -> None:
            if takes_late or not call.is_over:
                self.play.broker.ask(call, self.name, self.transactional_id, make)

        def again() -> None:
            self.after(self._rng.randint(20, 300), lambda: self._ask(make, answered))

        def heard(answer: object) -> None:
            assert isinstance(answer, Reply)
            if answer.error is ErrorCode.none:
                answered(answer)
            elif answer.error is ErrorCode.kafka_storage_error:
                again()
            else:
                self.play.checker.on_refused(self.name, answer.error)
                self.kill(RecordKind.REFUSED, answer.error.name)

        self.play.network.call(
            self.transactional_id,
            serve,
            answered=lambda answer: self.deliver(partial(heard, answer)),
            failed=lambda _: self.deliver(again),
            late_max_ms=LATE_MAX_MS if takes_late else 0,
        )
