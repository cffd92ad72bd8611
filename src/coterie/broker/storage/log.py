"""Topics and partitions of the broker: durable appends, reads, and notification of waiting readers.

One thread writes (`writer`), another reads. The event loop never waits for the disk. A partition's ``end_offset`` is
the offset after its last durable record: reads stop there. Records before its ``start_offset`` are hidden from readers;
their rows may not be deleted yet.
"""

import asyncio
import logging
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from coterie.broker.storage.folder import lock_folder, make_folder_private_if_new
from coterie.broker.storage.layout import check_is_broker_log, create_new_log_file
from coterie.broker.storage.log_file import make_open_error
from coterie.broker.storage.reader import ReadableSize, StoreReader
from coterie.broker.storage.store import Store, StoredPartition, StoredTopic, open_database_read_only
from coterie.broker.storage.transaction_store import (
    AbortedTransaction,
    check_producer_transaction_is_open,
    read_aborted_transactions,
)
from coterie.broker.storage.uncancellable import run_uncancellable
from coterie.broker.storage.writer import LogWriter
from coterie.nouns.errors import WorldError
from coterie.nouns.log_rate_limit import LogRateLimit
from coterie.wire.batches import BatchHeader

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Partition:
    """One partition: its start and end offset, and the events of the readers that wait for new records."""

    __slots__ = ("_reader_events", "end_offset", "first_unstable_offset", "number", "row_id", "start_offset")

    def __init__(self, stored: StoredPartition, number: int) -> None:
        self.row_id = stored.row_id
        self.number = number
        self.start_offset = stored.start_offset
        self.end_offset = stored.end_offset
        self.first_unstable_offset: int | None = None
        """First offset of the earliest open transaction; None if no transaction is open."""
        self._reader_events: set[asyncio.Event] = set()

    @property
    def last_stable_offset(self) -> int:
        """The last stable offset (LSO): the first offset of the earliest open transaction, or the end offset if no
        transaction is open; never before the start offset. Compaction, and readers of committed records, stop here."""
        if self.first_unstable_offset is None:
            return self.end_offset
        # The start offset may be beyond the first record of an open transaction: the LSO is never before the start.
        return max(self.start_offset, min(self.first_unstable_offset, self.end_offset))

    def advance_end_offset(self, end_offset: int) -> None:
        """Set ``end_offset``, unless it is already higher, and notify the readers."""
        self.end_offset = max(self.end_offset, end_offset)
        self.notify_readers()

    def notify_readers(self) -> None:
        """Set the events of all waiting readers, so that they check the partition again."""
        for event in self._reader_events:
            event.set()

    def watch(self, event: asyncio.Event) -> None:
        """Register ``event``: until `unwatch` it is set at each call of `notify_readers`, so whenever the partition
        grows or is deleted."""
        self._reader_events.add(event)

    def unwatch(self, event: asyncio.Event) -> None:
        """Remove ``event``, which `watch` registered. An unknown event is ignored."""
        self._reader_events.discard(event)


class Topic:
    """One topic; ``partitions`` is indexed by partition number."""

    __slots__ = ("configs", "name", "partitions", "topic_id")

    def __init__(self, stored: StoredTopic) -> None:
        self.name = stored.name
        self.topic_id = stored.topic_id
        self.configs = stored.configs
        """The configs that are set on the topic, without defaults."""
        self.partitions = tuple(Partition(partition, number) for number, partition in enumerate(stored.partitions))

    def partition(self, number: int) -> Partition | None:
        """The partition with this number; None if the topic has none."""
        return self.partitions[number] if 0 <= number < len(self.partitions) else None


class BrokerLog:
    """The log of one data directory: its topics, and the writes and reads of their partitions. Created by
    :func:`open_log`."""

    def __init__(self, store: Store, reader: StoreReader, loop: asyncio.AbstractEventLoop, *, is_new: bool) -> None:
        self.is_new = is_new
        """Whether there was no log file when the log was opened, so that an empty one was created."""
        self._store = store
        self._reader = reader
        self._loop = loop
        self._read_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker-log-read")
        self.cluster_id = store.cluster_id
        self.topics = {stored.name: Topic(stored) for stored in store.topics()}
        self.topics_by_id: dict[UUID, Topic] = {topic.topic_id: topic for topic in self.topics.values()}
        self.group_configs = store.group_configs()
        """The configs that are set on groups, by group id; groups without configs are missing."""
        self.configs_lock = asyncio.Lock()
        """Held while the configs of a topic or group are read, changed and written back."""
        self._writer = LogWriter(store, loop)
        self._read_error_rate_limit = LogRateLimit()
        self.deletion_wanted = asyncio.Event()
        """Set when there are rows to delete: those of batches before a start offset, and those of deleted topics;
        `maintenance.loop` deletes them and clears the event."""

    @property
    def partition_count(self) -> int:
        """The number of partitions of all topics."""
        return sum(len(topic.partitions) for topic in self.topics.values())

    def partition(self, topic_name: str, number: int) -> Partition | None:
        """The partition of the topic with this name; None if there is no such topic or partition."""
        topic = self.topics.get(topic_name)
        return None if topic is None else topic.partition(number)

    @property
    def has_disk_space(self) -> bool:
        """Whether batches may be appended, as of the last write. If not, appends fail with `DiskFullError`, except for
        markers."""
        return self._store.has_disk_space

    # -- writing ----------------------------------------------------------------------------------------------------

    def run_write(
        self, operation: Callable[[Store], T], when_durable: Callable[[T], None] = lambda _: None
    ) -> "asyncio.Future[T]":
        """Queue the write ``operation``. The writer thread runs the operations in the order of these calls, several of
        them in one SQLite transaction. An operation may raise a `CoterieError` only before it changes anything.

        The future gets the operation's result once it is durable; before that ``when_durable`` is called with the
        result on the event loop. If the write fails, ``when_durable`` is not called, and the future gets the
        `CoterieError` of ``operation``, a `WorldError` if the log cannot be written, or the exception of a bug.
        """
        return self._writer.submit(operation, when_durable)

    def append(
        self,
        partition: Partition,
        batches: Sequence[tuple[bytes, BatchHeader]],
        *,
        requires_open_transaction: bool = False,
    ) -> "asyncio.Future[int]":
        """Queue the checked ``batches``, at least one: either all become durable and readable, or none. Appends are
        written in the order of these calls. With ``requires_open_transaction``, the batches, which must be of one
        producer, are written only if this producer has an open transaction in the partition.

        The future gets the first batch's base offset once the batches are durable, or a `WorldError`: `TopicGoneError`
        if the topic was deleted before the write, `DiskFullError` if the disk is nearly full; or a `KafkaRefusal` if
        their producer has no open transaction.
        """
        records = sum(head.last_offset_delta + 1 for _, head in batches)

        def check_and_append_batches(store: Store) -> int:
            if requires_open_transaction:
                check_producer_transaction_is_open(store.database, partition.row_id, batches[0][1])
            # Only the first append can be refused, before anything is written.
            base_offset, *_ = [store.append(partition.row_id, data, head) for data, head in batches]
            return base_offset

        return self.run_write(
            check_and_append_batches, lambda base_offset: partition.advance_end_offset(base_offset + records)
        )

    async def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str], *, partitions_max: int = sys.maxsize
    ) -> Topic:
        """Create a topic and return it. ``partitions_max`` is the limit for the partitions of all topics together,
        including those that concurrent requests create.

        :raises KafkaRefusal: a topic with this name exists, or the partitions would exceed ``partitions_max``.
        :raises WorldError: the log cannot be written.
        """

        def check_limit_and_create(store: Store) -> StoredTopic:
            store.check_partition_limit(partitions, partitions_max)
            return store.create_topic(name, partitions, configs)

        await self.run_write(check_limit_and_create, self._add_topic_in_memory)
        return self.topics[name]

    async def increase_partitions_to(self, topic: Topic, count: int, *, partitions_max: int = sys.maxsize) -> None:
        """Add partitions to ``topic`` until it has ``count``; if it has as many already, nothing changes.
        ``partitions_max`` is the limit for the partitions of all topics together.

        :raises KafkaRefusal: the partitions would exceed ``partitions_max``.
        :raises WorldError: the log cannot be written; `TopicGoneError` if the topic was deleted before the write.
        """

        def check_limit_and_create(store: Store) -> tuple[StoredPartition, ...]:
            store.check_partition_limit(count - len(topic.partitions), partitions_max)
            return store.increase_partitions_to(topic.topic_id, count)

        await self.run_write(check_limit_and_create, lambda stored: _add_partitions_in_memory(topic, stored))

    async def delete_topic(self, topic: Topic) -> None:
        """Delete a topic. When this returns, a new topic may have its name. The rows of its batches are deleted later,
        in chunks.

        :raises WorldError: the log cannot be written; `TopicGoneError` if the topic was already deleted.
        """
        await self.run_write(
            lambda store: store.delete_topic(topic.topic_id), lambda _: self._drop_topic_in_memory(topic)
        )

    async def replace_topic_configs(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Replace all configs that are set on the topic with ``configs``.

        :raises WorldError: the log cannot be written; `TopicGoneError` if the topic was deleted before the write.
        """

        def set_configs_in_memory(_: None) -> None:
            topic.configs = dict(configs)

        await self.run_write(lambda store: store.replace_topic_configs(topic.topic_id, configs), set_configs_in_memory)

    async def delete_records(self, partition: Partition, offset: int) -> int:
        """Raise the partition's start offset to ``offset``, or to the end offset if that is lower: the records before
        it cannot be read any more. Returns the start offset, which is higher than ``offset`` if the start offset was
        higher before. The rows are deleted later.

        :raises WorldError: the log cannot be written; `TopicGoneError` if the topic was deleted before the write.
        """

        def set_start_and_request_deletion(start_offset: int) -> None:
            partition.start_offset = max(partition.start_offset, start_offset)
            self.deletion_wanted.set()

        return await self.run_write(
            lambda store: store.advance_start_offset_if_lower(partition.row_id, offset), set_start_and_request_deletion
        )

    async def replace_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replace all configs that are set on the group with ``configs``.

        :raises WorldError: the log cannot be written.
        """

        def set_configs_in_memory(_: None) -> None:
            self.group_configs.pop(group_id, None)
            if configs:
                self.group_configs[group_id] = dict(configs)

        await self.run_write(lambda store: store.replace_group_configs(group_id, configs), set_configs_in_memory)

    # -- reading ----------------------------------------------------------------------------------------------------

    async def read(self, partition: Partition, offset: int, size_max: int, *, end_offset: int | None = None) -> bytes:
        """Consecutive whole batches from the batch that contains ``offset``, or from the next batch if compaction
        removed that offset. All have their last offset before ``end_offset`` (None: the partition's end offset). They
        have at most ``size_max`` bytes together, but the first batch is returned even if it is longer (KIP-74). Empty
        if there is no such batch.

        :raises WorldError: the log cannot be read.
        """
        end_offset = partition.end_offset if end_offset is None else end_offset
        if offset >= end_offset:
            return b""
        return await self.run_read(lambda reader: reader.batches(partition.row_id, offset, end_offset, size_max))

    async def readable_size(
        self, partition: Partition, offset: int, size_max: int, *, end_offset: int, included_earlier_bytes: int = 0
    ) -> ReadableSize:
        """The size of the batches that `read` would return from ``offset`` on; no batch is read from the file. To
        continue an earlier count of the same partition that ended at ``offset``, pass the size of that count as
        ``included_earlier_bytes``: these bytes count against ``size_max``, and the result's ``size`` includes them.

        :raises WorldError: the log cannot be read.
        """
        if offset >= end_offset:
            return ReadableSize(size=included_earlier_bytes, end_offset=offset, is_size_limit_reached=False)
        return await self.run_read(
            lambda reader: reader.readable_size(partition.row_id, offset, end_offset, size_max, included_earlier_bytes)
        )

    async def aborted_transactions(
        self, partition: Partition, offset: int, end_offset: int
    ) -> list[AbortedTransaction]:
        """The aborted transactions whose first record is before ``end_offset`` and whose marker is at or after
        ``offset``, in the order of their first records.

        :raises WorldError: the log cannot be read.
        """
        return await self.run_read(
            lambda reader: read_aborted_transactions(reader.database, partition.row_id, offset, end_offset)
        )

    async def first_batch_since(self, partition: Partition, timestamp_ms: int, offset: int) -> bytes | None:
        """The bytes of the first batch with a record of ``timestamp_ms`` or later, among those that do not end before
        ``offset``; None if there is none.

        :raises WorldError: the log cannot be read.
        """
        end_offset = partition.end_offset
        return await self.run_read(
            lambda reader: reader.first_batch_since(partition.row_id, timestamp_ms, offset, end_offset)
        )

    async def max_timestamp_batch(self, partition: Partition, offset: int) -> bytes | None:
        """The bytes of the batch with the greatest timestamp, the first of several, among those that do not end before
        ``offset``; None if there is none.

        :raises WorldError: the log cannot be read.
        """
        end_offset = partition.end_offset
        return await self.run_read(lambda reader: reader.max_timestamp_batch(partition.row_id, offset, end_offset))

    async def partition_sizes_by_row_id(self) -> Mapping[int, int]:
        """The size in bytes of each partition that has batches, by the partition's row id. Included are batches before
        the start offset whose rows are not deleted yet, and partitions of deleted topics.

        :raises WorldError: the log cannot be read.
        """
        return await self.run_read(lambda reader: reader.partition_sizes_by_row_id())

    async def run_read(self, query: Callable[[StoreReader], T]) -> T:
        """Run ``query`` on the read thread, concurrently with writes, and return its result. All reads of the log share
        this thread, so ``query`` must be short.

        :raises WorldError: the log cannot be read.
        """
        try:
            return await self._loop.run_in_executor(self._read_thread, query, self._reader)
        except sqlite3.Error as error:
            # Clients retry: without a limit, each retry would log the error again.
            suppressed = self._read_error_rate_limit.take_suppressed_count_if_allowed(
                str(error), now_s=self._loop.time()
            )
            if suppressed is not None:
                logger.error(
                    "The broker's log cannot be read: %s; requests whose reads fail get an error. If the log is"
                    " corrupt, `coterie broker check` lists the corruption%s",
                    error,
                    f"; {suppressed} more reads failed since the last such message" if suppressed else "",
                )
            raise WorldError(f"the broker's log cannot be read: {error}") from error

    # -- helpers ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Do all queued writes and reads, end both threads, and close the file. Blocks until then."""
        self._writer.close()
        self._read_thread.shutdown(wait=True)
        self._reader.close()
        self._store.close()

    def _add_topic_in_memory(self, stored: StoredTopic) -> None:
        """Add a created topic to the topics in memory."""
        topic = Topic(stored)
        self.topics[topic.name] = topic
        self.topics_by_id[topic.topic_id] = topic

    def _drop_topic_in_memory(self, topic: Topic) -> None:
        """Remove a deleted topic from the topics in memory, notify the readers that wait for its partitions, and
        request the deletion of its rows."""
        del self.topics[topic.name]
        del self.topics_by_id[topic.topic_id]
        for partition in topic.partitions:
            partition.notify_readers()
        self.deletion_wanted.set()


def _add_partitions_in_memory(topic: Topic, stored: tuple[StoredPartition, ...]) -> None:
    """Append the created partitions to those of ``topic``."""
    there = len(topic.partitions)
    topic.partitions += tuple(Partition(partition, there + number) for number, partition in enumerate(stored))


@asynccontextmanager
async def open_log(path: Path, lock_path: Path) -> AsyncIterator[BrokerLog]:
    """Open the log file ``path``, and lock its directory with ``lock_path`` until the block ends. The directory and the
    log are created if they do not exist; an older layout is upgraded.

    :raises WorldError: the directory cannot be used, another process has locked it, or the log cannot be opened.
    """
    lock = lock_folder(
        lock_path,
        error_message=f"another broker or a backup uses the data directory {path.parent}; stop it, or choose another"
        " directory",
    )
    with ExitStack() as held:
        try:
            make_folder_private_if_new(path.parent)
            held.enter_context(lock)
        except OSError as error:
            raise WorldError(f"the data directory {path.parent} cannot be used: {error.strerror}") from error
        log = await asyncio.to_thread(_open_log_blocking, path, asyncio.get_running_loop())
        try:
            yield log
        finally:
            await run_uncancellable(log.close)


def _open_log_blocking(path: Path, loop: asyncio.AbstractEventLoop) -> BrokerLog:
    """Open the log file ``path``, or create it if it does not exist. The `BrokerLog` delivers the results of reads and
    writes on the event loop ``loop``. Blocks.

    :raises WorldError: the log cannot be created, opened or upgraded.
    """
    try:
        is_new = not path.exists()
        if is_new:
            create_new_log_file(path)
        else:
            with closing(open_database_read_only(path)) as database:
                check_is_broker_log(database, path)
        return BrokerLog(Store(path), StoreReader(path), loop, is_new=is_new)
    except sqlite3.Error as error:
        raise make_open_error(path, error) from error
    except OSError as error:
        raise WorldError(f"the broker's log {path} cannot be opened: {error.strerror}") from error
