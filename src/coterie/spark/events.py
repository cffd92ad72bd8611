"""What a runtime has to tell, from many threads to one reader on the event loop."""

import asyncio
import threading
from collections import deque

from coterie.herder.seams import PartsChanged, RuntimeDied, TaskEvent, TaskProgressed, TaskWaiting
from coterie.nouns.jobs import ConnectorTaskId


class Events:
    """An ordered line of events; bounded, since what is told of a task again and again is merged."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[TaskEvent] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._filled = asyncio.Event()

    def bind(self) -> None:
        """Deliver on the loop that runs now."""
        self._loop = asyncio.get_running_loop()

    def put(self, event: TaskEvent) -> None:
        """Safe on any thread. Progress that nobody has read yet gives way to newer progress of the same task, and so
        does a wait for a server to a newer one."""
        with self._lock:
            last = next((old for old in reversed(self._waiting) if _task_of(old) == _task_of(event)), None)
            if isinstance(event, TaskProgressed | TaskWaiting) and type(event) is type(last):
                self._waiting.remove(last)
            self._waiting.append(event)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._filled.set)

    def forget(self, task: ConnectorTaskId) -> None:
        """Drop what an ended run of ``task`` has left unread."""
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
