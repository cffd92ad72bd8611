"""Topics and partitions of the broker: durable appends, reads, and notification of waiting readers.

One thread writes (`writer`), another reads. The event loop never waits for the disk. A partition's ``end_offset`` is
the durable end: reads stop there. Records before its ``start_offset`` are hidden from readers, though their rows may
not be deleted yet.
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

from coterie.broker.storage.folder import locked, make_folder
from coterie.broker.storage.layout import make, require_ours
from coterie.broker.storage.log_file import unopened
from coterie.broker.storage.reader import Counted, StoreReader
from coterie.broker.storage.store import Store, StoredPartition, StoredTopic, connect_read_only
from coterie.broker.storage.to_the_end import run_to_the_end
from coterie.broker.storage.transaction_store import Aborted, read_aborted
from coterie.broker.storage.writer import LogWriter
from coterie.nouns.errors import WorldError
from coterie.wire.batches import BatchHead

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Partition:
    """One partition: its start and end offset, and the readers that wait for new records."""

    __slots__ = ("_waiting", "end_offset", "id", "number", "open_offset", "start_offset")

    def __init__(self, stored: StoredPartition, number: int) -> None:
        self.id = stored.id
        self.number = number
        self.start_offset = stored.start_offset
        self.end_offset = stored.end_offset
        self.open_offset: int | None = None
        """First offset of the earliest open transaction; None if no transaction is open."""
        self._waiting: set[asyncio.Event] = set()

    @property
    def stable_offset(self) -> int:
        """The last stable offset (LSO): all transactions before it are completed. Compaction stops there."""
        if self.open_offset is None:
            return self.end_offset
        # The start offset may be beyond the first record of an open transaction: the LSO is never before the start.
        return max(self.start_offset, min(self.open_offset, self.end_offset))

    def grew(self, end_offset: int) -> None:
        self.end_offset = max(self.end_offset, end_offset)
        self.wake()

    def wake(self) -> None:
        """Make all waiting readers check the partition again."""
        for event in self._waiting:
            event.set()

    def watch(self, event: asyncio.Event) -> None:
        """``event`` is set whenever the partition grows or is deleted, until `unwatch`."""
        self._waiting.add(event)

    def unwatch(self, event: asyncio.Event) -> None:
        self._waiting.discard(event)


class Topic:
    """One topic and its partitions, by number."""

    __slots__ = ("configs", "name", "partitions", "topic_id")

    def __init__(self, stored: StoredTopic) -> None:
        self.name = stored.name
        self.topic_id = stored.topic_id
        self.configs = stored.configs
        """The configs set on the topic, without defaults."""
        self.partitions = tuple(Partition(partition, number) for number, partition in enumerate(stored.partitions))

    def partition(self, number: int) -> Partition | None:
        return self.partitions[number] if 0 <= number < len(self.partitions) else None


class BrokerLog:
    """All topics of one data directory. Created by :func:`open_log`."""

    def __init__(self, store: Store, reader: StoreReader, loop: asyncio.AbstractEventLoop, *, is_new: bool) -> None:
        self.is_new = is_new
        self._store = store
        self._reader = reader
        self._loop = loop
        self._read_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker-log-read")
        self.cluster_id = store.cluster_id
        self.topics = {stored.name: Topic(stored) for stored in store.topics()}
        self.topics_by_id: dict[UUID, Topic] = {topic.topic_id: topic for topic in self.topics.values()}
        self.group_configs = store.group_configs()
        """The configs set on groups, by group id; groups without configs are missing."""
        self.altering = asyncio.Lock()
        """Held while configs are read, changed and written back."""
        self._writer = LogWriter(store, loop)
        self._read_errors: set[str] = set()
        self.sweep_wanted = asyncio.Event()
        """Set when there are hidden rows or rows of deleted topics; `upkeep/loop` deletes them."""

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())

    def partition(self, topic_name: str, number: int) -> Partition | None:
        topic = self.topics.get(topic_name)
        return None if topic is None else topic.partition(number)

    @property
    def has_room(self) -> bool:
        """False: the disk is full, and appends are refused."""
        return self._store.has_room

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(
        self, write: Callable[[Store], T], when_durable: Callable[[T], None] = lambda _: None
    ) -> "asyncio.Future[T]":
        """Queue ``write``: the writer thread runs it, in the order of these calls, in one SQLite transaction with other
        writes. It may raise a `CoterieError` before it writes anything. The future gets its result once that is
        durable, or the `CoterieError`, or a `WorldError`; before that ``when_durable`` is called on the event loop."""
        return self._writer.put(write, when_durable)

    def append(self, partition: Partition, batches: Sequence[tuple[bytes, BatchHead]]) -> "asyncio.Future[int]":
        """Queue at least one checked batch: either all become durable and readable, or none. The future gets the first
        batch's base offset once they are durable, or a `WorldError` (`TopicGoneError` if the topic was deleted before
        the write).

        Appends are written in the order of these calls.
        """
        records = sum(head.last_offset_delta + 1 for _, head in batches)

        def write(store: Store) -> int:
            # Only the first append can be refused, before anything is written.
            base_offset, *_ = [store.append(partition.id, data, head) for data, head in batches]
            return base_offset

        return self.write(write, lambda base_offset: partition.grew(base_offset + records))

    async def create_topic(
        self, name: str, partitions: int, configs: Mapping[str, str], *, partitions_max: int = sys.maxsize
    ) -> Topic:
        """Create a topic. ``partitions_max`` limits all topics together, including those being created.

        :raises KafkaRefusal, WorldError: the topic cannot be created.
        """

        def create(store: Store) -> StoredTopic:
            store.check_room(partitions, partitions_max)
            return store.create_topic(name, partitions, configs)

        await self.write(create, self._add_topic)
        return self.topics[name]

    async def create_partitions(self, topic: Topic, count: int, *, partitions_max: int = sys.maxsize) -> None:
        """Add partitions to ``topic`` until it has ``count``.

        :raises KafkaRefusal: the partitions would exceed ``partitions_max``.
        :raises WorldError: the log cannot be written; `TopicGoneError` if the topic was deleted before the write.
        """

        def create(store: Store) -> tuple[StoredPartition, ...]:
            store.check_room(count - len(topic.partitions), partitions_max)
            return store.create_partitions(topic.topic_id, count)

        await self.write(create, lambda stored: _add_partitions(topic, stored))

    async def delete_topic(self, topic: Topic) -> None:
        """Delete a topic. Its name is free when this returns; its rows are deleted later, in chunks.

        :raises WorldError: the log cannot be written; `TopicGoneError` if the topic was already deleted.
        """
        await self.write(lambda store: store.delete_topic(topic.topic_id), lambda _: self._drop_topic(topic))

    async def set_topic_configs(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Replace all configs set on the topic.

        :raises WorldError: the log cannot be written; `TopicGoneError` if the topic was deleted before the write.
        """

        def set_configs(_: None) -> None:
            topic.configs = dict(configs)

        await self.write(lambda store: store.set_topic_configs(topic.topic_id, configs), set_configs)

    async def delete_records(self, partition: Partition, offset: int) -> int:
        """Hide the records before ``offset``, at most all records; returns the partition's start offset.

        :raises WorldError: the log cannot be written; `TopicGoneError` if the topic was deleted before the write.
        """

        def set_start(start_offset: int) -> None:
            partition.start_offset = max(partition.start_offset, start_offset)
            self.sweep_wanted.set()

        return await self.write(lambda store: store.raise_start(partition.id, offset), set_start)

    async def set_group_configs(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replace all configs set on the group.

        :raises WorldError: the log cannot be written.
        """

        def set_configs(_: None) -> None:
            self.group_configs.pop(group_id, None)
            if configs:
                self.group_configs[group_id] = dict(configs)

        await self.write(lambda store: store.set_group_configs(group_id, configs), set_configs)

    # -- reading ----------------------------------------------------------------------------------------------------

    async def read(self, partition: Partition, offset: int, size_max: int, *, end_offset: int | None = None) -> bytes:
        """Whole batches from ``offset`` up to ``end_offset`` (by default the durable end), about ``size_max`` bytes;
        empty if there are none.

        :raises WorldError: the log cannot be read.
        """
        end_offset = partition.end_offset if end_offset is None else end_offset
        if offset >= end_offset:
            return b""
        return await self.look(lambda reader: reader.batches(partition.id, offset, end_offset, size_max))

    async def count(
        self, partition: Partition, offset: int, size_max: int, *, end_offset: int, before: int = 0
    ) -> Counted:
        """The size of what `read` would return after ``before`` bytes that are already counted; reads no batch.

        :raises WorldError: the log cannot be read.
        """
        if offset >= end_offset:
            return Counted(size=before, end_offset=offset, is_full=False)
        return await self.look(lambda reader: reader.counted(partition.id, offset, end_offset, size_max, before))

    async def aborted(self, partition: Partition, offset: int, end_offset: int) -> list[Aborted]:
        """The aborted transactions with records between the two offsets, in the order of their first records.

        :raises WorldError: the log cannot be read.
        """
        return await self.look(lambda reader: read_aborted(reader.database, partition.id, offset, end_offset))

    async def batch_since(self, partition: Partition, timestamp_ms: int) -> bytes | None:
        """The first batch with a record of ``timestamp_ms`` or later; None if there is none."""
        start_offset, end_offset = partition.start_offset, partition.end_offset
        return await self.look(lambda reader: reader.batch_since(partition.id, timestamp_ms, start_offset, end_offset))

    async def latest_batch(self, partition: Partition) -> bytes | None:
        """The batch with the greatest timestamp; None if the partition is empty."""
        start_offset, end_offset = partition.start_offset, partition.end_offset
        return await self.look(lambda reader: reader.latest_batch(partition.id, start_offset, end_offset))

    async def sizes(self) -> Mapping[int, int]:
        """The size of each non-empty partition in bytes, by the partition's row id.

        :raises WorldError: the log cannot be read.
        """
        return await self.look(lambda reader: reader.sizes())

    async def look(self, look: Callable[[StoreReader], T]) -> T:
        """Run ``look``, a short read, on the read thread, concurrently with writes.

        :raises WorldError: the log cannot be read.
        """
        try:
            return await self._loop.run_in_executor(self._read_thread, look, self._reader)
        except sqlite3.Error as error:
            if str(error) not in self._read_errors:
                # Log each error once, although clients retry.
                logger.error("Parts of the broker's log cannot be read: %s; `coterie broker check` lists them", error)
                self._read_errors.add(str(error))
            raise WorldError(f"the broker's log cannot be read: {error}") from error

    # -- helpers ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End both threads after all queued writes are done. Blocks until then."""
        self._writer.close()
        self._read_thread.shutdown(wait=True)
        self._reader.close()
        self._store.close()

    def _add_topic(self, stored: StoredTopic) -> None:
        topic = Topic(stored)
        self.topics[topic.name] = topic
        self.topics_by_id[topic.topic_id] = topic

    def _drop_topic(self, topic: Topic) -> None:
        del self.topics[topic.name]
        del self.topics_by_id[topic.topic_id]
        for partition in topic.partitions:
            partition.wake()
        self.sweep_wanted.set()


def _add_partitions(topic: Topic, stored: tuple[StoredPartition, ...]) -> None:
    there = len(topic.partitions)
    topic.partitions += tuple(Partition(partition, there + number) for number, partition in enumerate(stored))


@asynccontextmanager
async def open_log(path: Path, lock_path: Path) -> AsyncIterator[BrokerLog]:
    """Open the log of one data directory and lock the directory against other brokers.

    :raises WorldError: the directory cannot be used, or another broker uses it.
    """
    lock = locked(
        lock_path,
        refusal=f"another broker uses the data directory {path.parent}; stop it, or choose another directory",
    )
    with ExitStack() as held:
        try:
            make_folder(path.parent)
            held.enter_context(lock)
        except OSError as error:
            raise WorldError(f"the data directory {path.parent} cannot be used: {error.strerror}") from error
        log = await asyncio.to_thread(_open, path, asyncio.get_running_loop())
        try:
            yield log
        finally:
            await run_to_the_end(log.close)


def _open(path: Path, loop: asyncio.AbstractEventLoop) -> BrokerLog:
    try:
        is_new = not path.exists()
        if is_new:
            make(path)
        else:
            with closing(connect_read_only(path)) as database:
                require_ours(database, path)
        return BrokerLog(Store(path), StoreReader(path), loop, is_new=is_new)
    except sqlite3.Error as error:
        raise unopened(path, error) from error
    except OSError as error:
        raise WorldError(f"the broker's log {path} cannot be opened: {error.strerror}") from error
