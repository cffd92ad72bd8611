"""Queue of the events that a runtime reports, from many threads to one reader on the event loop."""

import asyncio
import threading
from collections import deque
from dataclasses import replace

from coterie.config.secrets import hide_secrets
from coterie.herder.seams import (
    PluginThreadsLost,
    RuntimeDied,
    SourcePartsChanged,
    TaskDied,
    TaskEvent,
    TaskProgressed,
    TaskRetrying,
)
from coterie.nouns.jobs import ConnectorTaskId

UNREAD_REPORTS_MAX = 3
"""Maximum number of unread progress and retry events of one task, both kinds together, without another event of the
task between them. The last event of each kind is among them. An older one has no effect, because a newer one of its
kind follows."""


class EventQueue:
    """A queue of events in order, with bounded growth when the reader is slow. Repeated progress events, and repeated
    retry events, of one task are merged: for each task at most :data:`UNREAD_REPORTS_MAX` of them in a row are kept,
    both kinds together. Every other event of a task or connector is kept: the next such event follows only a start or
    split, which the reader orders."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unread: deque[TaskEvent] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_unread = asyncio.Event()

    def bind_to_running_loop(self) -> None:
        """Set the reader's event loop to the running one. Before this call, :meth:`put` does not wake a waiting
        :meth:`get`."""
        self._loop = asyncio.get_running_loop()

    def put(self, event: TaskEvent) -> None:
        """Append an event. Safe on any thread. A :class:`PluginThreadsLost` replaces an unread one.

        A :class:`TaskProgressed` or :class:`TaskRetrying` (a report) can replace one unread report of the same task. If
        the task's last unread event is of the same class, that event is replaced. Otherwise, if the task's last
        :data:`UNREAD_REPORTS_MAX` unread events are all reports, the oldest of these is replaced. The rows and topics
        of a replaced :class:`TaskProgressed` are added to the task's next one.

        In the trace of a :class:`TaskDied` or :class:`TaskRetrying`, the values of references to secrets are hidden,
        because the trace becomes a part of the task's status.
        """
        if isinstance(event, TaskDied | TaskRetrying):
            event = replace(event, trace=hide_secrets(event.trace))
        with self._lock:
            if isinstance(event, PluginThreadsLost):
                self._unread = deque(unread for unread in self._unread if not isinstance(unread, PluginThreadsLost))
            if (
                isinstance(event, TaskProgressed | TaskRetrying)
                and (index := self._index_superseded_by(event)) is not None
            ):
                event = self._remove_and_merge_superseded(index, event)
            self._unread.append(event)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._has_unread.set)

    def _index_superseded_by(self, event: TaskProgressed | TaskRetrying) -> int | None:
        """The index of the unread event that :meth:`put` removes for ``event``; None if it removes none."""
        report_indexes: list[int] = []
        for index in range(len(self._unread) - 1, -1, -1):
            unread_event = self._unread[index]
            if _task_of(unread_event) != event.task:
                continue
            if type(unread_event) is type(event) and not report_indexes:
                return index
            if not isinstance(unread_event, TaskProgressed | TaskRetrying):
                break
            report_indexes.append(index)
        return report_indexes[-1] if len(report_indexes) >= UNREAD_REPORTS_MAX else None

    def _remove_and_merge_superseded(
        self, index: int, event: TaskProgressed | TaskRetrying
    ) -> TaskProgressed | TaskRetrying:
        """Remove the unread event at ``index``, which :meth:`put` replaces by ``event``, and return ``event``. The rows
        and topics of a removed progress event are added to the next progress event of the task: an unread one, or
        ``event``."""
        removed = self._unread[index]
        del self._unread[index]
        if not isinstance(removed, TaskProgressed):
            return event
        for later_index in range(index, len(self._unread)):
            later = self._unread[later_index]
            if isinstance(later, TaskProgressed) and later.task == removed.task:
                self._unread[later_index] = _merge_progress(removed, later)
                return event
        return _merge_progress(removed, event) if isinstance(event, TaskProgressed) else event

    def drop_events_of_task(self, task: ConnectorTaskId) -> None:
        """Drop all unread events of ``task``: they are about a run that has ended."""
        with self._lock:
            self._unread = deque(event for event in self._unread if _task_of(event) != task)

    async def get(self) -> TaskEvent:
        """Remove and return the oldest event; waits while there is none."""
        while True:
            with self._lock:
                if self._unread:
                    return self._unread.popleft()
                self._has_unread.clear()
            await self._has_unread.wait()


def _merge_progress(earlier: TaskProgressed, later: TaskProgressed) -> TaskProgressed:
    """The one event for two progress events of a task."""
    return replace(later, input_rows=earlier.input_rows + later.input_rows, topics=earlier.topics | later.topics)


def _task_of(event: TaskEvent) -> ConnectorTaskId | None:
    """The task of an event; None for an event of the runtime or of a connector."""
    return None if isinstance(event, RuntimeDied | SourcePartsChanged | PluginThreadsLost) else event.task
