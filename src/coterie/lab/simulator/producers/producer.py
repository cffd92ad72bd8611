"""One producer: it requests its producer id and epoch, numbers its batches, sends unacknowledged batches again, and
commits or aborts transactions, as Kafka's producers do. It does so by one of both transaction protocols (KIP-98 with
KIP-360, or KIP-890)."""

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
from coterie.lab.simulator.network import NetworkCall
from coterie.lab.simulator.producers.broker import ProduceResponse
from coterie.lab.simulator.producers.play import (
    DELIVERY_TIMEOUT_MS,
    IN_FLIGHT_MAX,
    REQUEST_DELAY_MAX_MS,
    ProduceVersion,
    SharedByProducers,
)
from coterie.lab.simulator.producers.sim_topic import PARTITION_COUNT, topic_partition
from coterie.lab.simulator.producers.transaction_contents import TransactionContents
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.sim_process import SimProcess
from coterie.wire.batches import TRANSACTIONAL_BIT, NewRecord, check_produced_batch, encode_batch
from coterie.wire.errors import ErrorCode


@dataclass(slots=True, eq=False)
class _Batch:
    """One batch that a producer has made for its present transaction."""

    partition: int
    label: bytes
    """The value of all records of the batch; no other batch has this value."""
    data: bytes
    """The encoded batch."""
    made_at_ms: int
    """When the batch was encoded and first sent."""
    has_acknowledgement: bool = False
    """Whether the broker has acknowledged the batch."""


class ProducerProcess(SimProcess):
    """One process of a producer. A restart of the producer is a new process with the same transactional id."""

    def __init__(
        self,
        play: SharedByProducers,
        live_processes: "dict[str, ProducerProcess]",
        name: str,
        transactional_id: str,
        protocol: ProduceVersion,
    ) -> None:
        super().__init__(play.world, name, transactional_id, live_processes)
        self.play = play
        self.transactional_id = transactional_id
        self.protocol = protocol
        self.is_done = False
        """Whether the process has received the success of the commit of its last transaction."""
        self._rng = play.world.rng
        self._identity = NO_PRODUCER
        """The present producer id and epoch."""
        self._sequences: dict[int, int] = {}
        """By partition, the sequence number of the next record."""
        self._acknowledged_partitions: set[int] = set()
        """The partitions in which a batch with the present producer id and epoch was acknowledged."""
        self._transaction_count = 0
        """Number of transactions begun so far."""
        play.world.add_record(RecordKind.STARTS, name, protocol.name)
        self._request_id_and_begin_transaction(None)

    # -- between transactions -----------------------------------------------------------------------------------------

    def _request_id_and_begin_transaction(self, expected_producer: ProducerIdAndEpoch | None) -> None:
        """Request a producer id and epoch; with the response, begin the next transaction after a pause.
        ``expected_producer`` is the present producer id and epoch; None at the start of the process."""

        def make_event(fresh_producer_id: int) -> Event:
            return InitProducerId(
                transaction_timeout_ms=self.play.timeout_ms,
                transaction_timeout_max_ms=self.play.timeout_ms,
                expected_producer=expected_producer,
                fresh_producer_id=fresh_producer_id,
            )

        def on_success_reply(reply: Reply) -> None:
            self._use_identity(reply.producer)
            self._begin_transaction_after_pause()

        self._send_until_success_or_kill(make_event, on_success_reply)

    def _use_identity(self, producer: ProducerIdAndEpoch) -> None:
        """Use the producer id and epoch ``producer`` from now on. If they are new, check that no other process has
        them, and number records from 0 again."""
        if producer != self._identity:
            self.play.world.add_record(RecordKind.BECOMES, self.name, *producer)
            self.play.checker.check_and_store_identity(self.name, self.transactional_id, producer)
            self._identity = producer
            self._sequences, self._acknowledged_partitions = {}, set()

    def _begin_transaction_after_pause(self) -> None:
        """Begin the next transaction after up to 600 ms. It is the last one if the faults have ended by now."""
        is_last = self.play.is_ending
        self.call_after(self._rng.randint(0, 600), lambda: self._begin_transaction(is_last=is_last))

    def _begin_transaction(self, *, is_last: bool) -> None:
        """Begin a transaction with 1, 2, 4 or 8 batches. A last transaction and 80 % of the others are to be
        committed."""
        self._transaction_count += 1
        self._transaction = TransactionContents(
            f"{self.name}/{self._transaction_count}", self.name, self.transactional_id
        )
        self._is_last = is_last
        self._wants_commit = is_last or self.play.world.draw_bool(0.8)
        self._is_aborting = False
        self._added_partitions: set[int] = set()
        """The partitions that AddPartitions has added to the transaction."""
        self._batches: list[_Batch] = []
        self._pending_callback_count = 0
        """Number of pending callbacks (responses and pauses) that must come before the transaction may end."""
        partition_numbers = self._rng.sample(range(PARTITION_COUNT), self._rng.randint(1, PARTITION_COUNT))
        self._planned_partitions = [self._rng.choice(partition_numbers) for _ in range(self._rng.choice((1, 2, 4, 8)))]
        """The partitions of the batches that are still to be sent."""
        self._send_next_batch_or_end()

    # -- within a transaction -----------------------------------------------------------------------------------------

    def _send_next_batch_or_end(self) -> None:
        """Send the next planned batch, and plan the next call of this method; if no batch is planned, or the
        transaction is to be aborted, try to end the transaction. While too many batches in the partition are
        unacknowledged, try again every 50 ms. Before Produce v12, first add the partition to the transaction."""
        if self._is_aborting or not self._planned_partitions:
            self._end_transaction_if_idle()
            return
        partition_number = self._planned_partitions[0]
        # Before v12 a partition accepts any sequence number of a producer without batches in it, as in Kafka. There the
        # connection keeps batches in order; this network may not, so the first batch is sent alone.
        is_acknowledged = self.protocol is ProduceVersion.V12 or partition_number in self._acknowledged_partitions
        if self._in_flight_batch_span(partition_number) == (IN_FLIGHT_MAX if is_acknowledged else 1):
            self._call_before_transaction_end(50, self._send_next_batch_or_end)
        elif self.protocol is not ProduceVersion.V12 and partition_number not in self._added_partitions:
            self._add_partition_and_continue(partition_number)
        else:
            del self._planned_partitions[0]
            self._send_batch(self._make_batch(partition_number))
            is_long_pause = not self._is_last and self.play.world.draw_bool(0.02)
            pause_ms = self._rng.randint(1_000, 2 * self.play.timeout_ms) if is_long_pause else self._rng.randint(0, 60)
            self._call_before_transaction_end(pause_ms, self._send_next_batch_or_end)

    def _in_flight_batch_span(self, partition_number: int) -> int:
        """Number of this transaction's batches in partition ``partition_number``, counted from the first one without an
        acknowledgement to the last one sent. It is limited because the broker keeps only the last `IN_FLIGHT_MAX`
        batches to detect duplicates."""
        is_written_by_batch = [
            batch.has_acknowledgement for batch in self._batches if batch.partition == partition_number
        ]
        return len(is_written_by_batch) - is_written_by_batch.index(False) if False in is_written_by_batch else 0

    def _add_partition_and_continue(self, partition_number: int) -> None:
        """Add partition ``partition_number`` to the transaction, then go on with :meth:`_send_next_batch_or_end`.
        Before KIP-890 a partition must be added before its first batch is sent."""
        request = AddPartitions(producer=self._identity, partitions=frozenset((topic_partition(partition_number),)))

        def on_success_reply(_: Reply) -> None:
            self._pending_callback_count -= 1
            self._added_partitions.add(partition_number)
            self._send_next_batch_or_end()

        self._pending_callback_count += 1
        self._send_until_success_or_kill(lambda _: request, on_success_reply)

    def _make_batch(self, partition_number: int) -> _Batch:
        """Make the transaction's next batch, for partition ``partition_number``, with 1 to 3 records and a new
        label."""
        label = self._transaction.add_batch_label(partition_number)
        self.play.checker.note_batch_label(self._transaction, label)
        sequence, record_count = self._sequences.get(partition_number, 0), self._rng.randint(1, 3)
        self._sequences[partition_number] = sequence + record_count
        data = encode_batch(
            [NewRecord(key=None, value=label)] * record_count,
            timestamp_ms=self.play.world.now_ms,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_BIT,
        )
        batch = _Batch(partition_number, label, data, self.play.world.now_ms)
        self._batches.append(batch)
        return batch

    def _send_batch(self, batch: _Batch) -> None:
        """Send ``batch``. :meth:`_handle_produce_response` processes the response; without a response
        :meth:`_schedule_resend_or_abort` sends the batch again, or aborts the transaction after
        `DELIVERY_TIMEOUT_MS`."""
        earlier = self._batches[: self._batches.index(batch)]
        had_unacknowledged_earlier_batch = any(
            earlier_batch.partition == batch.partition and not earlier_batch.has_acknowledgement
            for earlier_batch in earlier
        )
        new_batch = NewBatch(
            topic_partition=topic_partition(batch.partition),
            partition_row_id=self.play.broker.topic.partitions[batch.partition].row_id,
            data=batch.data,
            head=check_produced_batch(batch.data),
            transactional_id=self.transactional_id,
            unadded_partition_rule=self.protocol.value,
            needs_keys=False,
        )
        self._pending_callback_count += 1

        def on_response(response: object) -> None:
            assert isinstance(response, ProduceResponse)
            self._pending_callback_count -= 1
            self._handle_produce_response(
                batch, response, had_unacknowledged_earlier_batch=had_unacknowledged_earlier_batch
            )

        def on_failure(_: str) -> None:
            self._pending_callback_count -= 1
            self._schedule_resend_or_abort(batch)

        self.play.network.send_request(
            self.transactional_id,
            lambda call: self.play.broker.queue_batch_append(call, self.name, new_batch),
            on_response=lambda answer: self.call_now_or_on_resume(lambda: on_response(answer)),
            on_failure=lambda reason: self.call_now_or_on_resume(lambda: on_failure(reason)),
            late_max_if_broken_ms=REQUEST_DELAY_MAX_MS,
        )

    def _handle_produce_response(
        self, batch: _Batch, response: ProduceResponse, *, had_unacknowledged_earlier_batch: bool
    ) -> None:
        """Process the broker's response to ``batch``. ``had_unacknowledged_earlier_batch``: whether an earlier batch in
        the same partition was not acknowledged when ``batch`` was sent."""
        self.play.world.add_record(
            RecordKind.PRODUCED, self.name, batch.partition, response.error.name, response.base_offset
        )
        match response.error:
            case ErrorCode.none:
                batch.has_acknowledgement = True
                self._acknowledged_partitions.add(batch.partition)
                self.play.checker.check_acknowledged_batch(batch.partition, batch.label, response.base_offset)
                self._end_transaction_if_idle()
            case ErrorCode.kafka_storage_error:
                self._schedule_resend_or_abort(batch)
            case ErrorCode.out_of_order_sequence_number:
                # The batch before this one has not arrived yet.
                self.play.checker.check_out_of_order_refusal(
                    batch.label, had_unacknowledged_earlier_batch=had_unacknowledged_earlier_batch
                )
                self._schedule_resend_or_abort(batch)
            case error:
                self.play.checker.check_request_refusal(self.name, error)
                self._is_aborting = True
                self._end_transaction_if_idle()

    def _schedule_resend_or_abort(self, batch: _Batch) -> None:
        """Send ``batch`` again after 10 to 200 ms. If more than `DELIVERY_TIMEOUT_MS` have passed since it was made,
        give it up and abort the transaction instead."""
        if self.play.world.now_ms - batch.made_at_ms > DELIVERY_TIMEOUT_MS:
            self.play.world.add_record(RecordKind.BATCH_GIVEN_UP, self.name, batch.partition)
            self._is_aborting = True
        self._call_before_transaction_end(
            self._rng.randint(10, 200),
            lambda: self._end_transaction_if_idle() if self._is_aborting else self._send_batch(batch),
        )

    # -- end of a transaction -----------------------------------------------------------------------------------------

    def _call_before_transaction_end(self, in_ms: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` after ``in_ms``, or when the process resumes; the transaction does not end before this
        call."""

        def count_down_and_call() -> None:
            self._pending_callback_count -= 1
            callback()

        self._pending_callback_count += 1
        self.call_after(in_ms, count_down_and_call)

    def _end_transaction_if_idle(self) -> None:
        """If no callback is pending: abort the transaction if it is to be aborted; if all planned batches were
        sent and acknowledged, commit or abort it as planned."""
        if self._pending_callback_count:
            return
        if self._is_aborting:
            self._end_transaction_and_begin_next(is_commit=False)
        elif not self._planned_partitions and all(batch.has_acknowledgement for batch in self._batches):
            self._end_transaction_and_begin_next(is_commit=self._wants_commit)

    def _end_transaction_and_begin_next(self, *, is_commit: bool) -> None:
        """Commit or abort the transaction, then begin the next one, unless this was the last. Without KIP-890, an abort
        with unacknowledged batches also requests a new epoch, with the abort or after it, so that these batches cannot
        enter the next transaction."""
        transaction, producer = self._transaction, self._identity
        transaction.is_commit_requested = is_commit
        needs_new_epoch = not self.protocol.bumps_epoch and not all(
            batch.has_acknowledgement for batch in self._batches
        )
        if needs_new_epoch and self.play.world.draw_bool(0.5):
            # InitProducerId with the present epoch aborts the open transaction and returns the next epoch (KIP-360).
            self._request_id_and_begin_transaction(producer)
            return

        def make_event(fresh_producer_id: int) -> Event:
            return EndTransaction(
                producer=producer,
                is_commit=is_commit,
                bumps_epoch=self.protocol.bumps_epoch,
                fresh_producer_id=fresh_producer_id,
            )

        def on_success_reply(reply: Reply) -> None:
            self.play.world.add_record(RecordKind.COMMITTED if is_commit else RecordKind.ABORTED, self.name)
            self.play.checker.check_acknowledged_transaction_end(transaction, is_commit=is_commit)
            if self._is_last and is_commit:
                self.is_done = True
                self.play.world.add_record(RecordKind.DONE, self.name)
            elif needs_new_epoch:
                self.call_after(self._rng.choice((0, 2_000)), lambda: self._request_id_and_begin_transaction(producer))
            else:
                self._use_identity(reply.producer)
                self._begin_transaction_after_pause()

        self._send_until_success_or_kill(make_event, on_success_reply)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _send_until_success_or_kill(
        self, make_event: Callable[[int], Event], on_success: Callable[[Reply], None]
    ) -> None:
        """Send the request that ``make_event`` builds from a fresh producer id, and call ``on_success`` with a response
        without an error. After a failure or KAFKA_STORAGE_ERROR the request is sent again. Any other error ends the
        process, after a check that the process may be refused."""
        # Before KIP-890 all transactions of a process have one epoch, so the coordinator would apply a late request to
        # the next transaction, as Kafka does: the broker must not read it from a closed connection.
        may_arrive_late = self.protocol is ProduceVersion.V12

        def serve_unless_too_late(call: NetworkCall) -> None:
            if may_arrive_late or not call.has_ended:
                self.play.broker.queue_transaction_event(call, self.name, self.transactional_id, make_event)

        def retry() -> None:
            self.call_after(
                self._rng.randint(20, 300), lambda: self._send_until_success_or_kill(make_event, on_success)
            )

        def on_response(reply: object) -> None:
            assert isinstance(reply, Reply)
            if reply.error is ErrorCode.none:
                on_success(reply)
            elif reply.error is ErrorCode.kafka_storage_error:
                retry()
            else:
                self.play.checker.check_request_refusal(self.name, reply.error)
                self.kill(RecordKind.REFUSED, reply.error.name)

        self.play.network.send_request(
            self.transactional_id,
            serve_unless_too_late,
            on_response=lambda answer: self.call_now_or_on_resume(partial(on_response, answer)),
            on_failure=lambda _: self.call_now_or_on_resume(retry),
            late_max_if_broken_ms=REQUEST_DELAY_MAX_MS if may_arrive_late else 0,
        )
