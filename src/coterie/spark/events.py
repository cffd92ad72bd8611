"""Queue of the events that a runtime reports, from many threads to one reader on the event loop."""

import asyncio
import threading
from collections import deque

from coterie.herder.seams import RuntimeDied, SourcePartsChanged, TaskEvent, TaskProgressed, TaskRetrying
from coterie.nouns.jobs import ConnectorTaskId

UNREAD_MAX = 3
"""Maximum number of unread progress and retry events of one task in a row, so that the last of each kind is among them:
an older one has no effect, because a newer one of its kind follows."""


class Events:
    """A queue of events in order. A slow reader does not make it grow without limit: repeated progress events, and
    repeated retry events, of one task are merged, and at most :data:`UNREAD_MAX` of both kinds are kept. After every
    other event of a task or connector, the next one follows only a start or split, which the reader orders."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[TaskEvent] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._filled = asyncio.Event()

    def bind(self) -> None:
        """Set the event loop of the reader to the running one, on which this method is called. Without it, :meth:`put`
        does not wake a waiting :meth:`get`."""
        self._loop = asyncio.get_running_loop()

    def put(self, event: TaskEvent) -> None:
        """Append an event. Safe on any thread. If ``event`` is a :class:`TaskProgressed` or :class:`TaskRetrying`, an
        unread event of the same task is removed: the last one if it is of the same class, else the oldest of
        :data:`UNREAD_MAX` such events in a row."""
        with self._lock:
            if isinstance(event, TaskProgressed | TaskRetrying) and (index := self._superseded_by(event)) is not None:
                del self._waiting[index]
            self._waiting.append(event)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._filled.set)

    def _superseded_by(self, event: TaskProgressed | TaskRetrying) -> int | None:
        """The index of the unread event that :meth:`put` removes for ``event``; None if it removes none."""
        found: list[int] = []
        for index in range(len(self._waiting) - 1, -1, -1):
            old = self._waiting[index]
            if _task_of(old) != event.task:
                continue
            if type(old) is type(event) and not found:
                return index
            if not isinstance(old, TaskProgressed | TaskRetrying):
                break
            found.append(index)
        return found[-1] if len(found) >= UNREAD_MAX else None

    def forget(self, task: ConnectorTaskId) -> None:
        """Drop all unread events of ``task``: they are about a run that has ended."""
        with self._lock:
            self._waiting = deque(event for event in self._waiting if _task_of(event) != task)

    async def get(self) -> TaskEvent:
        """Remove and return the oldest event; waits while there is none."""
        while True:
            with self._lock:
                if self._waiting:
                    return self._waiting.popleft()
                self._filled.clear()
            await self._filled.wait()


def _task_of(event: TaskEvent) -> ConnectorTaskId | None:
    """The task of an event; None for an event of the runtime or of a connector."""
    return None if isinstance(event, RuntimeDied | SourcePartsChanged) else event.task
