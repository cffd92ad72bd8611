"""The inbox of an event loop: it returns the next event or the next deadline, whichever comes first."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from coterie.engine.timers import Timers

EventT = TypeVar("EventT")
TimerT = TypeVar("TimerT", bound=Hashable)


def now_ms() -> int:
    """The clock of a worker and of its membership, in ms. It is monotonic: its times are compared, never displayed."""
    return int(asyncio.get_running_loop().time() * 1000)


class Inbox(Generic[EventT, TimerT]):
    """A bounded queue of events and a set of deadlines; one loop reads both."""

    def __init__(self, events_max: int, *, fired: Callable[[TimerT], EventT]) -> None:
        """``fired`` returns the event for the timer of a deadline that has passed."""
        self.timers: Timers[TimerT] = Timers()
        self._events: asyncio.Queue[EventT] = asyncio.Queue(events_max)
        self._fired = fired

    async def put(self, event: EventT) -> None:
        """Waits while the inbox is full."""
        await self._events.put(event)

    def put_nowait(self, event: EventT) -> None:
        """:raises asyncio.QueueFull: when the inbox is full."""
        self._events.put_nowait(event)

    async def next(self) -> EventT:
        """The next event. Deadlines come first: after a pause of the process, the end of the lease must be processed
        before responses that waited in a socket during the pause."""
        while True:
            if (timer := self.timers.pop_due(now_ms())) is not None:
                return self._fired(timer)
            next_at_ms = self.timers.next_at_ms()
            wait_s = None if next_at_ms is None else max(next_at_ms - now_ms(), 0) / 1000
            try:
                async with asyncio.timeout(wait_s):
                    return await self._events.get()
            except TimeoutError:
                continue
