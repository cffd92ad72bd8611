"""Drives a classic member: the herder's membership, over whatever coordinator it is handed.

inbox ──► step ──► perform: timers, the herder's events      at once
  ▲                   └──► Send: a chore that asks the coordinator
  └────── Answered | Failed ◄──┘
"""

import asyncio
import logging
from collections import deque
from typing import Literal, TypeAlias

from coterie.engine.trace import Trace
from coterie.member.classic.events import (
    AbandonWanted,
    Answered,
    CancelTimer,
    Effect,
    Event,
    Failed,
    Installed,
    LeaveWanted,
    Left,
    RejoinWanted,
    Say,
    Send,
    SetTimer,
    Subscribed,
    Timer,
    TimerFired,
)
from coterie.member.classic.machine import step
from coterie.member.classic.messages import Coordinator, HeartbeatRequest
from coterie.member.classic.state import HasLeft, InGroup, Member, MemberSettings
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import ConfigOffset
from coterie.nouns.jobs import Jobs
from coterie.nouns.membership import Computed, MembershipEvent, PlaceHandover, ProvedUntil
from coterie.worker.inbox import Inbox, now_ms

logger = logging.getLogger(__name__)

INBOX_MAX = 1_000
"""Only a loop that has stood still lets so many gather."""
EVENTS_MAX = 1_000
"""Events that the herder has not taken. A herder so far behind is stuck: the member waits for it, so its heartbeats
cease and it loses its place."""

_Kind: TypeAlias = Literal["heartbeat", "round"]


class ClassicMembership:
    """Matches `herder.seams.Membership`. Alive while :meth:`run` runs."""

    def __init__(
        self, settings: MemberSettings, coordinator: Coordinator, *, place: PlaceHandover | None = None
    ) -> None:
        """``place`` is what a former life of this process has handed on: the member goes on in it."""
        self._member = Member(settings, place)
        self._coordinator = coordinator
        self._inbox: Inbox[Event, Timer] = Inbox(INBOX_MAX, fired=lambda timer: TimerFired(timer=timer))
        self._trace = Trace()
        self._asking: dict[_Kind, asyncio.Task[None]] = {}
        self._events: deque[MembershipEvent] = deque()
        self._changed = asyncio.Condition()
        self._ended = asyncio.Event()

    # -- for the herder ----------------------------------------------------------------------------------------------

    def subscribe(self, *, config_offset: ConfigOffset, owned: Jobs, draining: bool = False) -> None:
        self._inbox.put_nowait(Subscribed(config_offset=config_offset, owned=owned, draining=draining))

    def rejoin(self, reason: str) -> None:
        self._inbox.put_nowait(RejoinWanted(reason=reason))

    def install(self, token: object, computed: Computed) -> None:
        self._inbox.put_nowait(Installed(token=token, computed=computed))

    def abandon(self, reason: str) -> None:
        self._inbox.put_nowait(AbandonWanted(reason=reason))

    async def leave(self, reason: str, *, for_good: bool = False) -> None:
        if not self._ended.is_set():
            self._inbox.put_nowait(LeaveWanted(reason=reason, for_good=for_good))
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

        Cancelled, it goes without a farewell: the group finds out by the session timeout.

        :raises ExceptionGroup: for a bug of ours, after the member's story has been logged.
        """
        if isinstance(self._member.place, InGroup):
            # Whoever goes on in a place has to be heard of at once.
            self._inbox.timers.set("heartbeat", now_ms())
        try:
            async with asyncio.TaskGroup() as group:
                while not isinstance(self._member.ending, HasLeft):
                    await self._take(await self._inbox.next(), group)
                for asking in self._asking.values():
                    asking.cancel()
        finally:
            self._ended.set()
            await self._coordinator.close()

    async def _take(self, event: Event, group: asyncio.TaskGroup) -> None:
        at_ms = now_ms()
        self._trace.add(at_ms, repr(event))
        try:
            output = step(self._member, event, now_ms=at_ms)
        except AssertionError:
            logger.critical("The group member is broken. What it did lately:\n%s", self._trace.story())
            raise
        for effect in output.effects:
            await self._perform(effect, group)

    # -- hands -------------------------------------------------------------------------------------------------------

    async def _perform(self, effect: Effect, group: asyncio.TaskGroup) -> None:
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
            case _:
                await self._tell(effect)

    def _send(self, send: Send, group: asyncio.TaskGroup) -> None:
        """Ask the coordinator. A member that sends a request has given up the one of its kind before it."""
        kind: _Kind = "heartbeat" if isinstance(send.request, HeartbeatRequest) else "round"
        if (given_up := self._asking.get(kind)) is not None:
            given_up.cancel()
        self._asking[kind] = group.create_task(self._ask(send))

    async def _ask(self, send: Send) -> None:
        result: Answered | Failed
        try:
            result = Answered(id=send.id, response=await self._coordinator.ask(send.request))
        except WorldError as error:
            result = Failed(id=send.id, reason=str(error))
        await self._inbox.put(result)

    async def _tell(self, event: MembershipEvent) -> None:
        async with self._changed:
            if isinstance(event, ProvedUntil) and self._events and isinstance(self._events[-1], ProvedUntil):
                self._events[-1] = event  # the newer one says it all
            else:
                await self._changed.wait_for(lambda: len(self._events) < EVENTS_MAX)
                self._events.append(event)
            self._changed.notify_all()
