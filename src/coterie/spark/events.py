"""Queue of the events that a runtime reports, from many threads to one reader on the event loop."""

import asyncio
import threading
from collections import deque

from coterie.herder.seams import PartsChanged, RuntimeDied, TaskEvent, TaskProgressed, TaskWaiting
from coterie.nouns.jobs import ConnectorTaskId


class Events:
    """A queue of events in order. Its length is bounded: repeated events of one kind and task are merged."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[TaskEvent] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._filled = asyncio.Event()

    def bind(self) -> None:
        """Deliver the events on the running event loop, which calls this method."""
        self._loop = asyncio.get_running_loop()

    def put(self, event: TaskEvent) -> None:
        """Safe on any thread. A :class:`TaskProgressed` or :class:`TaskWaiting` replaces the last unread event of its
        task if that is of the same kind."""
        with self._lock:
            last = next((old for old in reversed(self._waiting) if _task_of(old) == _task_of(event)), None)
            if isinstance(event, TaskProgressed | TaskWaiting) and type(event) is type(last):
                self._waiting.remove(last)
            self._waiting.append(event)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._filled.set)

    def forget(self, task: ConnectorTaskId) -> None:
        """Drop the unread events of an ended run of ``task``."""
        with self._lock:
            self._waiting = deque(event for event in self._waiting if _task_of(event) != task)

    async def get(self) -> TaskEvent:
        while True:
            with self._lock:
                if self._waiting:
                    return self._waiting.popleft()
                self._filled.clear()
            await self._filled.wait()


def _task_of(event: TaskEvent) -> ConnectorTaskId | None:
    return None if isinstance(event, RuntimeDied | PartsChanged) else event.task
