"""The inbox of a machine's loop: a queue of events, and timers, each of which becomes an event when its time comes.
All times are those of the event loop's monotonic clock.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from coterie.engine.timers import Timers

EventT = TypeVar("EventT")
TimerT = TypeVar("TimerT", bound=Hashable)


def now_ms() -> int:
    """The present time in ms on the clock of a worker and of its membership. The clock is monotonic: its times are
    compared, never displayed. Called on the event loop's thread."""
    return int(asyncio.get_running_loop().time() * 1000)


class Inbox(Generic[EventT, TimerT]):
    """A bounded queue of events, and the ``timers``. One loop takes events from both, by :meth:`next`: first the timers
    whose time has come. While the queue is full, :meth:`put` waits and :meth:`put_nowait` raises asyncio.QueueFull."""

    def __init__(self, events_max: int, *, event_of_timer: Callable[[TimerT], EventT]) -> None:
        """``events_max`` is the greatest number of events in the queue. ``event_of_timer`` returns the event for a
        timer whose time has come."""
        self.timers: Timers[TimerT] = Timers()
        """The timers that are set; each becomes an event when its time has come."""
        self._events: asyncio.Queue[EventT] = asyncio.Queue(events_max)
        self._event_of_timer = event_of_timer

    async def put(self, event: EventT) -> None:
        """Add ``event`` to the queue; waits while the queue is full."""
        await self._events.put(event)

    def put_nowait(self, event: EventT) -> None:
        """Add ``event`` to the queue.

        :raises asyncio.QueueFull: when the queue is full.
        """
        self._events.put_nowait(event)

    async def next(self) -> EventT:
        """Wait for the next event, remove and return it. A timer whose time has come is before all events of the queue:
        after a pause of the process, the end of the lease must be processed before responses that waited in a socket
        during the pause."""
        while True:
            if (timer := self.timers.pop_due(now_ms())) is not None:
                return self._event_of_timer(timer)
            next_at_ms = self.timers.next_deadline_ms()
            wait_s = None if next_at_ms is None else max(next_at_ms - now_ms(), 0) / 1000
            try:
                async with asyncio.timeout(wait_s):
                    return await self._events.get()
            except TimeoutError:
                continue
