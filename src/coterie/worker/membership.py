"""The loop that runs a member machine of any group protocol. To the herder it is the `Membership` of its group.

inbox ──► step ──► perform: timers, events for the herder      at once
  ▲                   └──► Send: an asyncio task that sends a request to the coordinator
  └── ResponseReceived | RequestFailed ◄──┘
"""

import asyncio
import logging
from collections import deque
from typing import Generic, TypeVar

from coterie.engine.trace import Trace, brief_text
from coterie.member.events import (
    CancelTimer,
    Effect,
    Event,
    MemberEnded,
    MemberStarted,
    RequestFailed,
    ResponseReceived,
    Send,
    SetTimer,
    TimerFired,
    TimerT,
    WriteLogMessage,
)
from coterie.member.seams import CoordinatorClient, Step
from coterie.nouns.errors import WorldError
from coterie.nouns.membership import LeaseRenewed, Leave, MembershipEvent, MembershipOrder, UpdateAssignor
from coterie.worker.inbox import Inbox, now_ms

logger = logging.getLogger(__name__)

INBOX_EVENTS_MAX = 1_000
"""The most events in the inbox of the member's loop. Only a loop that was blocked can have so many: then orders are
refused, and responses wait."""
QUEUED_HERDER_EVENTS_MAX = 1_000
"""The most events that are queued for the herder. A herder with so many is stuck: the member's loop waits until the
herder has taken one, sends no heartbeats meanwhile, and so loses its membership."""

MemberT = TypeVar("MemberT")
RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class GroupMembership(Generic[MemberT, RequestT, ResponseT, TimerT]):
    """Implements `herder.seams.Membership` with a member machine and a client of the group coordinator. The orders
    of :meth:`order` and :meth:`leave` are queued, and :meth:`run` carries them out; an order for which the inbox has no
    room raises asyncio.QueueFull."""

    def __init__(
        self,
        step: Step[MemberT, RequestT, ResponseT, TimerT],
        member: MemberT,
        coordinator: CoordinatorClient[RequestT, ResponseT],
    ) -> None:
        """``member`` is the state of the machine whose step function is ``step``; it may continue the membership of
        this worker's previous process. :meth:`run` closes ``coordinator``."""
        self._step = step
        self._member = member
        self._coordinator = coordinator
        self._inbox: Inbox[Event[ResponseT, TimerT], TimerT] = Inbox(
            INBOX_EVENTS_MAX, event_of_timer=lambda timer: TimerFired(timer=timer)
        )
        self._trace = Trace()
        self._running_requests: set[asyncio.Task[None]] = set()
        """One asyncio task for each request without a response, including the requests that the machine has
        abandoned."""
        self._has_left = False
        self._events: deque[MembershipEvent] = deque()
        """The events that the herder has not taken yet."""
        self._changed = asyncio.Condition()
        """Notified after each change of ``_events``."""
        self._ended = asyncio.Event()
        """Set when the loop of :meth:`run` has ended."""

    # -- for the herder ----------------------------------------------------------------------------------------------

    def order(self, order: MembershipOrder | UpdateAssignor) -> None:
        """Queue ``order`` for the member's loop, which carries it out later. Never waits.

        :raises asyncio.QueueFull: when :data:`INBOX_EVENTS_MAX` events are in the inbox.
        """
        self._inbox.put_nowait(order)

    async def leave(self, reason: str, *, is_permanent: bool = False) -> None:
        """Order the member to leave the group, and wait until the loop of :meth:`run` has ended. Returns at once if it
        has ended already. ``is_permanent``: as in `Leave`.

        :raises asyncio.QueueFull: when :data:`INBOX_EVENTS_MAX` events are in the inbox.
        """
        if not self._ended.is_set():
            self.order(Leave(reason=reason, is_permanent=is_permanent))
        await self._ended.wait()

    async def next_event(self) -> MembershipEvent:
        """Wait for the next event for the herder, remove and return it. Of LeaseRenewed events that follow each other
        in the queue, only the newest is kept."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._events))
            event = self._events.popleft()
            self._changed.notify_all()
            return event

    # -- the loop ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part in the group until the member has left it. At the end, closes the client of the coordinator.

        A cancelled run does not leave the group: the group removes the member at the latest after the session timeout.

        :raises ExceptionGroup: for a bug in Coterie. If the bug is in the machine, the member's last events are logged
            first.
        """
        try:
            async with asyncio.TaskGroup() as group:
                await self._step_member(MemberStarted(), group)
                while not self._has_left:
                    await self._step_member(await self._inbox.next(), group)
                for asking in self._running_requests:
                    asking.cancel()
        finally:
            self._ended.set()
            await self._coordinator.close()

    async def _step_member(self, event: Event[ResponseT, TimerT], group: asyncio.TaskGroup) -> None:
        """Let the machine process ``event``, and perform the effects that it returns. An exception of the machine is
        logged with its last events and raised again."""
        at_ms = now_ms()
        self._trace.add(at_ms, brief_text(event))
        try:
            output = self._step(self._member, event, now_ms=at_ms)
        except Exception:
            logger.critical(
                "Bug in Coterie: the state machine of the group member failed, and this worker ends. The machine's "
                "last events:\n%s",
                self._trace.recent_text(),
            )
            raise
        for effect in output.effects:
            await self._perform(effect, group)
        # A filled inbox returns its events without yielding to the event loop.
        await asyncio.sleep(0)

    # -- performing effects ------------------------------------------------------------------------------------------

    async def _perform(self, effect: Effect[RequestT, TimerT], group: asyncio.TaskGroup) -> None:
        """Perform an effect of the machine. An effect that is an event for the herder is queued: this waits while the
        queue is full (:meth:`_queue_event_for_herder`)."""
        match effect:
            case Send():
                self._send_request(effect, group)
            case SetTimer(timer=timer, at_ms=at_ms):
                self._inbox.timers.set(timer, at_ms)
            case CancelTimer(timer=timer):
                self._inbox.timers.cancel(timer)
            case WriteLogMessage(text=text, is_warning=is_warning):
                logger.log(logging.WARNING if is_warning else logging.INFO, "%s", text)
            case MemberEnded():
                logger.info("This worker's membership has ended: it sends no further requests to its group")
                self._has_left = True
            case _:
                await self._queue_event_for_herder(effect)

    def _send_request(self, send: Send[RequestT], group: asyncio.TaskGroup) -> None:
        """Start an asyncio task that sends a request to the coordinator, even while other requests are outstanding. The
        machine drops the response to a request that it has abandoned."""
        asking = group.create_task(self._ask_coordinator_and_queue_result(send))
        self._running_requests.add(asking)
        asking.add_done_callback(self._running_requests.discard)

    async def _ask_coordinator_and_queue_result(self, send: Send[RequestT]) -> None:
        """Send a request, await its response, and put the response, or the reason why there is none, into the inbox."""
        result: ResponseReceived[ResponseT] | RequestFailed
        try:
            result = ResponseReceived(id=send.id, response=await self._coordinator.ask(send.request))
        except WorldError as error:
            result = RequestFailed(id=send.id, reason=str(error))
        await self._inbox.put(result)

    async def _queue_event_for_herder(self, event: MembershipEvent) -> None:
        """Queue ``event`` for the herder; waits while :data:`QUEUED_HERDER_EVENTS_MAX` events are queued. A
        LeaseRenewed that follows another one replaces it, without waiting."""
        async with self._changed:
            if isinstance(event, LeaseRenewed) and self._events and isinstance(self._events[-1], LeaseRenewed):
                self._events[-1] = event  # The newer event replaces the older one.
            else:
                await self._changed.wait_for(lambda: len(self._events) < QUEUED_HERDER_EVENTS_MAX)
                self._events.append(event)
            self._changed.notify_all()
