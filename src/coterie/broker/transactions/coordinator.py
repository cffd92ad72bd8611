"""Transactions on the event loop: queues the functions of `writes` for the log's writer thread, updates the offsets of
partitions after a write, and aborts transactions after their timeout. The decisions are made in `writes`.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from coterie.broker.storage.log import BrokerLog, Partition
from coterie.broker.storage.reader import StoreReader
from coterie.broker.storage.store import Store
from coterie.broker.storage.transaction_store import (
    ProducerRow,
    delete_aborted_transactions_before_start,
    delete_expired_producers,
    delete_expired_transactional_ids,
    read_first_unstable_offsets,
    read_partition_producer_rows,
    read_transaction,
    read_transactions,
)
from coterie.broker.transactions.writes import (
    NewBatch,
    UnaddedPartitionRule,
    WriteResult,
    append,
    begin_transaction_in_offsets_partition,
    fresh_producer_id,
    step_coordinator,
)
from coterie.engine.timers import Timers
from coterie.groups.transaction_messages import (
    CancelTimer,
    Event,
    MarkersWritten,
    ProducerIdAndEpoch,
    Reply,
    SetTimer,
    TimeoutPassed,
    TopicPartition,
    TransactionSettings,
    TransactionWritten,
)
from coterie.groups.transactions import open_transaction_deadline_ms
from coterie.nouns.errors import WorldError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_EXPIRY_INTERVAL_MS = 600_000
"""The time between two deletions of expired producers and transactional ids; Kafka's default of
``producer.id.expiration.check.interval.ms``."""
PAGE_ROWS = 500
"""The number of rows that one read takes from a long table: a fetch waits for at most one such read."""
_RETRY_DELAY_MS = 1_000
"""The delay after which the abort of a transaction is tried again when it has failed."""


class TransactionCoordinator:
    """Runs the transactions of this broker: the steps of transactional ids and the batches of producers are queued for
    the log's writer thread, transactions are aborted after their timeout, and expired producers and transactional ids
    are deleted. The states are in the log's tables; this object holds only the timers. Created by :meth:`open`."""

    def __init__(
        self,
        log: BrokerLog,
        limits: TransactionSettings,
        now_ms: Callable[[], int],
        on_markers: Callable[[MarkersWritten], None],
    ) -> None:
        self._log = log
        self._on_markers = on_markers
        self.limits = limits
        """The maximum timeout of a transaction, and after which time the state of an idle producer or transactional id
        expires."""
        self.now_ms = now_ms
        """The broker's steady clock, in ms since 1970: for timeouts, and for the times in the states of transactions
        and producers."""
        self._timers: Timers[str] = Timers()
        self._timers_changed = asyncio.Event()

    @classmethod
    async def open(
        cls,
        log: BrokerLog,
        limits: TransactionSettings,
        *,
        now_ms: Callable[[], int],
        on_markers: Callable[[MarkersWritten], None] = lambda _: None,
    ) -> "TransactionCoordinator":
        """Read the log and create the object: with timers for the transactions that were ongoing when the broker
        stopped. Also sets the ``first_unstable_offset`` of each partition of ``log``. ``on_markers`` is called with the
        markers of each ended transaction once they are durable, before the response to the request that ended the
        transaction is sent.

        :raises WorldError: the log cannot be read.
        """
        transactions = cls(log, limits, now_ms, on_markers)
        found, offsets = await log.run_write(
            lambda store: (list(read_transactions(store.database)), read_first_unstable_offsets(store.database))
        )
        for transactional_id, written in found:
            due_ms = open_transaction_deadline_ms(written)
            if due_ms is not None:
                transactions._timers.set(transactional_id, due_ms)
        for topic in log.topics.values():
            for partition in topic.partitions:
                partition.first_unstable_offset = offsets.get(partition.row_id)
        return transactions

    # -- requests -----------------------------------------------------------------------------------------------------

    async def fresh_producer_id(self) -> int:
        """Assign a new producer id, for a producer without a transactional id.

        :raises WorldError: the log cannot be written.
        """
        return await self._log.run_write(fresh_producer_id)

    async def ask(self, transactional_id: str, make_event_for_next_producer_id: Callable[[int], Event]) -> Reply:
        """Run one step of the coordinator of ``transactional_id``, and return its response once the step is durable.
        ``make_event_for_next_producer_id`` builds the step's event from the producer id that would be assigned next,
        which the step may use.

        :raises WorldError: the log cannot be written.
        """
        written = await self._step_coordinator(transactional_id, make_event_for_next_producer_id)
        return next(effect for effect in written.effects if isinstance(effect, Reply))

    def append(self, batch: NewBatch) -> "asyncio.Future[WriteResult]":
        """Queue a batch; batches are written in the order of these calls. The future gets the result once the batch is
        durable, or an exception of `writes.append`, or a `WorldError` if the log cannot be written."""
        now_ms = self.now_ms()
        return self._log.run_write(
            lambda store: append(store, batch, now_ms=now_ms),
            lambda written: self._on_write_durable(batch.transactional_id or "", written),
        )

    def begin_transaction_in_offsets_partition(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        topic_partition: TopicPartition,
        unadded_rule: UnaddedPartitionRule,
    ) -> "asyncio.Future[WriteResult]":
        """Queue the write that begins the producer's transaction in a partition to which the broker itself appends
        (`writes.begin_transaction_in_offsets_partition`). Until the transaction ends, readers of committed records
        receive no later records of this partition. ``unadded_rule`` applies if the partition is not in the transaction
        yet: it is added, or the write is refused.

        Returns at once. When the write is durable, the future has its result. The future raises `KafkaRefusal` when the
        write is refused, and `WorldError` when the broker's log cannot be written.
        """
        now_ms = self.now_ms()
        return self._log.run_write(
            lambda store: begin_transaction_in_offsets_partition(
                store, transactional_id, producer, topic_partition, unadded_rule, now_ms=now_ms
            ),
            lambda written: self._on_write_durable(transactional_id, written),
        )

    # -- queries ------------------------------------------------------------------------------------------------------

    async def read_transaction(self, transactional_id: str) -> TransactionWritten | None:
        """The last written state of the transactional id; None if there is none.

        :raises WorldError: the log cannot be read.
        """
        return await self._log.run_read(lambda reader: read_transaction(reader.database, transactional_id))

    async def read_all_transactions(self) -> list[tuple[str, TransactionWritten]]:
        """Each transactional id with its last written state, sorted by transactional id.

        :raises WorldError: the log cannot be read.
        """
        found: list[tuple[str, TransactionWritten]] = []
        after = ""
        while page := await self._log.run_read(partial(_page_of_transactions, after=after)):
            found += page
            after = page[-1][0]
        return found

    async def producers(self, partition: Partition) -> list[ProducerRow]:
        """All producers of a partition with their states in it, sorted by producer id.

        :raises WorldError: the log cannot be read.
        """
        found: list[ProducerRow] = []
        after = -1
        while page := await self._log.run_read(
            partial(_page_of_producers, partition_row_id=partition.row_id, after=after)
        ):
            found += page
            after = page[-1].producer_id
        return found

    # -- time ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Abort transactions after their timeout, and at intervals delete what `delete_expired_states_or_warn` deletes,
        until this call is cancelled. Errors of the log are logged and do not end the call."""
        sweep_due_ms = self.now_ms() + _EXPIRY_INTERVAL_MS
        while True:
            await self.abort_overdue_transactions()
            if self.now_ms() >= sweep_due_ms:
                await self.delete_expired_states_or_warn()
                sweep_due_ms = self.now_ms() + _EXPIRY_INTERVAL_MS
            due_ms = min(sweep_due_ms, self._timers.next_deadline_ms() or sweep_due_ms)
            self._timers_changed.clear()
            try:
                async with asyncio.timeout(max(0, due_ms - self.now_ms()) / 1000):
                    await self._timers_changed.wait()
            except TimeoutError:
                continue

    async def abort_overdue_transactions(self) -> None:
        """Abort the transactions whose timeout has passed. An abort that fails is logged and, if the log could not be
        written, tried again after `_RETRY_DELAY_MS`."""
        now_ms = self.now_ms()
        while (transactional_id := self._timers.pop_due(now_ms)) is not None:
            await self._abort_timed_out_or_retry_later(transactional_id)

    async def delete_expired_states_or_warn(self) -> None:
        """Delete expired producers and transactional ids, and the entries of aborted transactions that end before their
        partition's start offset. If the log cannot be written, a warning is logged and no error is raised."""
        now_ms = self.now_ms()

        def delete_expired_rows(store: Store) -> None:
            delete_expired_producers(store.database, now_ms - self.limits.producer_id_expiration_ms)
            delete_expired_transactional_ids(store.database, now_ms - self.limits.transactional_id_expiration_ms)
            delete_aborted_transactions_before_start(store.database)

        try:
            await self._log.run_write(delete_expired_rows)
        except WorldError as error:
            logger.warning(
                "Expired producers and transactional ids could not be deleted, will retry in %d s: %s",
                _EXPIRY_INTERVAL_MS // 1000,
                error,
            )

    async def _abort_timed_out_or_retry_later(self, transactional_id: str) -> None:
        """Abort one transaction whose timeout has passed. A failure is logged; if the log cannot be written, the abort
        is tried again after `_RETRY_DELAY_MS`."""
        try:
            await self._step_coordinator(transactional_id, lambda fresh: TimeoutPassed(fresh_producer_id=fresh))
        except WorldError as error:
            logger.warning(
                "The transaction of transactional id %s timed out and could not be aborted, will retry: %s",
                transactional_id,
                error,
            )
            self._timers.set(transactional_id, self.now_ms() + _RETRY_DELAY_MS)
        except Exception:
            logger.exception(
                "Bug in Coterie: the transaction of transactional id %s timed out and could not be aborted. Readers of"
                " committed records wait for its end: restart its producer, which aborts it, or the broker",
                transactional_id,
            )

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _step_coordinator(
        self, transactional_id: str, make_event_for_next_producer_id: Callable[[int], Event]
    ) -> "asyncio.Future[WriteResult]":
        """Queue one step of the coordinator of ``transactional_id`` for the log's writer thread. The future gets the
        result once the step is durable, or a `WorldError` if the log cannot be written."""
        now_ms = self.now_ms()
        return self._log.run_write(
            lambda store: step_coordinator(store, transactional_id, make_event_for_next_producer_id, now_ms=now_ms),
            lambda written: self._on_write_durable(transactional_id, written),
        )

    def _on_write_durable(self, transactional_id: str, written: WriteResult) -> None:
        """Apply the result of a durable write: update the offsets of the partitions to which it wrote, set or cancel
        the timer of ``transactional_id``, and pass the written markers to ``on_markers``. Called in the order of the
        writes; not called for a failed write."""
        for grown in written.partition_offsets:
            partition = self._log.partition(*grown.topic_partition)
            if partition is not None and partition.row_id == grown.partition_row_id:
                partition.first_unstable_offset = grown.first_unstable_offset
                partition.advance_end_offset(grown.end_offset)
        for effect in written.effects:
            match effect:
                case SetTimer(at_ms=at_ms):
                    self._timers.set(transactional_id, at_ms)
                    self._timers_changed.set()
                case CancelTimer():
                    self._timers.cancel(transactional_id)
                case Reply():
                    pass  # `ask` returns it
        for markers in written.markers:
            self._on_markers(markers)


def _page_of_transactions(reader: StoreReader, *, after: str) -> list[tuple[str, TransactionWritten]]:
    """The next `PAGE_ROWS` transactional ids after ``after``, with their states."""
    return list(read_transactions(reader.database, after=after, rows_max=PAGE_ROWS))


def _page_of_producers(reader: StoreReader, *, partition_row_id: int, after: int) -> list[ProducerRow]:
    """The next `PAGE_ROWS` producers of the partition after the producer id ``after``."""
    return read_partition_producer_rows(reader.database, partition_row_id, after=after, rows_max=PAGE_ROWS)
