"""The one thread that writes the log: it takes whatever gathered while its last fsync ran, writes that in one
transaction and commits once (group commit). A failure of the world fails all of that transaction and nothing before or
after it; the thread goes on, so that writing works again as soon as the disk does. Damage that one write meets in the
file fails that one alone: the others are written without it.
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
    """Of the write that has met it."""
    error: DamagedLogError


class LogWriter:
    """Runs writes in the order in which they are put, and tells their results on the event loop."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._is_failing = False
        self._has_met_damage = False
        # Unbounded, and yet limited: each entry is a request in flight, and every connection has few of those.
        self._writes: SimpleQueue[_Write | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="broker-log-write", daemon=True)
        self._thread.start()

    def put(self, write: Callable[[Store], T], when_durable: Callable[[T], None]) -> "asyncio.Future[T]":
        """The future has the result of ``write`` once it is durable, or its refusal, or a `WorldError`. On the loop
        ``when_durable`` is called before that, also when nobody waits for the future any more."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._writes.put((write, when_durable, future))
        return future

    def close(self) -> None:
        """End the thread; what was put before is written. Blocks for as long as that takes."""
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

    def _commit(self, writes: list[_Write]) -> list[_Outcome]:
        outcomes: list[_Outcome] = []
        begin, end = 0, len(writes)
        while begin < len(writes):
            told = self._try(writes[begin:end])
            if isinstance(told, _Damage):
                if told.place:
                    end = begin + told.place  # What stands before it goes first.
                    continue
                told = [(writes[begin], None, told.error)]
            outcomes += told
            begin, end = begin + len(told), len(writes)
        return outcomes

    def _try(self, writes: list[_Write]) -> "list[_Outcome] | _Damage":
        """What has become of ``writes``; or which one has met damage, and then nothing is written."""
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
                    # So the others of this transaction are not concerned.
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
        except Exception as error:  # noqa: BLE001 our own bug: whoever waits must hear of it, and the thread go on
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
            # The next transaction will not begin either, and says so: this thread has to live for that.
            logger.error("the broker's log cannot be rolled back: %s", error)
            return False
        return True

    def _note_failure(self, error: Exception) -> None:
        """One line for a whole time of failing: a full disk is met by every producer, again and again."""
        if not self._is_failing:
            logger.error("the broker's log cannot be written, so producers are refused until it can: %s", error)
        self._is_failing = True

    def _note_damage(self, error: Exception) -> None:
        if not self._has_met_damage:
            logger.error("the broker's log is damaged, whatever meets that is refused: %s%s", error, WHAT_TO_DO)
        self._has_met_damage = True

    def _note_success(self) -> None:
        if self._is_failing:
            logger.info("the broker's log can be written again")
        self._is_failing = False


def _is_damage(error: OSError | sqlite3.Error) -> bool:
    # What the module `sqlite3` raises by itself has no code; the lowest byte tells the kind, the others the place.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT


def _tell(outcomes: list[_Outcome]) -> None:
    for (_, when_durable, future), result, error in outcomes:
        if error is None:
            # Also when nobody waits any more: it is durable, so readers must see it.
            try:
                when_durable(result)
            except Exception:
                # It is durable all the same, and so is what stands behind it: each of them is told.
                logger.exception("our own bug: what has become durable is not known everywhere")
        if future.cancelled():
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
