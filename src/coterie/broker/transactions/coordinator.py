"""Transactions on the event loop: queues the functions of `writes` for the log's writer thread, updates the offsets of
partitions after a write, and times out transactions. The decisions are made in `writes`.
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
    forget_aborted,
    forget_producers,
    forget_transactions,
    open_offsets,
    read_producers,
    read_transaction,
    read_transactions,
)
from coterie.broker.transactions.writes import NewBatch, Written, append, decide, fresh_producer_id
from coterie.engine.timers import Timers
from coterie.groups.transaction_messages import (
    CancelTimer,
    Event,
    Reply,
    SetTimer,
    TimeoutPassed,
    TransactionLimits,
    TransactionWritten,
)
from coterie.groups.transactions import deadline_ms
from coterie.nouns.errors import WorldError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_SWEEP_INTERVAL_MS = 600_000
"""``producer.id.expiration.check.interval.ms``."""
PAGE_ROWS = 500
"""Rows that are read at once from long tables: a fetch waits for at most one such read."""
_RETRY_DELAY_MS = 1_000
"""When the abort of a transaction is retried after a failure."""


class Transactions:
    """All transactional ids of this broker, and the producers of its partitions. Created by :meth:`open`."""

    def __init__(self, log: BrokerLog, limits: TransactionLimits, now_ms: Callable[[], int]) -> None:
        self._log = log
        self.limits = limits
        self.now_ms = now_ms
        self._timers: Timers[str] = Timers()
        self._timers_changed = asyncio.Event()

    @classmethod
    async def open(cls, log: BrokerLog, limits: TransactionLimits, *, now_ms: Callable[[], int]) -> "Transactions":
        """Read the transactions that were open when the broker stopped.

        :raises WorldError: the log cannot be read.
        """
        transactions = cls(log, limits, now_ms)
        found, offsets = await log.write(
            lambda store: (list(read_transactions(store.database)), open_offsets(store.database))
        )
        for transactional_id, written in found:
            due_ms = deadline_ms(written)
            if due_ms is not None:
                transactions._timers.set(transactional_id, due_ms)
        for topic in log.topics.values():
            for partition in topic.partitions:
                partition.open_offset = offsets.get(partition.id)
        return transactions

    # -- requests -----------------------------------------------------------------------------------------------------

    async def fresh_producer_id(self) -> int:
        """A new producer id, for a producer without a transactional id.

        :raises WorldError: the log cannot be written.
        """
        return await self._log.write(fresh_producer_id)

    async def ask(self, transactional_id: str, make: Callable[[int], Event]) -> Reply:
        """The coordinator's response to the event that ``make`` builds with a new producer id.

        :raises WorldError: the log cannot be written.
        """
        written = await self._decide(transactional_id, make)
        return next(effect for effect in written.effects if isinstance(effect, Reply))

    def append(self, batch: NewBatch) -> "asyncio.Future[Written]":
        """Queue a batch; batches are written in the order of these calls. The future fails with the exceptions of
        `writes.append`, or a `WorldError`."""
        now_ms = self.now_ms()
        return self._log.write(
            lambda store: append(store, batch, now_ms=now_ms),
            lambda written: self._tell(batch.transactional_id or "", written),
        )

    # -- queries ------------------------------------------------------------------------------------------------------

    async def read(self, transactional_id: str) -> TransactionWritten | None:
        """:raises WorldError: when the log cannot be read."""
        return await self._log.look(lambda reader: read_transaction(reader.database, transactional_id))

    async def read_all(self) -> list[tuple[str, TransactionWritten]]:
        """All transactions, sorted by transactional id.

        :raises WorldError: the log cannot be read.
        """
        found: list[tuple[str, TransactionWritten]] = []
        after = ""
        while page := await self._log.look(partial(_page_of_transactions, after=after)):
            found += page
            after = page[-1][0]
        return found

    async def producers(self, partition: Partition) -> list[ProducerRow]:
        """All producers of a partition, sorted by producer id.

        :raises WorldError: the log cannot be read.
        """
        found: list[ProducerRow] = []
        after = -1
        while page := await self._log.look(partial(_page_of_producers, partition_id=partition.id, after=after)):
            found += page
            after = page[-1].producer_id
        return found

    # -- time ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Abort transactions after their timeout, and delete expired producers, until this is cancelled."""
        sweep_due_ms = self.now_ms() + _SWEEP_INTERVAL_MS
        while True:
            await self.abort_overdue()
            if self.now_ms() >= sweep_due_ms:
                await self.sweep()
                sweep_due_ms = self.now_ms() + _SWEEP_INTERVAL_MS
            due_ms = min(sweep_due_ms, self._timers.next_at_ms() or sweep_due_ms)
            self._timers_changed.clear()
            try:
                async with asyncio.timeout(max(0, due_ms - self.now_ms()) / 1000):
                    await self._timers_changed.wait()
            except TimeoutError:
                continue

    async def abort_overdue(self) -> None:
        """Abort the transactions whose timeout has passed."""
        now_ms = self.now_ms()
        while (transactional_id := self._timers.pop_due(now_ms)) is not None:
            await self._time_out(transactional_id)

    async def sweep(self) -> None:
        """Delete expired producers, expired transactional ids, and aborted transactions before the start offset."""
        now_ms = self.now_ms()

        def forget(store: Store) -> None:
            forget_producers(store.database, now_ms - self.limits.producer_id_expiration_ms)
            forget_transactions(store.database, now_ms - self.limits.transactional_id_expiration_ms)
            forget_aborted(store.database)

        try:
            await self._log.write(forget)
        except WorldError as error:
            logger.warning("Expired producers could not be deleted, will retry: %s", error)

    async def _time_out(self, transactional_id: str) -> None:
        try:
            await self._decide(transactional_id, lambda fresh: TimeoutPassed(fresh_producer_id=fresh))
        except WorldError as error:
            logger.warning(
                "The transaction of transactional id %s timed out; will retry to abort it: %s", transactional_id, error
            )
            self._timers.set(transactional_id, self.now_ms() + _RETRY_DELAY_MS)
        except Exception:
            logger.exception(
                "Bug in Coterie: the transaction of %s timed out, but stays open until its producer ends it",
                transactional_id,
            )

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _decide(self, transactional_id: str, make: Callable[[int], Event]) -> "asyncio.Future[Written]":
        now_ms = self.now_ms()
        return self._log.write(
            lambda store: decide(store, transactional_id, make, now_ms=now_ms),
            lambda written: self._tell(transactional_id, written),
        )

    def _tell(self, transactional_id: str, written: Written) -> None:
        """Apply the results of a durable write; called in the order of the writes."""
        for grown in written.grown:
            partition = self._log.partition(*grown.of)
            if partition is not None and partition.id == grown.partition_id:
                partition.open_offset = grown.open_offset
                partition.grew(grown.end_offset)
        for effect in written.effects:
            match effect:
                case SetTimer(at_ms=at_ms):
                    self._timers.set(transactional_id, at_ms)
                    self._timers_changed.set()
                case CancelTimer():
                    self._timers.cancel(transactional_id)
                case Reply():
                    pass  # `ask` returns it


def _page_of_transactions(reader: StoreReader, *, after: str) -> list[tuple[str, TransactionWritten]]:
    return list(read_transactions(reader.database, after=after, rows_max=PAGE_ROWS))


def _page_of_producers(reader: StoreReader, *, partition_id: int, after: int) -> list[ProducerRow]:
    return read_producers(reader.database, partition_id, after=after, rows_max=PAGE_ROWS)
