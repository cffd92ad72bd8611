"""What a loop waits for: the next event that came in or the next deadline, whichever is first."""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from coterie.engine.timers import Timers

EventT = TypeVar("EventT")
TimerT = TypeVar("TimerT", bound=Hashable)


def now_ms() -> int:
    """The one clock of a worker and of its membership: monotonic, for it is compared and never shown."""
    return int(asyncio.get_running_loop().time() * 1000)


class Inbox(Generic[EventT, TimerT]):
    """A bounded queue of events beside a set of deadlines; one loop takes from it."""

    def __init__(self, events_max: int, *, fired: Callable[[TimerT], EventT]) -> None:
        """``fired`` makes an event of a deadline that has passed."""
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
        """Deadlines go first: after a pause a lease that is over says more than what lay in a socket meanwhile."""
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
