"""The only thread that writes the log: it collects the writes that were queued during its last fsync, runs them in one
SQLite transaction and commits once (group commit). A disk error fails all writes of that SQLite transaction, but none
before or after it. The thread continues, so that writing works again as soon as the disk does. If a write reads a
corrupt page, only that write fails: the others are run again without it.
"""

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from coterie.broker.storage.store import DAMAGE_ADVICE, DamagedLogError, DiskFullError, Store
from coterie.nouns.errors import CoterieError, WorldError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_Write = tuple[Callable[[Store], Any], Callable[[Any], None], "asyncio.Future[Any]"]
"""The operation, its ``when_durable``, and its future, as given to `LogWriter.submit`."""
_Outcome = tuple[_Write, Any, Exception | None]
"""A write with its result, or None and the exception with which it failed."""


class _CorruptPageRead(NamedTuple):
    """The result of an SQLite transaction in which a write has read a corrupt page: nothing was written."""

    write_index: int
    """The index of the write that read the corrupt page."""
    error: DamagedLogError


class LogWriter:
    """Runs writes in the order of `submit` and delivers their results on the event loop."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._is_failing = False
        """Whether a failure was logged and the log could not be written since; a next failure is not logged."""
        self._has_logged_damage = False
        # Unbounded, yet limited in practice: each entry is a request in flight, and every connection limits those.
        self._writes: SimpleQueue[_Write | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="broker-log-write", daemon=True)
        self._thread.start()

    def submit(self, operation: Callable[[Store], T], when_durable: Callable[[T], None]) -> "asyncio.Future[T]":
        """Queue the write ``operation``. Once its changes are durable, the event loop calls ``when_durable`` with its
        result, even if the future was cancelled, and then the future gets this result. If the write fails,
        ``when_durable`` is not called, and the future gets the `CoterieError` of ``operation``, a `WorldError` if the
        log cannot be written, or the exception of a bug."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._writes.put((operation, when_durable, future))
        return future

    def close(self) -> None:
        """End the thread after all queued writes are done. Blocks until then. No write may be submitted afterwards: it
        would never be done, and its future would have no result."""
        self._writes.put(None)
        self._thread.join()

    # -- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Run the thread: commit queued writes and deliver their outcomes, until `close` is called."""
        while True:
            writes, is_last = self._take_queued_writes()
            if writes:
                outcomes = self._commit_writes(writes)
                self._loop.call_soon_threadsafe(_deliver_outcomes, outcomes)
            if is_last:
                return

    def _take_queued_writes(self) -> tuple[list[_Write], bool]:
        """Wait for a write, then take all queued writes. Returns them in order, and whether `close` was called: no
        write follows then, and the list may be empty."""
        writes: list[_Write] = []
        write = self._writes.get()
        while write is not None:
            writes.append(write)
            try:
                write = self._writes.get_nowait()
            except Empty:
                return writes, False
        return writes, True

    def _commit_writes(self, writes: list[_Write]) -> list[_Outcome]:
        """Run the writes in order and commit them, in one SQLite transaction; returns the outcome of each. If a write
        reads a corrupt page, only this write fails: the writes before it and those after it are run again and committed
        in separate SQLite transactions."""
        outcomes: list[_Outcome] = []
        begin, end = 0, len(writes)
        while begin < len(writes):
            results = self._try_commit(writes[begin:end])
            if isinstance(results, _CorruptPageRead):
                if results.write_index:
                    end = begin + results.write_index  # Commit the writes before the failed write first.
                    continue
                results = [(writes[begin], None, results.error)]
            outcomes += results
            begin, end = begin + len(results), len(writes)
        return outcomes

    def _try_commit(self, writes: list[_Write]) -> "list[_Outcome] | _CorruptPageRead":
        """Run ``writes`` in one SQLite transaction and commit. Returns the outcome of each write: a `CoterieError`
        fails only the write that raised it; an error of the disk or a bug fails all of them, and nothing is written. If
        a write read a corrupt page, returns a `_CorruptPageRead` instead, and nothing is written."""
        outcomes: list[_Outcome] = []
        is_writing = False
        try:
            self._store.begin()
            is_writing = True
            for write in writes:
                changes = self._store.changed_row_count_so_far
                try:
                    outcomes.append((write, write[0](self._store), None))
                except CoterieError as refused:
                    assert self._store.changed_row_count_so_far == changes, "refuse before the first write"
                    # It changed nothing, so the other writes of this SQLite transaction continue.
                    outcomes.append((write, None, refused))
            is_writing = False
            self._store.commit()
        except (OSError, sqlite3.Error) as error:
            is_as_before = self._try_roll_back()
            failure = f"the broker's log cannot be written: {error}"
            if is_writing and is_as_before and _is_corrupt_page_error(error):
                self._log_damage_once(error)
                return _CorruptPageRead(len(outcomes), DamagedLogError(failure))
            self._log_failure_once(error)
            return [(write, None, WorldError(failure)) for write in writes]
        except Exception as error:  # noqa: BLE001 bug in Coterie: callers get it, the thread continues
            self._try_roll_back()
            return [(write, None, error) for write in writes]
        full = next((error for _, _, error in outcomes if isinstance(error, DiskFullError)), None)
        if full is not None:
            self._log_failure_once(full)
        elif self._store.has_disk_space:
            self._log_recovery_once()
        return outcomes

    def _try_roll_back(self) -> bool:
        """Undo the open SQLite transaction; returns whether that succeeded."""
        try:
            self._store.rollback()
        except sqlite3.Error as error:
            # The next SQLite transaction will fail to begin and report that; this thread must continue to run it.
            logger.error(
                "A failed write to the broker's log could not be undone; all writes fail until that succeeds, and the "
                "broker tries it again after each failed write: %s",
                error,
            )
            return False
        return True

    def _log_failure_once(self, error: Exception) -> None:
        """Log ``error`` unless a failure was logged since the last successful writes: on a full disk, every producer's
        writes fail."""
        if not self._is_failing:
            logger.error(
                "The broker's log cannot be written; requests that write to it fail until it can be written again: %s",
                error,
            )
        self._is_failing = True

    def _log_damage_once(self, error: Exception) -> None:
        """Log corruption of the file once for each run of the broker."""
        if not self._has_logged_damage:
            logger.error(
                "The broker's log file is corrupt; requests that read the corrupt pages fail: %s%s",
                error,
                DAMAGE_ADVICE,
            )
        self._has_logged_damage = True

    def _log_recovery_once(self) -> None:
        """Log that writes succeed again, after `_log_failure_once` has logged a failure."""
        if self._is_failing:
            logger.info("The broker's log can be written again")
        self._is_failing = False


def _is_corrupt_page_error(error: OSError | sqlite3.Error) -> bool:
    """Whether a write failed because it read a corrupt page."""
    # Errors of the module `sqlite3` itself have no code; the low byte is the primary result code.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT


def _deliver_outcomes(outcomes: list[_Outcome]) -> None:
    """On the event loop: call ``when_durable`` of each write that succeeded, and complete its future with its result or
    its exception. A cancelled future is left as it is."""
    for (_, when_durable, future), result, error in outcomes:
        if error is None:
            # Also for a cancelled future: the write is durable, so readers must see it.
            try:
                when_durable(result)
            except Exception:
                # This write and the following ones are durable: complete the future of each of them.
                logger.exception(
                    "Bug in Coterie: a callback failed after a durable write; the broker's state in memory may differ "
                    "from its log: restart the broker"
                )
        if future.cancelled():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
