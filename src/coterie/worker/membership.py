"""Drives a member machine of any group protocol: the herder's membership, with requests to a coordinator.

inbox ──► step ──► perform: timers, the herder's events      at once
  ▲                   └──► Send: a chore that sends a request to the coordinator
  └────── Answered | Unanswered ◄──┘
"""

import asyncio
import logging
from collections import deque
from typing import Generic, TypeVar

from coterie.engine.trace import Trace
from coterie.member.events import (
    Answered,
    Began,
    CancelTimer,
    Effect,
    Event,
    Left,
    Say,
    Send,
    SetTimer,
    TimerFired,
    TimerT,
    Unanswered,
)
from coterie.member.seams import Coordinator, Step
from coterie.nouns.errors import WorldError
from coterie.nouns.membership import Leave, MembershipEvent, MembershipOrder, ProvedUntil
from coterie.worker.inbox import Inbox, now_ms

logger = logging.getLogger(__name__)

INBOX_MAX = 1_000
"""Only a loop that was blocked can have so many events in its inbox."""
EVENTS_MAX = 1_000
"""Events that the herder has not received yet. A herder with so many is stuck: the member waits for it, sends no more
heartbeats and loses its membership."""

MemberT = TypeVar("MemberT")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class GroupMembership(Generic[MemberT, RequestT, ResponseT, TimerT]):
    """Implements `herder.seams.Membership`. It is active while :meth:`run` runs."""

    def __init__(
        self,
        step: Step[MemberT, RequestT, ResponseT, TimerT],
        member: MemberT,
        coordinator: Coordinator[RequestT, ResponseT],
    ) -> None:
        """``member`` is the state of the machine whose step function is ``step``; it may continue the membership of a
        previous process."""
        self._step = step
        self._member = member
        self._coordinator = coordinator
        self._inbox: Inbox[Event[ResponseT, TimerT], TimerT] = Inbox(
            INBOX_MAX, fired=lambda timer: TimerFired(timer=timer)
        )
        self._trace = Trace()
        self._asking: set[asyncio.Task[None]] = set()
        """One asyncio task for each request without a response, including the requests that the machine has
        abandoned."""
        self._has_left = False
        self._events: deque[MembershipEvent] = deque()
        self._changed = asyncio.Condition()
        self._ended = asyncio.Event()

    # -- for the herder ----------------------------------------------------------------------------------------------

    def order(self, order: MembershipOrder) -> None:
        self._inbox.put_nowait(order)

    async def leave(self, reason: str, *, for_good: bool = False) -> None:
        if not self._ended.is_set():
            self.order(Leave(reason=reason, for_good=for_good))
        await self._ended.wait()

    async def next_event(self) -> MembershipEvent:
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._events))
            event = self._events.popleft()
            self._changed.notify_all()
            return event

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part in the group until the member has left it; closes the coordinator at the end.

        When it is cancelled, it sends no LeaveGroup request: the group removes the member after the session timeout.

        :raises ExceptionGroup: for a bug in Coterie, after the member's last events have been logged.
        """
        try:
            async with asyncio.TaskGroup() as group:
                await self._take(Began(), group)
                while not self._has_left:
                    await self._take(await self._inbox.next(), group)
                for asking in self._asking:
                    asking.cancel()
        finally:
            self._ended.set()
            await self._coordinator.close()

    async def _take(self, event: Event[ResponseT, TimerT], group: asyncio.TaskGroup) -> None:
        at_ms = now_ms()
        self._trace.add(at_ms, repr(event))
        try:
            output = self._step(self._member, event, now_ms=at_ms)
        except AssertionError:
            logger.critical("Bug in the group member's state machine. Its last events:\n%s", self._trace.story())
            raise
        for effect in output.effects:
            await self._perform(effect, group)

    # -- performing effects ------------------------------------------------------------------------------------------

    async def _perform(self, effect: Effect[RequestT, TimerT], group: asyncio.TaskGroup) -> None:
        match effect:
            case Send():
                self._send(effect, group)
            case SetTimer(timer=timer, at_ms=at_ms):
                self._inbox.timers.set(timer, at_ms)
            case CancelTimer(timer=timer):
                self._inbox.timers.cancel(timer)
            case Say(text=text, warns=warns):
                logger.log(logging.WARNING if warns else logging.INFO, "%s", text)
            case Left():
                logger.info("Left the group")
                self._has_left = True
            case _:
                await self._tell(effect)

    def _send(self, send: Send[RequestT], group: asyncio.TaskGroup) -> None:
        """Send a request to the coordinator, even while other requests are outstanding. The machine drops the response
        to a request that it has abandoned."""
        asking = group.create_task(self._ask(send))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)

    async def _ask(self, send: Send[RequestT]) -> None:
        result: Answered[ResponseT] | Unanswered
        try:
            result = Answered(id=send.id, response=await self._coordinator.ask(send.request))
        except WorldError as error:
            result = Unanswered(id=send.id, reason=str(error))
        await self._inbox.put(result)

    async def _tell(self, event: MembershipEvent) -> None:
        async with self._changed:
            if isinstance(event, ProvedUntil) and self._events and isinstance(self._events[-1], ProvedUntil):
                self._events[-1] = event  # The newer event replaces the older one.
            else:
                await self._changed.wait_for(lambda: len(self._events) < EVENTS_MAX)
                self._events.append(event)
            self._changed.notify_all()
