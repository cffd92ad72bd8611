"""Topics and partitions over the store: appends that return when they are durable, reads, and waiting for more.

One thread writes. It takes whatever gathered while its last fsync ran, writes it in one transaction and commits once
(group commit); a failure of the world fails all of that transaction and nothing before or after it. Another thread
reads. The event loop never waits for the disk. A partition's ``end_offset`` is the durable end: readers see no further.
"""

import asyncio
import fcntl
import logging
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from uuid import UUID

from coterie.broker.store import Store, StoredTopic, StoreReader
from coterie.nouns.errors import CoterieError, WorldError
from coterie.wire.batches import BatchHead

logger = logging.getLogger(__name__)

T = TypeVar("T")

_Write = tuple[Callable[[Store], Any], Callable[[Any], None], "asyncio.Future[Any]"]


class Partition:
    """One partition: its durable end, and who waits for it to grow."""

    __slots__ = ("_waiting", "end_offset", "id", "number")

    def __init__(self, partition_id: int, number: int, end_offset: int) -> None:
        self.id = partition_id
        self.number = number
        self.end_offset = end_offset
        self._waiting: set[asyncio.Event] = set()

    def grew(self, end_offset: int) -> None:
        self.end_offset = max(self.end_offset, end_offset)
        for event in self._waiting:
            event.set()

    def watch(self, event: asyncio.Event) -> None:
        """``event`` is set whenever the partition grows, until `unwatch`."""
        self._waiting.add(event)

    def unwatch(self, event: asyncio.Event) -> None:
        self._waiting.discard(event)


class Topic:
    """One topic and its partitions, by number."""

    __slots__ = ("configs", "name", "partitions", "topic_id")

    def __init__(self, stored: StoredTopic, ends: Mapping[int, int]) -> None:
        self.name = stored.name
        self.topic_id = stored.topic_id
        self.configs = stored.configs
        self.partitions = tuple(
            Partition(partition_id, number, ends.get(partition_id, 0))
            for number, partition_id in enumerate(stored.partition_ids)
        )

    def partition(self, number: int) -> Partition | None:
        return self.partitions[number] if 0 <= number < len(self.partitions) else None


class BrokerLog:
    """All topics of one data directory. Made by :func:`open_log`."""

    def __init__(self, store: Store, reader: StoreReader, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._reader = reader
        self._loop = loop
        self._read_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="broker-log-read")
        # Unbounded, and yet limited: each entry is a request in flight, and every connection has few of those.
        self._writes: SimpleQueue[_Write | None] = SimpleQueue()
        self._write_thread = threading.Thread(target=self._write_for_ever, name="broker-log-write", daemon=True)
        self._write_thread.start()
        ends = store.ends()
        self.cluster_id = store.cluster_id
        self.topics = {stored.name: Topic(stored, ends) for stored in store.topics()}
        self.topics_by_id: dict[UUID, Topic] = {topic.topic_id: topic for topic in self.topics.values()}

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())

    # -- writing ----------------------------------------------------------------------------------------------------

    def append(self, partition: Partition, data: bytes, head: BatchHead) -> "asyncio.Future[int]":
        """Queue a batch that was checked. The future has its base offset once it is durable, or a `WorldError`.

        Appends are written in the order of these calls.
        """
        records = head.last_offset_delta + 1
        return self._write(
            lambda store: store.append(partition.id, data, head),
            lambda base_offset: partition.grew(base_offset + records),
        )

    async def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> Topic:
        """:raises TopicExistsError, WorldError: when it could not be created."""
        await self._write(lambda store: store.create_topic(name, partitions, configs), self._add_topic)
        return self.topics[name]

    async def next_number(self, name: str) -> int:
        """:raises WorldError: when the log cannot be written."""
        return await self._write(lambda store: store.next_number(name), lambda _: None)

    def _add_topic(self, stored: StoredTopic) -> None:
        topic = Topic(stored, {})
        self.topics[topic.name] = topic
        self.topics_by_id[topic.topic_id] = topic

    def _write(self, write: Callable[[Store], T], when_durable: Callable[[T], None]) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = self._loop.create_future()
        self._writes.put((write, when_durable, future))
        return future

    # -- reading ----------------------------------------------------------------------------------------------------

    async def read(self, partition: Partition, offset: int, size_max: int) -> bytes:
        """Whole batches from ``offset`` up to the durable end, about ``size_max`` bytes; empty when there are none.

        :raises WorldError: when the log cannot be read.
        """
        end_offset = partition.end_offset
        if offset >= end_offset:
            return b""
        return await self._read(lambda reader: reader.batches(partition.id, offset, end_offset, size_max))

    async def batch_since(self, partition: Partition, timestamp_ms: int) -> bytes | None:
        """The first batch with a record of ``timestamp_ms`` or later."""
        end_offset = partition.end_offset
        return await self._read(lambda reader: reader.batch_since(partition.id, timestamp_ms, end_offset))

    async def latest_batch(self, partition: Partition) -> bytes | None:
        """The batch with the greatest timestamp."""
        end_offset = partition.end_offset
        return await self._read(lambda reader: reader.latest_batch(partition.id, end_offset))

    async def _read(self, read: Callable[[StoreReader], T]) -> T:
        try:
            return await self._loop.run_in_executor(self._read_thread, read, self._reader)
        except sqlite3.Error as error:
            raise WorldError(f"the broker's log cannot be read: {error}") from error

    # -- the thread that writes ---------------------------------------------------------------------------------------

    def _write_for_ever(self) -> None:
        while True:
            writes, is_last = self._gather()
            if writes:
                outcomes = self._commit(writes)
                self._loop.call_soon_threadsafe(_tell, outcomes)
            if is_last:
                return

    def _gather(self) -> tuple[list[_Write], bool]:
        """Wait for one write and take whatever stands behind it."""
        writes: list[_Write] = []
        write = self._writes.get()
        while write is not None:
            writes.append(write)
            try:
                write = self._writes.get_nowait()
            except Empty:
                return writes, False
        return writes, True

    def _commit(self, writes: list[_Write]) -> "list[tuple[_Write, Any, Exception | None]]":
        outcomes: list[tuple[_Write, Any, Exception | None]] = []
        try:
            self._store.begin()
            for write in writes:
                try:
                    outcomes.append((write, write[0](self._store), None))
                except CoterieError as refused:
                    # Refused before it wrote anything: the others of this transaction are not concerned.
                    outcomes.append((write, None, refused))
            self._store.commit()
        except sqlite3.Error as error:
            failure: Exception = WorldError(f"the broker's log cannot be written: {error}")
        except Exception as error:  # noqa: BLE001 our own bug: whoever waits must hear of it, and the thread go on
            failure = error
        else:
            return outcomes
        try:
            self._store.rollback()
        except sqlite3.Error as error:
            # The next transaction will not begin either, and says so: this thread has to live for that.
            logger.error("the broker's log cannot be rolled back: %s", error)
        return [(write, None, failure) for write in writes]

    def close(self) -> None:
        """End both threads; what was queued before is written. Blocks for as long as that takes."""
        self._writes.put(None)
        self._write_thread.join()
        self._read_thread.shutdown(wait=True)
        self._reader.close()
        self._store.close()


def _tell(outcomes: list[tuple[_Write, Any, Exception | None]]) -> None:
    for (_, when_durable, future), result, error in outcomes:
        if error is None:
            # Also when nobody waits any more: it is durable, so readers must see it.
            when_durable(result)
        if future.cancelled():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


@asynccontextmanager
async def open_log(path: Path, lock_path: Path) -> AsyncIterator[BrokerLog]:
    """The log of one data directory, held against other brokers.

    :raises WorldError: when the directory cannot be used, or another broker holds it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise WorldError(f"the data directory {path.parent} cannot be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WorldError(
                f"another broker uses the data directory {path.parent}; stop it, or choose another directory"
            ) from error
        log = await asyncio.to_thread(_open, path, asyncio.get_running_loop())
        try:
            yield log
        finally:
            await asyncio.shield(asyncio.to_thread(log.close))
    finally:
        os.close(lock)


def _open(path: Path, loop: asyncio.AbstractEventLoop) -> BrokerLog:
    try:
        store = Store(path)
        return BrokerLog(store, StoreReader(path), loop)
    except sqlite3.Error as error:
        raise WorldError(f"the broker's log {path} cannot be opened: {error}") from error
