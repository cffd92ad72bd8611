"""Maintenance of the log in use: retention, compaction, deleted topics, and shrinking the file.

One asyncio task; blocking reads run on their own thread, and changes of the log are queued with all appends, one short
chunk at a time. Each chunk is queued after the previous one is done, so that an append waits for at most one of them.
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

from coterie.broker.settings import Upkeep
from coterie.broker.storage.log import BrokerLog, Partition, Topic
from coterie.broker.storage.store import WHAT_TO_DO, DamagedLogError, TopicGoneError
from coterie.broker.storage.to_the_end import run_to_the_end
from coterie.broker.topics.policies import TopicPolicy, policy_of
from coterie.broker.upkeep.cleaner import Pass
from coterie.broker.upkeep.rows import (
    RowReader,
    change_rows,
    forget_partition,
    give_back_pages,
    remove_rows,
    set_cleaned,
    set_sifted,
)
from coterie.nouns.errors import WorldError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_EVERY_OFFSET = _EVER_MS = 2**63 - 1
_SPARE_BYTES = 64 * 1024 * 1024
_SPARE_SHARE = 0.25
"""Free space up to either limit stays in the file: under a steady load it is soon reused."""


class _Quiet(NamedTuple):
    """A partition whose next compaction is not due; saves computing the sums over all its batches."""

    offsets: tuple[int, int]
    policy: TopicPolicy
    until_ms: int


async def keep_up(log: BrokerLog, path: Path, settings: Upkeep, *, now_ms: Callable[[], int]) -> None:
    """Run the maintenance of the log file ``path`` until this is cancelled."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker-log-upkeep")
    reader = RowReader(path)
    try:
        await _Upkeep(log, reader, thread, settings, now_ms).run()
    finally:
        # A running read is short, but uses the reader until it ends.
        await run_to_the_end(thread.shutdown)
        reader.close()


class _Upkeep:
    def __init__(
        self,
        log: BrokerLog,
        reader: RowReader,
        thread: ThreadPoolExecutor,
        settings: Upkeep,
        now_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._reader = reader
        self._thread = thread
        self._settings = settings
        self._now_ms = now_ms
        self._failing: set[Callable[[], Awaitable[None]]] = set()
        self._broken: set[str] = set()
        """Names of the operations that failed in their last run; each is logged once."""
        self._damaged: set[str] = set()
        """Names of the operations whose write read a corrupt page. They are not run again, because writes that are
        queued with theirs must be written a second time."""
        self._complained_of: set[str] = set()
        self._quiet: dict[int, _Quiet] = {}

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._settings.initial_delay_ms / 1000
        retention_due_s = due_s
        while True:
            await self._in_turn(self._sweep)
            try:
                async with asyncio.timeout_at(due_s):
                    await self._log.sweep_wanted.wait()
            except TimeoutError:
                if loop.time() >= retention_due_s:
                    await self._in_turn(self._retain)
                    retention_due_s = loop.time() + self._settings.retention_check_interval_ms / 1000
                await self._in_turn(self._compact)
                await self._in_turn(self._give_back)
                due_s = loop.time() + self._settings.cleaner_backoff_ms / 1000

    async def _in_turn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run one operation. After a disk error the operation ends; its next run continues where it ended."""
        try:
            await work()
        except (WorldError, sqlite3.Error) as error:
            if work not in self._failing:
                logger.warning("Maintenance of the broker's log failed, will retry: %s", error)
            self._failing.add(work)
        except Exception:
            logger.exception("Bug in Coterie: maintenance of the broker's log failed, will retry")
        else:
            self._failing.discard(work)

    async def _one_by_one(self, works: Iterable[tuple[str, Callable[[], Awaitable[None]]]]) -> None:
        """Run named operations one after the other; an operation that fails does not stop the others.

        :raises WorldError: the log cannot be written, so the other operations would fail, too.
        """
        for name, work in works:
            if name in self._damaged:
                continue
            try:
                await work()
            except DamagedLogError as error:
                logger.error(
                    "Stopped %s because its data is corrupt; all other maintenance continues: %s%s",
                    name,
                    error,
                    WHAT_TO_DO,
                )
                self._damaged.add(name)
            except WorldError:
                raise
            except sqlite3.Error as error:
                self._note_unreadable(name, error)
            except Exception:
                if name not in self._broken:
                    logger.exception("Bug in Coterie: %s failed; all other maintenance continues", name)
                self._broken.add(name)
            else:
                self._broken.discard(name)

    def _note_unreadable(self, name: str, error: sqlite3.Error) -> None:
        if name not in self._broken:
            logger.error(
                "Delayed %s because its rows cannot be read; all other maintenance continues: %s%s",
                name,
                error,
                WHAT_TO_DO,
            )
        self._broken.add(name)

    # -- hidden rows and deleted topics -------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        """Delete hidden rows, and the rows of deleted topics."""
        self._log.sweep_wanted.clear()
        unreadable: list[tuple[int, sqlite3.Error]] = []
        hidden = await self._look(
            partial(
                self._reader.partitions_with_hidden_rows,
                lambda partition_id, error: unreadable.append((partition_id, error)),
            )
        )
        # Collected after the query, which may find rows of topics that were created during it.
        names = {
            partition.id: f"the removal of deleted records of {topic.name}-{partition.number}"
            for topic in self._log.topics.values()
            for partition in topic.partitions
        }

        def name_of(partition_id: int) -> str:
            return names.get(partition_id, f"the removal of partition {partition_id} of a deleted topic")

        for partition_id, error in unreadable:
            self._note_unreadable(name_of(partition_id), error)
        await self._one_by_one(
            (name_of(partition_id), partial(self._remove, partition_id, start_offset))
            for partition_id, start_offset in hidden
        )
        await self._one_by_one(
            (name_of(partition_id), partial(self._remove_orphan, partition_id))
            for partition_id in await self._look(self._reader.orphans)
        )

    async def _remove_orphan(self, partition_id: int) -> None:
        await self._remove(partition_id, _EVERY_OFFSET)
        await self._log.write(partial(forget_partition, partition_id=partition_id))

    async def _remove(self, partition_id: int, end_offset: int) -> None:
        while (until := await self._look(partial(self._reader.removable, partition_id, end_offset))) is not None:
            await self._log.write(partial(remove_rows, partition_id=partition_id, last_offset=until))

    # -- retention ----------------------------------------------------------------------------------------------------

    async def _retain(self) -> None:
        await self._one_by_one(
            (f"the retention of {topic.name}-{partition.number}", partial(self._retain_partition, partition, policy))
            for topic, partition, policy in await self._partitions()
        )
        await self._sweep()

    async def _retain_partition(self, partition: Partition, policy: TopicPolicy) -> None:
        start_offset = await self._look(partial(self._start_offset, partition, policy))
        if start_offset > partition.start_offset:
            with suppress(TopicGoneError):  # all its records are deleted then
                await self._log.delete_records(partition, start_offset)

    def _start_offset(self, partition: Partition, policy: TopicPolicy) -> int:
        """The start offset of the partition after retention."""
        offset = partition.start_offset
        if policy.retention_ms is not None:
            offset = self._reader.offset_kept_by_time(partition.id, offset, self._now_ms() - policy.retention_ms)
        if policy.retention_bytes is not None:
            offset = self._reader.offset_kept_by_size(partition.id, offset, policy.retention_bytes)
        return offset

    # -- compaction ---------------------------------------------------------------------------------------------------

    async def _compact(self) -> None:
        compacted = [each for each in await self._partitions() if each[2].compacts]
        self._quiet = {
            partition.id: self._quiet[partition.id] for _, partition, _ in compacted if partition.id in self._quiet
        }
        await self._one_by_one(
            (
                f"the compaction of {topic.name}-{partition.number}",
                partial(self._compact_partition, topic, partition, policy),
            )
            for topic, partition, policy in compacted
        )

    async def _compact_partition(self, topic: Topic, partition: Partition, policy: TopicPolicy) -> None:
        complain = partial(self._complain, f"{topic.name}-{partition.number}")
        while await self._compact_some(partition, policy, complain):
            pass

    async def _compact_some(self, partition: Partition, policy: TopicPolicy, complain: Callable[[str], None]) -> bool:
        """Compact a partition once, if that is due; returns whether keys did not fit into memory, so that another
        compaction is needed."""
        # Both offsets are read here, on the event loop, where they change.
        offsets = partition.start_offset, partition.stable_offset
        quiet = self._quiet.get(partition.id)
        if quiet is not None and (quiet.offsets, quiet.policy) == (offsets, policy) and self._now_ms() < quiet.until_ms:
            return False
        one = await self._look(partial(self._pass, partition.id, *offsets, policy, complain))
        if not isinstance(one, Pass):
            self._quiet[partition.id] = _Quiet(offsets, policy, one)
            return False
        settled_offset = one.end_offset
        while await self._look(one.see):
            pass
        await self._log.write(partial(set_sifted, partition_id=partition.id, sifted_offset=one.end_offset))
        while (changes := await self._look(one.sift)) is not None:
            if changes:
                await self._log.write(partial(change_rows, rows=changes))
        await self._log.write(partial(set_cleaned, partition_id=partition.id, cleaned_offset=one.end_offset))
        return one.end_offset < settled_offset

    def _pass(
        self,
        partition_id: int,
        start_offset: int,
        stable_offset: int,
        policy: TopicPolicy,
        complain: Callable[[str], None],
    ) -> Pass | int:
        """A compaction that is due; else the time until which none is due if nothing is written."""
        now_ms = self._now_ms()
        cleaned_offset = max(self._reader.cleaned_offset(partition_id), start_offset)
        # Without a lag, timestamps in the future must not delay compaction.
        written_until_ms = now_ms - policy.min_compaction_lag_ms if policy.min_compaction_lag_ms else _EVER_MS
        settled_offset = self._reader.offset_settled(partition_id, cleaned_offset, stable_offset, written_until_ms)
        dirt = self._reader.dirt(partition_id, start_offset, cleaned_offset, settled_offset)
        if not dirt.is_worth_a_pass(policy, now_ms):
            is_moved_by_time = policy.min_compaction_lag_ms > 0 or policy.max_compaction_lag_ms < _EVER_MS
            return now_ms if is_moved_by_time else dirt.next_horizon_ms or _EVER_MS
        return Pass(
            self._reader,
            partition_id,
            start_offset=start_offset,
            cleaned_offset=cleaned_offset,
            settled_offset=max(cleaned_offset, settled_offset),
            policy=policy,
            dedupe_buffer_size=self._settings.dedupe_buffer_size,
            now_ms=now_ms,
            complain=complain,
        )

    def _complain(self, name: str, sentence: str) -> None:
        """Log a warning once for each partition, not at every compaction."""
        if name not in self._complained_of:
            logger.warning("Maintenance of %s: %s", name, sentence)
            self._complained_of.add(name)

    # -- space --------------------------------------------------------------------------------------------------------

    async def _give_back(self) -> None:
        if not self._log.has_room:
            await self._look(self._reader.shorten_wal)
        while True:
            free_bytes, share = await self._look(self._reader.free_space)
            if free_bytes <= _SPARE_BYTES or share <= _SPARE_SHARE:
                return
            await self._log.write(give_back_pages)

    # -- helpers ------------------------------------------------------------------------------------------------------

    async def _partitions(self) -> list[tuple[Topic, Partition, TopicPolicy]]:
        # On the maintenance thread: with many topics, reading the configs would block the event loop.
        policies = await self._look(partial(self._policies, list(self._log.topics.values())))
        return [(topic, partition, policy) for topic, policy in policies for partition in topic.partitions]

    def _policies(self, topics: Sequence[Topic]) -> list[tuple[Topic, TopicPolicy]]:
        found: list[tuple[Topic, TopicPolicy]] = []
        for topic in topics:
            try:
                found.append((topic, policy_of(topic.configs)))
            except ValueError as error:
                # An older broker validated configs less strictly when they were set.
                self._complain(topic.name, f"its configs are invalid, so all its records are kept: {error}")
        return found

    async def _look(self, look: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, look)
