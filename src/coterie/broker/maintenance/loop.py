"""Maintenance of the log while it is used: deletion of hidden rows, retention, compaction, and shrinking the file.

One asyncio task does all maintenance. Blocking reads run on their own thread, and changes of the log are queued with
all appends, one short chunk at a time. Each chunk is queued after the previous one is done, so that an append waits for
at most one of them.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from coterie.broker.maintenance.cleaner import PartitionCleaner
from coterie.broker.maintenance.rows import (
    RowReader,
    advance_end_of_possible_gaps,
    apply_row_changes_and_drop_aborted,
    delete_orphan_partition_row,
    remove_batch_rows,
    store_cleaned_offset,
    vacuum_chunk_of_pages,
)
from coterie.broker.settings import MaintenanceSettings
from coterie.broker.storage.log import BrokerLog, Partition, Topic
from coterie.broker.storage.store import DAMAGE_ADVICE, DamagedLogError, TopicGoneError
from coterie.broker.storage.uncancellable import run_uncancellable
from coterie.broker.topics.cleanup_settings import CleanupSettings, cleanup_settings
from coterie.nouns.errors import WorldError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_EVERY_OFFSET = _EVER_MS = 2**63 - 1
"""An offset after every offset, and a time after every time."""
_SPARE_BYTES = 64 * 1024 * 1024
"""The file is not shrunk if at most this many of its bytes are free: under a steady load they are soon reused."""
_SPARE_SHARE = 0.25
"""The file is not shrunk if at most this share of it is free."""


class _CompactionNotDue(NamedTuple):
    """The result of a check: the partition needs no compaction now. Until ``until_ms``, and while the partition's
    offsets and its policy stay the same, the next passes skip the partition without reading the log."""

    start_and_stable_offsets: tuple[int, int]
    """The partition's start offset and last stable offset."""
    policy: CleanupSettings
    """The retention and compaction settings of the partition's topic."""
    until_ms: int
    """The time at which the partition must be checked again, in ms since 1970."""


async def run_maintenance(
    log: BrokerLog, path: Path, settings: MaintenanceSettings, *, now_ms: Callable[[], int]
) -> None:
    """Maintain the log file ``path``, which ``log`` has opened, until this call is cancelled: delete rows, apply the
    retention, compact, and shrink the file. ``now_ms`` returns the wall clock's time. Errors are logged and do not end
    the maintenance."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker-log-upkeep")
    reader = RowReader(path)
    try:
        await _Maintenance(log, reader, thread, settings, now_ms).run()
    finally:
        # A running read is short, but uses the reader until it ends.
        await run_uncancellable(thread.shutdown)
        reader.close()


class _Maintenance:
    """The maintenance of one log: deletes the rows of batches before start offsets and of deleted topics, applies the
    retention, compacts partitions and shrinks the file."""

    def __init__(
        self,
        log: BrokerLog,
        reader: RowReader,
        thread: ThreadPoolExecutor,
        settings: MaintenanceSettings,
        now_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._reader = reader
        self._thread = thread
        self._settings = settings
        self._now_ms = now_ms
        self._operations_with_disk_error: set[Callable[[], Awaitable[None]]] = set()
        """The operations of `run` that have ended with a disk error and not succeeded since: a next disk error is not
        logged."""
        self._unreadable_or_failed_names: set[str] = set()
        """The names of the operations that failed in their last run, because their rows could not be read or by a bug;
        a next such failure is not logged."""
        self._damaged_names: set[str] = set()
        """The names of the operations whose write has read a corrupt page. These operations are not run again: after
        each such write, the other writes of the same SQLite transaction must be run a second time."""
        self._warned_names: set[str] = set()
        """The partitions and topics about which a warning was logged."""
        self._not_due_by_partition: dict[int, _CompactionNotDue] = {}

    async def run(self) -> None:
        """Delete the rows of batches before start offsets, and of deleted topics, whenever there are any. After
        ``initial_delay_ms``, and again after each ``cleaner_backoff_ms``: apply the retention, if this is the first
        time or ``retention_check_interval_ms`` has passed since the last time; then compact all partitions and shrink
        the file. Runs until this call is cancelled."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._settings.initial_delay_ms / 1000
        retention_due_s = due_s
        while True:
            await self._run_and_log_failure(self._delete_rows_of_deleted_records)
            try:
                async with asyncio.timeout_at(due_s):
                    await self._log.deletion_wanted.wait()
            except TimeoutError:
                if loop.time() >= retention_due_s:
                    await self._run_and_log_failure(self._apply_retention)
                    retention_due_s = loop.time() + self._settings.retention_check_interval_ms / 1000
                await self._run_and_log_failure(self._compact_due_partitions)
                await self._run_and_log_failure(self._shrink_file)
                due_s = loop.time() + self._settings.cleaner_backoff_ms / 1000

    async def _run_and_log_failure(self, operation: Callable[[], Awaitable[None]]) -> None:
        """Run one operation, and log its failure instead of raising it. The operation's next run does what is left to
        do. After a disk error, further disk errors of this operation are not logged until a run of it succeeds."""
        try:
            await operation()
        except (WorldError, sqlite3.Error) as error:
            if operation not in self._operations_with_disk_error:
                logger.warning("Maintenance of the broker's log failed, will retry: %s", error)
            self._operations_with_disk_error.add(operation)
        except Exception:
            logger.exception("Bug in Coterie: maintenance of the broker's log failed, will retry")
        else:
            self._operations_with_disk_error.discard(operation)

    async def _run_each_and_log_unless_unwritable(
        self, operations: Iterable[tuple[str, Callable[[], Awaitable[None]]]]
    ) -> None:
        """Run the named operations one after the other. An operation that fails is logged and does not stop the others.
        An operation whose write has read a corrupt page is not run again until the broker restarts.

        :raises WorldError: the log cannot be written, so the other operations would fail, too.
        """
        for name, work in operations:
            if name in self._damaged_names:
                continue
            try:
                await work()
            except DamagedLogError as error:
                logger.error(
                    "Stopped %s until the broker restarts, because the data is corrupt; all other maintenance "
                    "continues: %s%s",
                    name,
                    error,
                    DAMAGE_ADVICE,
                )
                self._damaged_names.add(name)
            except WorldError:
                raise
            except sqlite3.Error as error:
                self._log_unreadable_unless_repeated(name, error)
            except Exception:
                if name not in self._unreadable_or_failed_names:
                    logger.exception("Bug in Coterie: %s failed, will retry; all other maintenance continues", name)
                self._unreadable_or_failed_names.add(name)
            else:
                self._unreadable_or_failed_names.discard(name)

    def _log_unreadable_unless_repeated(self, name: str, error: sqlite3.Error) -> None:
        """Log that the operation ``name`` could not read its rows, unless its last run failed as well."""
        if name not in self._unreadable_or_failed_names:
            logger.error(
                "Delayed %s because its rows cannot be read, will retry; all other maintenance continues: %s. If the"
                " log is corrupt, `coterie broker check` lists the corruption",
                name,
                error,
            )
        self._unreadable_or_failed_names.add(name)

    # -- hidden rows and deleted topics -------------------------------------------------------------------------------

    async def _delete_rows_of_deleted_records(self) -> None:
        """Delete the rows of batches that end before the start offset of their partition, and all rows of deleted
        topics."""
        self._log.deletion_wanted.clear()
        unreadable: list[tuple[int, sqlite3.Error]] = []
        hidden = await self._run_blocking(
            partial(
                self._reader.partitions_with_rows_before_start,
                lambda partition_id, error: unreadable.append((partition_id, error)),
            )
        )
        # Collected after the query, which may find rows of topics that were created during it.
        names = {
            partition.row_id: f"the removal of deleted records of {topic.name}-{partition.number}"
            for topic in self._log.topics.values()
            for partition in topic.partitions
        }

        def operation_name_of(partition_row_id: int) -> str:
            return names.get(partition_row_id, f"the removal of partition {partition_row_id} of a deleted topic")

        for partition_id, error in unreadable:
            self._log_unreadable_unless_repeated(operation_name_of(partition_id), error)
        await self._run_each_and_log_unless_unwritable(
            (operation_name_of(partition_id), partial(self._remove_batches, partition_id, start_offset))
            for partition_id, start_offset in hidden
        )
        await self._run_each_and_log_unless_unwritable(
            (operation_name_of(partition_id), partial(self._remove_orphan_partition, partition_id))
            for partition_id in await self._run_blocking(self._reader.orphan_partition_row_ids)
        )

    async def _remove_orphan_partition(self, partition_row_id: int) -> None:
        """Delete all rows of a partition whose topic was deleted."""
        await self._remove_batches(partition_row_id, _EVERY_OFFSET)
        await self._log.run_write(partial(delete_orphan_partition_row, partition_row_id=partition_row_id))

    async def _remove_batches(self, partition_row_id: int, end_offset: int) -> None:
        """Delete the batches that end before ``end_offset``, in chunks."""
        while (
            until := await self._run_blocking(
                partial(self._reader.last_offset_of_removable_chunk, partition_row_id, end_offset)
            )
        ) is not None:
            await self._log.run_write(partial(remove_batch_rows, partition_row_id=partition_row_id, last_offset=until))

    # -- retention ----------------------------------------------------------------------------------------------------

    async def _apply_retention(self) -> None:
        """Raise the start offset of each partition past its expired records, and delete the rows of the batches before
        it."""
        await self._run_each_and_log_unless_unwritable(
            (
                f"the retention of {topic.name}-{partition.number}",
                partial(self._raise_start_offset_by_retention, partition, policy),
            )
            for topic, partition, policy in await self._partitions_with_valid_settings()
        )
        await self._delete_rows_of_deleted_records()

    async def _raise_start_offset_by_retention(self, partition: Partition, policy: CleanupSettings) -> None:
        """Raise the start offset of one partition past its expired records. Their rows are not deleted here."""
        start_offset = await self._run_blocking(partial(self._start_offset_after_retention, partition, policy))
        if start_offset > partition.start_offset:
            with suppress(TopicGoneError):  # all its records are deleted then
                await self._log.delete_records(partition, start_offset)

    def _start_offset_after_retention(self, partition: Partition, policy: CleanupSettings) -> int:
        """The start offset that the partition must have now by its retention time and retention size; at least its
        present start offset. Blocks."""
        offset = partition.start_offset
        if policy.retention_ms is not None:
            offset = self._reader.start_offset_after_time_retention(
                partition.row_id, offset, self._now_ms() - policy.retention_ms
            )
        if policy.retention_bytes is not None:
            offset = self._reader.start_offset_after_size_retention(partition.row_id, offset, policy.retention_bytes)
        return offset

    # -- compaction ---------------------------------------------------------------------------------------------------

    async def _compact_due_partitions(self) -> None:
        """Compact each partition of the compacted topics, if a compaction of it is due."""
        compacted = [each for each in await self._partitions_with_valid_settings() if each[2].is_compacted]
        self._not_due_by_partition = {
            partition.row_id: self._not_due_by_partition[partition.row_id]
            for _, partition, _ in compacted
            if partition.row_id in self._not_due_by_partition
        }
        await self._run_each_and_log_unless_unwritable(
            (
                f"the compaction of {topic.name}-{partition.number}",
                partial(self._compact_partition_if_due, topic, partition, policy),
            )
            for topic, partition, policy in compacted
        )

    async def _compact_partition_if_due(self, topic: Topic, partition: Partition, policy: CleanupSettings) -> None:
        """Compact the partition if that is due, several times if its keys do not fit into memory."""
        log_warning_once = partial(self._log_warning_once, f"{topic.name}-{partition.number}")
        while await self._compact_if_due_and_needs_another(partition, policy, log_warning_once):
            pass

    async def _compact_if_due_and_needs_another(
        self, partition: Partition, policy: CleanupSettings, log_warning_once: Callable[[str], None]
    ) -> bool:
        """Compact the partition once, if that is due. Returns whether keys did not fit into memory, so that another
        compaction is needed."""
        # Both offsets are read here, on the event loop, where they change.
        start_and_stable_offsets = partition.start_offset, partition.last_stable_offset
        not_due = self._not_due_by_partition.get(partition.row_id)
        if (
            not_due is not None
            and (not_due.start_and_stable_offsets, not_due.policy) == (start_and_stable_offsets, policy)
            and self._now_ms() < not_due.until_ms
        ):
            return False
        cleaner = await self._run_blocking(
            partial(
                self._due_cleaner_or_next_check_ms,
                partition.row_id,
                *start_and_stable_offsets,
                policy,
                log_warning_once,
            )
        )
        if not isinstance(cleaner, PartitionCleaner):
            self._not_due_by_partition[partition.row_id] = _CompactionNotDue(start_and_stable_offsets, policy, cleaner)
            return False
        first_uncleanable_offset = cleaner.end_offset
        while await self._run_blocking(cleaner.index_keys):
            pass
        await self._log.run_write(
            partial(advance_end_of_possible_gaps, partition_row_id=partition.row_id, sifted_offset=cleaner.end_offset)
        )
        while (changes := await self._run_blocking(cleaner.next_row_changes)) is not None:
            if changes:
                await self._log.run_write(partial(apply_row_changes_and_drop_aborted, changes=changes))
        await self._log.run_write(
            partial(store_cleaned_offset, partition_row_id=partition.row_id, cleaned_offset=cleaner.end_offset)
        )
        return cleaner.end_offset < first_uncleanable_offset

    def _due_cleaner_or_next_check_ms(
        self,
        partition_row_id: int,
        start_offset: int,
        last_stable_offset: int,
        policy: CleanupSettings,
        log_warning_once: Callable[[str], None],
    ) -> PartitionCleaner | int:
        """A cleaner for the compaction of the partition if a compaction is due. Otherwise the time, in ms since 1970,
        at which the partition must be checked again if nothing is written. Blocks."""
        now_ms = self._now_ms()
        cleaned_offset = max(self._reader.cleaned_offset(partition_row_id), start_offset)
        # Without a lag, timestamps in the future must not delay compaction.
        written_until_ms = now_ms - policy.min_compaction_lag_ms if policy.min_compaction_lag_ms else _EVER_MS
        first_uncleanable_offset = self._reader.first_uncleanable_offset(
            partition_row_id, cleaned_offset, last_stable_offset, written_until_ms
        )
        backlog = self._reader.compaction_backlog(
            partition_row_id, start_offset, cleaned_offset, first_uncleanable_offset
        )
        if not backlog.needs_compaction(policy, now_ms):
            is_moved_by_time = policy.min_compaction_lag_ms > 0 or policy.max_compaction_lag_ms < _EVER_MS
            return now_ms if is_moved_by_time else backlog.next_delete_horizon_ms or _EVER_MS
        return PartitionCleaner(
            self._reader,
            partition_row_id,
            start_offset=start_offset,
            cleaned_offset=cleaned_offset,
            first_uncleanable_offset=max(cleaned_offset, first_uncleanable_offset),
            policy=policy,
            dedupe_buffer_bytes=self._settings.dedupe_buffer_bytes,
            now_ms=now_ms,
            log_warning_once=log_warning_once,
        )

    def _log_warning_once(self, name: str, message: str) -> None:
        """Log a warning about ``name``, a partition or topic, unless any warning about this name was logged before."""
        if name not in self._warned_names:
            logger.warning("Maintenance of %s: %s", name, message)
            self._warned_names.add(name)

    # -- space --------------------------------------------------------------------------------------------------------

    async def _shrink_file(self) -> None:
        """Release free pages until at most `_SPARE_BYTES` or at most `_SPARE_SHARE` of the file are free. If the disk
        is nearly full, truncate the write-ahead log first."""
        if not self._log.has_disk_space:
            await self._run_blocking(self._reader.truncate_wal)
        while True:
            free_bytes, share = await self._run_blocking(self._reader.free_bytes_and_share)
            if free_bytes <= _SPARE_BYTES or share <= _SPARE_SHARE:
                return
            await self._log.run_write(vacuum_chunk_of_pages)

    # -- helpers ------------------------------------------------------------------------------------------------------

    async def _partitions_with_valid_settings(self) -> list[tuple[Topic, Partition, CleanupSettings]]:
        """All partitions, each with its topic and settings; those of topics with invalid configs are left out."""
        # On the maintenance thread: with many topics, reading the configs would block the event loop.
        policies = await self._run_blocking(partial(self._topics_with_valid_settings, list(self._log.topics.values())))
        return [(topic, partition, policy) for topic, policy in policies for partition in topic.partitions]

    def _topics_with_valid_settings(self, topics: Sequence[Topic]) -> list[tuple[Topic, CleanupSettings]]:
        """The settings of each topic; topics with invalid configs are left out, with a warning."""
        found: list[tuple[Topic, CleanupSettings]] = []
        for topic in topics:
            try:
                found.append((topic, cleanup_settings(topic.configs)))
            except ValueError as error:
                # An older broker validated configs less strictly when they were set.
                self._log_warning_once(
                    topic.name,
                    f"its configs are invalid, so all its records are kept until the configs are corrected: {error}",
                )
        return found

    async def _run_blocking(self, function: Callable[[], T]) -> T:
        """Run a blocking function on the maintenance thread and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)
