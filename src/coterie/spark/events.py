"""Queue of the events that a runtime reports, from many threads to one reader on the event loop."""

import asyncio
import threading
from collections import deque

from coterie.herder.seams import RuntimeDied, SourcePartsChanged, TaskEvent, TaskProgressed, TaskRetrying
from coterie.nouns.jobs import ConnectorTaskId


class Events:
    """A queue of events in order. Repeated progress events, and repeated retry events, of one task are merged, so that
    a slow reader does not make the queue grow without limit."""

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
        """Append an event. Safe on any thread. If ``event`` is a :class:`TaskProgressed` or :class:`TaskRetrying` and
        the last unread event of the same task is of the same class, that unread event is removed."""
        with self._lock:
            last = next((old for old in reversed(self._waiting) if _task_of(old) == _task_of(event)), None)
            if isinstance(event, TaskProgressed | TaskRetrying) and type(event) is type(last):
                self._waiting.remove(last)
            self._waiting.append(event)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._filled.set)

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
