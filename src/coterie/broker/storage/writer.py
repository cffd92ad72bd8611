"""The only thread that writes the log: it collects the writes that were queued during its last fsync, runs them in one
SQLite transaction and commits once (group commit). A disk error fails all writes of that SQLite transaction, but none
before or after it; the thread continues, so that writing works again as soon as the disk does. If one write reads a
corrupt page, only that write fails: the others are run again without it.
"""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from coterie.broker.storage.store import WHAT_TO_DO, DamagedLogError, DiskFullError, Store
from coterie.nouns.errors import CoterieError, WorldError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_Write = tuple[Callable[[Store], Any], Callable[[Any], None], "asyncio.Future[Any]"]
_Outcome = tuple[_Write, Any, Exception | None]


class _Damage(NamedTuple):
    place: int
    """The index of the write that read the corrupt page."""
    error: DamagedLogError


class LogWriter:
    """Runs writes in the order of `put` and delivers their results on the event loop."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._is_failing = False
        self._has_met_damage = False
        # Unbounded, yet limited in practice: each entry is a request in flight, and every connection limits those.
        self._writes: SimpleQueue[_Write | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="broker-log-write", daemon=True)
        self._thread.start()

    def put(self, write: Callable[[Store], T], when_durable: Callable[[T], None]) -> "asyncio.Future[T]":
        """Queue a write. The future gets the result of ``write`` once it is durable, or its `CoterieError`, or a
        `WorldError`. Before that ``when_durable`` is called on the event loop, even if the future was cancelled."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._writes.put((write, when_durable, future))
        return future

    def close(self) -> None:
        """End the thread after all queued writes are done. Blocks until then."""
        self._writes.put(None)
        self._thread.join()

    # -- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            writes, is_last = self._gather()
            if writes:
                outcomes = self._commit(writes)
                self._loop.call_soon_threadsafe(_tell, outcomes)
            if is_last:
                return

    def _gather(self) -> tuple[list[_Write], bool]:
        """Wait for one write, then take all queued writes."""
        writes: list[_Write] = []
        write = self._writes.get()
        while write is not None:
            writes.append(write)
            try:
                write = self._writes.get_nowait()
            except Empty:
                return writes, False
        return writes, True

    def _commit(self, writes: list[_Write]) -> list[_Outcome]:
        outcomes: list[_Outcome] = []
        begin, end = 0, len(writes)
        while begin < len(writes):
            told = self._try(writes[begin:end])
            if isinstance(told, _Damage):
                if told.place:
                    end = begin + told.place  # Commit the writes before the failed write first.
                    continue
                told = [(writes[begin], None, told.error)]
            outcomes += told
            begin, end = begin + len(told), len(writes)
        return outcomes

    def _try(self, writes: list[_Write]) -> "list[_Outcome] | _Damage":
        """The results of ``writes``; or the write that read a corrupt page, and then nothing was written."""
        outcomes: list[_Outcome] = []
        is_writing = False
        try:
            self._store.begin()
            is_writing = True
            for write in writes:
                changes = self._store.changes
                try:
                    outcomes.append((write, write[0](self._store), None))
                except CoterieError as refused:
                    assert self._store.changes == changes, "refuse before the first write"
                    # It changed nothing, so the other writes of this SQLite transaction continue.
                    outcomes.append((write, None, refused))
            is_writing = False
            self._store.commit()
        except (OSError, sqlite3.Error) as error:
            is_as_before = self._roll_back()
            failure = f"the broker's log cannot be written: {error}"
            if is_writing and is_as_before and _is_damage(error):
                self._note_damage(error)
                return _Damage(len(outcomes), DamagedLogError(failure))
            self._note_failure(error)
            return [(write, None, WorldError(failure)) for write in writes]
        except Exception as error:  # noqa: BLE001 bug in Coterie: callers get it, the thread continues
            self._roll_back()
            return [(write, None, error) for write in writes]
        full = next((error for _, _, error in outcomes if isinstance(error, DiskFullError)), None)
        if full is not None:
            self._note_failure(full)
        elif self._store.has_room:
            self._note_success()
        return outcomes

    def _roll_back(self) -> bool:
        try:
            self._store.rollback()
        except sqlite3.Error as error:
            # The next SQLite transaction will fail to begin and report that; this thread must continue to run it.
            logger.error("The broker's log cannot be rolled back: %s", error)
            return False
        return True

    def _note_failure(self, error: Exception) -> None:
        """Log the start of a series of failures once: on a full disk, every producer's writes fail."""
        if not self._is_failing:
            logger.error(
                "The broker's log cannot be written; produce requests fail until it can be written again: %s", error
            )
        self._is_failing = True

    def _note_damage(self, error: Exception) -> None:
        if not self._has_met_damage:
            logger.error(
                "The broker's log file is corrupt; requests that read the corrupt pages fail: %s%s", error, WHAT_TO_DO
            )
        self._has_met_damage = True

    def _note_success(self) -> None:
        if self._is_failing:
            logger.info("The broker's log can be written again")
        self._is_failing = False


def _is_damage(error: OSError | sqlite3.Error) -> bool:
    # Errors of the module `sqlite3` itself have no code; the low byte is the primary result code.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT


def _tell(outcomes: list[_Outcome]) -> None:
    for (_, when_durable, future), result, error in outcomes:
        if error is None:
            # Also for a cancelled future: the write is durable, so readers must see it.
            try:
                when_durable(result)
            except Exception:
                # This write and the following ones are durable: complete the future of each of them.
                logger.exception(
                    "Bug in Coterie: a callback failed after a durable write; the broker's memory may be stale"
                )
        if future.cancelled():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
