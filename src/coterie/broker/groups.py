"""Hosts of the groups' machines: one asyncio task owns one group, with an inbox and a loop of step, append, perform.

An answer leaves only when the records of its step, and of all steps before, are durable. The loop does not wait for
that: it goes on with the next event, and the outbox holds the effects back until the log has told that it has written.
When the log fails, or a machine breaks (our own bug), whoever waits for an answer is told NOT_COORDINATOR, the machine
is dropped and loaded from its log.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from uuid import uuid4

from coterie.broker.group_log import GroupLog
from coterie.broker.heartbeats import HeartbeatGaps
from coterie.engine.output import Outbox
from coterie.engine.timers import Timers
from coterie.engine.trace import Trace
from coterie.groups.classic import refused, step
from coterie.groups.messages import (
    CancelTimer,
    Effect,
    Event,
    GroupLoaded,
    Heartbeat,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    Record,
    Reply,
    ReplyTo,
    Request,
    Response,
    SetTimer,
    SyncGroup,
    TimerFired,
    TimerKey,
)
from coterie.groups.state import Group, Limits, apply
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GroupId, MemberId
from coterie.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

_INBOX_MAX = 10_000
"""Requests that wait for one group; when it is full whoever asks waits, and its connection is not read."""
_RELOAD_DELAY_S = 0.5
_STALL_MS = 200
"""A deadline found passed by more than this says that this process stood still, not its peers."""
_CATCH_UP_S = 0.1


class Groups:
    """Every group of this broker."""

    def __init__(self, log: GroupLog, limits: Limits, tasks: asyncio.TaskGroup) -> None:
        self._log = log
        self._limits = limits
        self._tasks = tasks
        self._hosts: dict[GroupId, GroupHost] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._gaps = HeartbeatGaps()
        loop = asyncio.get_running_loop()
        # The wall's time at the start and the loop's steady clock from there: a clock that is set ends no session.
        wall_ms = round(time.time() * 1000 - loop.time() * 1000)
        self._now_ms: Callable[[], int] = lambda: wall_ms + round(loop.time() * 1000)

    async def load(self) -> None:
        """Replay every group; its members get a full session from now.

        :raises WorldError: when the log cannot be read.
        """
        for group_id, records in sorted((await self._log.load_all()).items()):
            self._host(group_id, records)

    async def ask(self, group_id: GroupId, make: Callable[[ReplyTo], Request]) -> Response:
        """The group's answer to the request that ``make`` makes."""
        return await self._host(group_id).ask(make)

    def close(self) -> None:
        """End every group's task. Who waits for an answer has lost its connection by now."""
        for task in self._running:
            task.cancel()

    def stats(self) -> Mapping[str, object]:
        """See :meth:`HeartbeatGaps.stats`."""
        return self._gaps.stats()

    def _host(self, group_id: GroupId, records: Sequence[Record] = ()) -> "GroupHost":
        host = self._hosts.get(group_id)
        if host is None:
            group = replayed(group_id, self._limits, records)
            host = self._hosts[group_id] = GroupHost(group, self._log, self._now_ms, self._gaps)
            task = self._tasks.create_task(self._run(host), name=f"group {group_id}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return host

    async def _run(self, host: "GroupHost") -> None:
        await host.run()
        # Nothing was put into its inbox since its loop ended: nothing else ran in between.
        del self._hosts[host.group_id]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outstanding:
    """A request that has not been answered."""

    request: Request
    answer: "asyncio.Future[Response]"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Appended:
    """The log has written some records of this group, or has failed to."""

    records: int
    failure: WorldError | None = None


class GroupHost:
    """One group's machine with its inbox, its timers and those who wait for its answers."""

    def __init__(self, group: Group, log: GroupLog, now_ms: Callable[[], int], gaps: HeartbeatGaps) -> None:
        self.group_id = group.group_id
        self._group = group
        self._log = log
        self._now_ms = now_ms
        self._gaps = gaps
        self._inbox: asyncio.Queue[Request | _Appended] = asyncio.Queue()
        self._room = asyncio.Semaphore(_INBOX_MAX)
        self._outbox: Outbox[Effect] = Outbox()
        self._appending: dict[asyncio.Future[int], int] = {}
        """How many records each append holds that the log has not answered."""
        self._timers: Timers[TimerKey] = Timers()
        self._trace = Trace()
        self._numbers = count()
        self._outstanding: dict[ReplyTo, _Outstanding] = {}

    async def ask(self, make: Callable[[ReplyTo], Request]) -> Response:
        """The machine's answer, once it may leave."""
        reply_to = ReplyTo(next(self._numbers))
        request = make(reply_to)
        self._note_request(request)
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._outstanding[reply_to] = _Outstanding(request=request, answer=answer)
        try:
            await self._room.acquire()
            self._inbox.put_nowait(request)
            return await answer
        finally:
            # A peer whose connection ended waits no more; its request may stay parked in the machine.
            self._outstanding.pop(reply_to, None)

    async def run(self) -> None:
        """Until there is nothing left to remember of the group."""
        await self._take(GroupLoaded())
        while not self._is_forgettable:
            await self._take(await self._next())

    @property
    def _is_forgettable(self) -> bool:
        return self._group.is_unheard_of and self._inbox.empty() and not self._outstanding and not self._appending

    async def _next(self) -> Event | _Appended:
        """Requests first: who has spoken in time is not cut off because we were slow to listen."""
        while self._inbox.empty():
            due_ms = self._timers.next_at_ms()
            late_ms = 0 if due_ms is None else self._now_ms() - due_ms
            if due_ms is not None and late_ms >= 0:
                if late_ms > _STALL_MS:
                    await asyncio.sleep(_CATCH_UP_S)
                    if not self._inbox.empty():
                        break
                key = self._timers.pop_due(self._now_ms())
                if key is not None:
                    return TimerFired(key=key)
                continue
            try:
                async with asyncio.timeout(None if due_ms is None else -late_ms / 1000):
                    return self._taken(await self._inbox.get())
            except TimeoutError:
                continue
        return self._taken(self._inbox.get_nowait())

    def _taken(self, item: Request | _Appended) -> Request | _Appended:
        if not isinstance(item, _Appended):
            self._room.release()
        return item

    async def _take(self, item: Event | _Appended) -> None:
        try:
            if isinstance(item, _Appended):
                self._on_appended(item)
            else:
                self._step(item)
        except WorldError as error:
            logger.error("group %s is loaded again: %s", self.group_id, error)
            await self._reload()
        except Exception:
            logger.exception("our own bug: group %s is loaded again\n%s", self.group_id, self._trace.story())
            await self._reload()

    def _step(self, event: Event) -> None:
        now_ms = self._now_ms()
        self._trace.add(now_ms, repr(event))
        output = step(self._group, event, now_ms=now_ms)
        self._outbox.put(output)
        if output.records:
            append = self._log.append(self.group_id, output.records, now_ms=now_ms)
            self._appending[append] = len(output.records)
            append.add_done_callback(self._tell_appended)
        self._release()

    def _tell_appended(self, append: "asyncio.Future[int]") -> None:
        records = self._appending.pop(append, None)
        if records is None or append.cancelled():
            return  # of a machine that was dropped meanwhile
        error = append.exception()
        failure = error if error is None or isinstance(error, WorldError) else WorldError(repr(error))
        self._inbox.put_nowait(_Appended(records=records, failure=failure))

    def _on_appended(self, appended: _Appended) -> None:
        """:raises WorldError: when the log has failed."""
        if appended.failure is not None:
            raise appended.failure
        self._outbox.durable(appended.records)
        self._release()

    def _release(self) -> None:
        for effect in self._outbox.release():
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SetTimer(key=key, at_ms=at_ms):
                self._timers.set(key, at_ms)
            case CancelTimer(key=key):
                self._timers.cancel(key)
            case Reply(to=reply_to, response=response):
                outstanding = self._outstanding.pop(reply_to, None)
                if outstanding is not None and not outstanding.answer.done():
                    self._note_answer(outstanding.request, response)
                    outstanding.answer.set_result(response)

    async def _reload(self) -> None:
        """Drop the machine, tell whoever waits, and replay the log for as long as it takes to be read."""
        while True:
            self._answer_all()
            await self._await_appends()
            try:
                records = await self._log.load(self.group_id)
                self._group = replayed(self.group_id, self._group.limits, records)
                self._timers = Timers()
                self._outbox = Outbox()
                self._step(GroupLoaded())
                return
            except WorldError as error:
                logger.error("group %s cannot be loaded yet: %s", self.group_id, error)
            except Exception:
                logger.exception("our own bug: group %s cannot be loaded\n%s", self.group_id, self._trace.story())
            await asyncio.sleep(_RELOAD_DELAY_S)

    async def _await_appends(self) -> None:
        """What the dropped machine has under way must have come to rest, written or not, before the log is read."""
        appending = list(self._appending)
        self._appending.clear()
        if appending:
            await asyncio.wait(appending)
        for append in appending:
            if not append.cancelled():
                append.exception()  # looked at; the reload has its own reason

    def _answer_all(self) -> None:
        while not self._inbox.empty():
            self._taken(self._inbox.get_nowait())
        for outstanding in self._outstanding.values():
            if not outstanding.answer.done():
                outstanding.answer.set_result(refused(outstanding.request, ErrorCode.not_coordinator))
        self._outstanding.clear()

    # -- who was heard of when ----------------------------------------------------------------------------------------

    def _note_request(self, request: Request) -> None:
        now_ms = self._now_ms()
        match request:
            case Heartbeat(member_id=member_id):
                self._gaps.asked(self.group_id, member_id, now_ms, is_heartbeat=True)
            case JoinGroup(member_id=member_id) | SyncGroup(member_id=member_id) if member_id:
                self._gaps.asked(self.group_id, member_id, now_ms, is_heartbeat=False)
            case LeaveGroup(members=leaving):
                for member in leaving:
                    self._gaps.left(self.group_id, member.member_id)
            case _:
                pass

    def _note_answer(self, request: Request, response: Response) -> None:
        if isinstance(response, JoinGroupResponse) and response.error is ErrorCode.none:
            self._gaps.answered(self.group_id, response.member_id, self._now_ms())
        elif isinstance(request, SyncGroup):
            self._gaps.answered(self.group_id, request.member_id, self._now_ms())


def replayed(group_id: GroupId, limits: Limits, records: Sequence[Record]) -> Group:
    """The group as its records tell it; the machine has still to hear `GroupLoaded`."""
    group = Group(group_id, limits)
    for record in records:
        apply(group, record)
    return group


def fresh_member_id(client_id: str) -> MemberId:
    """``<client id>-<uuid>``, as Kafka makes them."""
    return MemberId(f"{client_id}-{uuid4()}")
