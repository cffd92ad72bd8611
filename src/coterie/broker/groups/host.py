"""Runs one group's machine: each request is stepped at once; one asyncio task handles deadlines, failures and the end.
The host is independent of the protocol: it receives machine, codec and log topic.

A response is sent only when the records of its step, and of all earlier steps, are durable. Only the sender of the
request waits for that: the machine continues with the next event, and the outbox holds the effects until the log has
written. If the log fails, or the machine raises an exception (a bug in Coterie), every pending request gets
NOT_COORDINATOR, the machine is dropped, and the group is reloaded from its log; new requests wait for the reload.

Most requests are heartbeats, which write no record: they get their response without a queue, an asyncio task or a
future.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, Protocol, TypeVar

from coterie.broker.groups.log import GroupLog
from coterie.engine.output import Outbox, Output
from coterie.engine.timers import Timers
from coterie.engine.trace import Trace
from coterie.groups.effects import CancelTimer, Effect, Reply, SetTimer, TimerFired
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GroupId, ReplyTo
from coterie.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

_RELOAD_DELAY_S = 0.5
_STALL_MS = 200
"""If a deadline is more than this overdue when it is handled, this process stalled, not its clients."""
_CATCH_UP_S = 0.1
_CATCH_UP_TURNS = 5
"""A request needs a few iterations of the event loop from its socket to its machine."""


class Answerable(Protocol):
    """A request with the id of its reply."""

    @property
    def reply_to(self) -> ReplyTo: ...


GroupT = TypeVar("GroupT")
RequestT = TypeVar("RequestT", bound=Answerable)
AskedT = TypeVar("AskedT", contravariant=True)
NewsT = TypeVar("NewsT")
RecordT = TypeVar("RecordT")
ResponseT = TypeVar("ResponseT")
KeyT = TypeVar("KeyT", bound=Hashable)


class GroupMachine(Protocol[GroupT, AskedT, NewsT, RecordT, ResponseT, KeyT]):
    """The coordinator of one kind of groups. Its events are requests, deadlines that passed, and notifications: events
    that have no response."""

    def fresh(self, group_id: GroupId, /) -> GroupT:
        """A new group without state."""
        ...

    def apply(self, group: GroupT, record: RecordT, /) -> None: ...

    def step(
        self, group: GroupT, event: AskedT | NewsT | TimerFired[KeyT], /, *, now_ms: int
    ) -> Output[RecordT, Effect[ResponseT, KeyT]]: ...

    def loaded(self, records: Sequence[RecordT], /) -> Sequence[NewsT]:
        """The notifications that the machine gets once the group's ``records`` are replayed."""
        ...

    def refused(self, request: AskedT, error: ErrorCode, /) -> ResponseT: ...

    def founds(self, request: AskedT, /) -> bool:
        """Whether this request would create the group if it does not exist."""
        ...

    def is_known(self, group: GroupT, /) -> bool:
        """Whether the group has any state to keep."""
        ...

    def summary(self, event: AskedT | NewsT | TimerFired[KeyT], /) -> object:
        """The part of an event that the trace keeps: small, and without data of members."""
        ...

    def on_asked(self, group: GroupT, request: AskedT, /) -> None:
        """A request arrived. Called before its step; for statistics, not for the group's state."""
        ...

    def on_answered(self, group: GroupT, request: AskedT, response: ResponseT, /) -> None:
        """The response to a request is sent. For statistics, not for the group's state."""
        ...


@dataclass(slots=True, kw_only=True)
class PendingRequest(Generic[RequestT, ResponseT]):
    """A request that has no response yet; ``answer`` is set while a caller awaits the response."""

    request: RequestT
    response: ResponseT | None = None
    answer: "asyncio.Future[ResponseT] | None" = None


class GroupHost(Generic[GroupT, RequestT, NewsT, RecordT, ResponseT, KeyT]):
    """One group's machine with its timers and pending requests."""

    def __init__(
        self,
        group_id: GroupId,
        machine: GroupMachine[GroupT, RequestT, NewsT, RecordT, ResponseT, KeyT],
        records: Sequence[RecordT],
        log: GroupLog[RecordT],
        now_ms: Callable[[], int],
    ) -> None:
        self.group_id = group_id
        self._machine = machine
        self._group = self._replayed(records)
        self._log = log
        self._now_ms = now_ms
        self._outbox: Outbox[Effect[ResponseT, KeyT]] = Outbox()
        self._appending: dict[asyncio.Future[int], int] = {}
        """How many records each append holds that is not durable yet."""
        self._timers: Timers[KeyT] = Timers()
        self._trace = Trace()
        self._numbers = count()
        self._asked: dict[ReplyTo, PendingRequest[RequestT, ResponseT]] = {}
        self._is_broken = False
        self._loaded = asyncio.Event()
        """Not set while the group is reloaded."""
        self._loaded.set()
        self._waiting_for_load = 0
        self._wake = asyncio.Event()
        self._rests_until_ms: float = 0
        """The deadline that `run` waits for; an earlier deadline wakes it."""
        self._begin(records)

    @property
    def is_known(self) -> bool:
        return self._machine.is_known(self._group)

    async def ask(self, make: Callable[[ReplyTo], RequestT]) -> ResponseT:
        """The machine's response to the request that ``make`` builds, once it may be sent."""
        if self._is_broken:
            await self._wait_loaded()
        return await self.answer(self.take(make))

    def ask_now(self, make: Callable[[ReplyTo], RequestT]) -> ResponseT | Awaitable[ResponseT]:
        """The machine's response if it may be sent at once, else an awaitable for it."""
        if self._is_broken:
            return self.ask(make)
        asked = self.take(make)
        return asked.response if asked.response is not None else self.answer(asked)

    def take(self, make: Callable[[ReplyTo], RequestT]) -> PendingRequest[RequestT, ResponseT]:
        """Give a request to the machine now; the result has the response if it may already be sent."""
        reply_to = ReplyTo(next(self._numbers))
        request = make(reply_to)
        asked = self._asked[reply_to] = PendingRequest(request=request)
        self._machine.on_asked(self._group, request)
        self._take(request)
        return asked

    async def answer(self, asked: PendingRequest[RequestT, ResponseT]) -> ResponseT:
        """Wait for the response to a request that :meth:`take` gave to the machine."""
        if asked.response is not None:
            return asked.response
        asked.answer = asyncio.get_running_loop().create_future()
        try:
            return await asked.answer
        finally:
            # Nothing awaits the response once the connection has ended; the request may stay parked in the machine.
            self._asked.pop(asked.request.reply_to, None)

    def tell(self, news: NewsT) -> None:
        if not self._is_broken:
            self._take(news)

    async def run(self) -> None:
        """Run until the group has no state left to keep."""
        while self._is_broken or not self.is_forgettable:
            if self._is_broken:
                await self._reload()
            else:
                await self._rest()
                await self._fire_due()

    @property
    def is_forgettable(self) -> bool:
        """No state and nothing pending: another host can handle the group's next request."""
        return not (self.is_known or self._asked or self._appending or self._waiting_for_load)

    def _replayed(self, records: Sequence[RecordT]) -> GroupT:
        """The group as of its records, before the machine has handled the notifications of the load."""
        group = self._machine.fresh(self.group_id)
        for record in records:
            self._machine.apply(group, record)
        return group

    def _begin(self, records: Sequence[RecordT]) -> None:
        for news in self._machine.loaded(records):
            self.tell(news)

    # -- step, append, perform ----------------------------------------------------------------------------------------

    def _take(self, event: RequestT | NewsT | TimerFired[KeyT]) -> None:
        try:
            self._step(event)
        except Exception:
            logger.exception(
                "Bug in Coterie: group %s is reloaded from its log\n%s", self.group_id, self._trace.story()
            )
            self._break()
        if not self._machine.is_known(self._group):  # not self.is_known: every heartbeat runs this line
            self._wake.set()

    def _step(self, event: RequestT | NewsT | TimerFired[KeyT]) -> None:
        now_ms = self._now_ms()
        self._trace.add(now_ms, self._machine.summary(event))
        output = self._machine.step(self._group, event, now_ms=now_ms)
        self._outbox.put(output)
        if output.records:
            append = self._log.append(self.group_id, output.records, now_ms=now_ms)
            self._appending[append] = len(output.records)
            append.add_done_callback(self._on_appended)
        self._release()

    def _on_appended(self, append: "asyncio.Future[int]") -> None:
        records = self._appending.pop(append, None)
        if records is None or append.cancelled() or self._is_broken:
            return  # of a machine that was dropped after the append
        error = append.exception()
        if error is not None:
            logger.error("Group %s is reloaded from its log: %s", self.group_id, error)
            self._break()
            return
        self._outbox.durable(records)
        self._release()
        if not self.is_known:
            self._wake.set()

    def _release(self) -> None:
        for effect in self._outbox.release():
            self._perform(effect)

    def _perform(self, effect: Effect[ResponseT, KeyT]) -> None:
        match effect:
            case SetTimer(key=key, at_ms=at_ms):
                self._timers.set(key, at_ms)
                if at_ms < self._rests_until_ms:
                    self._wake.set()
            case CancelTimer(key=key):
                self._timers.cancel(key)
            case Reply(to=reply_to, response=response):
                asked = self._asked.pop(reply_to, None)
                if asked is not None:
                    self._machine.on_answered(self._group, asked.request, response)
                    _answer(asked, response)

    # -- time ---------------------------------------------------------------------------------------------------------

    async def _rest(self) -> None:
        """Wait for the next deadline, or for ``_wake``."""
        self._wake.clear()
        due_ms = self._timers.next_at_ms()
        self._rests_until_ms = float("inf") if due_ms is None else due_ms
        try:
            async with asyncio.timeout(None if due_ms is None else (due_ms - self._now_ms()) / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass
        finally:
            self._rests_until_ms = 0

    async def _fire_due(self) -> None:
        """Handle deadlines that passed. If this process stalled, handle requests first: a member whose request arrived
        in time must not time out because the broker read it late."""
        due_ms = self._timers.next_at_ms()
        if due_ms is not None and self._now_ms() - due_ms > _STALL_MS:
            for _ in range(_CATCH_UP_TURNS):
                await asyncio.sleep(_CATCH_UP_S / _CATCH_UP_TURNS)
        while not self._is_broken and (key := self._timers.pop_due(self._now_ms())) is not None:
            self._take(TimerFired(key=key))

    # -- failures -----------------------------------------------------------------------------------------------------

    def _break(self) -> None:
        """Drop the machine and refuse all pending requests; `run` reloads the group."""
        self._is_broken = True
        self._loaded.clear()
        for asked in self._asked.values():
            _answer(asked, self._machine.refused(asked.request, ErrorCode.not_coordinator))
        self._asked.clear()
        self._wake.set()

    async def _wait_loaded(self) -> None:
        self._waiting_for_load += 1
        try:
            while self._is_broken:
                await self._loaded.wait()
        finally:
            self._waiting_for_load -= 1

    async def _reload(self) -> None:
        """Replay the group's log, retrying until that succeeds."""
        while self._is_broken:
            await self._await_appends()
            try:
                records = await self._log.load(self.group_id)
                self._group = self._replayed(records)
                self._timers = Timers()
                self._outbox = Outbox()
                self._is_broken = False
                self._begin(records)
            except WorldError as error:
                logger.error("Group %s cannot be reloaded, retrying: %s", self.group_id, error)
            except Exception:
                logger.exception(
                    "Bug in Coterie: group %s cannot be reloaded, retrying\n%s", self.group_id, self._trace.story()
                )
            if self._is_broken:
                await asyncio.sleep(_RELOAD_DELAY_S)
        self._loaded.set()

    async def _await_appends(self) -> None:
        """Wait until the dropped machine's appends have succeeded or failed; only then the log may be read."""
        appending = list(self._appending)
        self._appending.clear()
        if appending:
            await asyncio.wait(appending)
        for append in appending:
            if not append.cancelled():
                append.exception()  # retrieved, so that asyncio does not log it; the reload's cause is already logged


def _answer(asked: PendingRequest[RequestT, ResponseT], response: ResponseT) -> None:
    asked.response = response
    if asked.answer is not None and not asked.answer.done():
        asked.answer.set_result(response)
