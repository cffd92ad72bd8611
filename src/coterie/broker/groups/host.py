"""Runs one group's machine. The machine steps each request when the request arrives. One asyncio task of the host
handles deadlines and reloads, and ends when the group has no state left. The host is independent of the group protocol:
it receives the machine and the log as arguments.

A response is sent only when the records of its step, and of all earlier steps, are durable. Only the sender of the
request waits until then: the machine continues with the next event, and the outbox holds the effects until the records
are durable. If a write to the log fails, or the machine raises an exception (a bug in Coterie), every pending request
is refused with NOT_COORDINATOR, the machine's state is dropped, and the group is reloaded from its log. New requests
wait for the reload. After the second of several failures that follow one another closely, a growing pause precedes each
reload: a bug that recurs after each reload must not become a busy loop.

Most requests are heartbeats, which write no record: they get their response without a queue, an asyncio task or a
future.

What takes time, such as the computation of a target assignment, is a *chore* (`RunChore`): an asyncio task of the host
that ends with a notification to the machine.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from coterie.broker.groups.log import GroupLog
from coterie.broker.groups.recent_failures import RecentFailures
from coterie.engine.output import Outbox, StepOutput
from coterie.engine.timers import Timers
from coterie.engine.trace import Trace
from coterie.groups.effects import CancelTimer, Effect, Reply, SetTimer, TimerFired
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GroupId, ReplyTo
from coterie.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

_STALL_MS = 200
"""A deadline that is handled later than this after its time shows that this process has stalled: the requests of
members may have arrived in time without being read."""
_CATCH_UP_S = 0.1
"""After a stall, how long requests are handled before deadlines are."""
_CATCH_UP_TURNS = 5
"""The number of pauses into which ``_CATCH_UP_S`` is divided: a request needs a few iterations of the event loop from
its socket to its machine."""


class HasReplyTo(Protocol):
    """A request to a group's machine."""

    @property
    def reply_to(self) -> ReplyTo:
        """The id with which the machine's reply to this request is addressed."""
        ...


GroupT = TypeVar("GroupT")
RequestT = TypeVar("RequestT", bound=HasReplyTo)
InputRequestT = TypeVar("InputRequestT", contravariant=True)
NotificationT = TypeVar("NotificationT")
RecordT = TypeVar("RecordT")
ResponseT = TypeVar("ResponseT")
KeyT = TypeVar("KeyT", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChore(Generic[NotificationT]):
    """An effect: await ``run()`` while the machine continues, then let the machine handle its result. The chore is
    cancelled if the machine's state is dropped or the group ends before the result."""

    run: Callable[[], Coroutine[Any, Any, NotificationT]]
    """Must not raise an exception: a failure must be returned as a notification."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observe:
    """An effect: call ``observe``, which logs or counts what the step has done. As an effect, it follows the step's
    records: a step whose records could not be written has done nothing."""

    observe: Callable[[], None]


class GroupMachine(Protocol[GroupT, InputRequestT, NotificationT, RecordT, ResponseT, KeyT]):
    """The coordinator of one kind of groups (classic or connect), as functions on a group's state. Its events are
    requests, deadlines that have passed (`TimerFired`), and notifications: events without a response."""

    @property
    def refusal_code_or_wait_while_loading(self) -> ErrorCode | None:
        """The error code with which requests are refused while the group is reloaded; None: requests wait for the end
        of the reload."""
        ...

    def new_group(self, group_id: GroupId, /) -> GroupT:
        """A new group without state."""
        ...

    def apply(self, group: GroupT, record: RecordT, /) -> None:
        """Change the group's state by one of its records."""
        ...

    def step(
        self, group: GroupT, event: InputRequestT | NotificationT | TimerFired[KeyT], /, *, now_ms: int
    ) -> StepOutput[RecordT, Effect[ResponseT, KeyT] | RunChore[NotificationT] | Observe]:
        """Handle one event: change the group's state, and return the records to write and the effects, which must wait
        until the records are durable."""
        ...

    def notifications_after_load(self, records: Sequence[RecordT], /) -> Sequence[NotificationT]:
        """The notifications that the machine must handle after the group's ``records`` have been applied."""
        ...

    def refusal_response(self, request: InputRequestT, error: ErrorCode, /) -> ResponseT:
        """The response that refuses ``request`` with ``error``."""
        ...

    def may_create_group(self, request: InputRequestT, /) -> bool:
        """Whether a request of this kind creates its group if the group does not exist. Only the request is
        examined."""
        ...

    def has_state(self, group: GroupT, /) -> bool:
        """Whether the group exists: whether it has any state that must be kept."""
        ...

    def reserves_group_id(self, group: GroupT, /) -> bool:
        """Whether the group reserves its id, so that no group of another kind may use the id. A group whose only state
        are offsets or configs does not."""
        ...

    def event_summary(self, event: InputRequestT | NotificationT | TimerFired[KeyT], /) -> object:
        """The summary of an event for the trace: small, and without the metadata, assignments and offsets of
        members."""
        ...

    def observe_request(self, group: GroupT, request: InputRequestT, /) -> None:
        """Called before the step of each request, for statistics; must not change the group's state."""
        ...

    def observe_response(self, group: GroupT, request: InputRequestT, response: ResponseT, /) -> None:
        """Called before the response to a request is sent, for statistics; must not change the group's state."""
        ...


@dataclass(slots=True, kw_only=True)
class PendingRequest(Generic[RequestT, ResponseT]):
    """A request that the machine has received, and its response as soon as that may be sent."""

    request: RequestT
    response: ResponseT | None = None
    """None until the response may be sent."""
    response_future: "asyncio.Future[ResponseT] | None" = None
    """Set while a caller awaits the response."""


class GroupHost(Generic[GroupT, RequestT, NotificationT, RecordT, ResponseT, KeyT]):
    """Runs the machine of one group: holds the group's state, its timers, and its pending requests. `run` ends when the
    host is removable: without state and without pending work. While the group is reloaded from its log, requests wait
    or are refused (``refusal_code_or_wait_while_loading``), and notifications are dropped: the reload reads the log
    after them."""

    def __init__(
        self,
        group_id: GroupId,
        machine: GroupMachine[GroupT, RequestT, NotificationT, RecordT, ResponseT, KeyT],
        records: Sequence[RecordT],
        log: GroupLog[RecordT],
        now_ms: Callable[[], int],
    ) -> None:
        """``records`` are the group's records in ``log``, empty for a new group. :meth:`run` must be started, unless
        the host is removable after its first request."""
        self.group_id = group_id
        self._machine = machine
        self._group = self._replay_records(records)
        self._log = log
        self._now_ms = now_ms
        self._outbox: Outbox[Effect[ResponseT, KeyT] | RunChore[NotificationT] | Observe] = Outbox()
        self._pending_appends: dict[asyncio.Future[int], int] = {}
        """The number of records of each append that is not durable yet."""
        self._timers: Timers[KeyT] = Timers()
        self._trace = Trace()
        self._numbers = count()
        """Gives each request of this group its reply id."""
        self._pending_requests: dict[ReplyTo, PendingRequest[RequestT, ResponseT]] = {}
        self._recent_failures = RecentFailures()
        self._needs_reload = False
        """Whether the state is invalid after a failure; no event may be handled until the group is reloaded."""
        self._loaded = asyncio.Event()
        """Not set from a failure to the end of the reload."""
        self._loaded.set()
        self._has_missed_notification = False
        """Whether a notification came since the reload began to read the log. What was read may lack the records that
        the notification is about, so the log is read again."""
        self._load_waiter_count = 0
        """The number of requests that wait for the reload."""
        self._wake_event = asyncio.Event()
        """Set to let `run` check the group now instead of waiting for the next deadline."""
        self._waiting_until_ms: float = 0
        """The deadline for which `run` waits now; a timer with an earlier deadline sets ``_wake_event``."""
        self._new_chores: list[RunChore[NotificationT]] = []
        """The chores that `run` must start."""
        self._chores: set[asyncio.Task[None]] = set()
        """The chores that run."""
        self._handle_load_notifications(records)

    @property
    def has_state(self) -> bool:
        """Whether the group exists: whether it has any state that must be kept."""
        return self._machine.has_state(self._group)

    @property
    def reserves_group_id(self) -> bool:
        """Whether the group reserves its id, so that no group of another kind may use the id."""
        return self._machine.reserves_group_id(self._group)

    def inspect_group(self, look: Callable[[GroupT], T]) -> T:
        """The result of ``look`` for the group's state, which ``look`` must not change. The latest changes of the state
        are possibly not durable yet. After a failure, ``look`` gets the state from before the failure, also with
        changes that were not written, until the group's records are read from the log."""
        return look(self._group)

    async def ask(self, make_request: Callable[[ReplyTo], RequestT]) -> ResponseT:
        """The machine's response to the request that ``make_request`` builds from a new reply id. Returns when the
        response may be sent. If the group is being reloaded, waits for the end of the reload first, or refuses the
        request with the machine's ``refusal_code_or_wait_while_loading``."""
        if self._needs_reload:
            if self._machine.refusal_code_or_wait_while_loading is not None:
                return self._machine.refusal_response(
                    make_request(ReplyTo(0)), self._machine.refusal_code_or_wait_while_loading
                )
            await self.wait_until_loaded()
        return await self.wait_response(self.handle_request_now(make_request))

    def ask_nowait(self, make_request: Callable[[ReplyTo], RequestT]) -> ResponseT | Awaitable[ResponseT]:
        """Like :meth:`ask`, but returns the response itself if it may be sent at once, else an awaitable for it."""
        if self._needs_reload:
            return self.ask(make_request)
        pending = self.handle_request_now(make_request)
        return pending.response if pending.response is not None else self.wait_response(pending)

    def handle_request_now(self, make_request: Callable[[ReplyTo], RequestT]) -> PendingRequest[RequestT, ResponseT]:
        """Let the machine handle the request that ``make_request`` builds from a new reply id, now. The returned object
        has the response if the response may already be sent. Must not be called while the group needs a reload."""
        reply_to = ReplyTo(next(self._numbers))
        request = make_request(reply_to)
        pending = self._pending_requests[reply_to] = PendingRequest(request=request)
        self._machine.observe_request(self._group, request)
        self._handle_event(request)
        return pending

    async def wait_response(self, pending: PendingRequest[RequestT, ResponseT]) -> ResponseT:
        """Wait until the response to ``pending``, which :meth:`handle_request_now` returned, may be sent; return the
        response."""
        if pending.response is not None:
            return pending.response
        pending.response_future = asyncio.get_running_loop().create_future()
        try:
            return await pending.response_future
        finally:
            # Nothing awaits the response once the connection has ended; the request may stay parked in the machine.
            self._pending_requests.pop(pending.request.reply_to, None)

    def notify(self, notification: NotificationT) -> None:
        """Let the machine handle ``notification`` now. While the group needs a reload, ``notification`` is dropped, and
        the reload reads the log once more instead: the log's records contain the cause of the notification, or the
        machine gets the same notification from ``notifications_after_load``."""
        if self._needs_reload:
            self._has_missed_notification = True
        else:
            self._handle_event(notification)

    def refuse_pending_and_start_reload(self) -> None:
        """Drop the machine's state, which may differ from the log, and refuse all pending requests with
        NOT_COORDINATOR; then :meth:`run` reloads the group. If the group is being reloaded already, the reload reads
        the log once more."""
        if self._needs_reload:
            self._has_missed_notification = True
        else:
            self._invalidate_and_refuse_pending()

    async def run(self) -> None:
        """Handle deadlines, run chores, and reload the group after failures, until the host is removable."""
        async with asyncio.TaskGroup() as tasks:
            while self._needs_reload or not self.is_removable:
                if self._needs_reload:
                    await self._reload_group_until_success()
                else:
                    self._start_chores_or_cancel_without_state(tasks)
                    await self._wait_deadline_or_wake()
                    await self._catch_up_and_fire_due_timers()

    @property
    def is_removable(self) -> bool:
        """Whether the group has no state, and no request, append or chore is pending. Then this host may be dropped: a
        new host can handle the group's next request."""
        is_pending = self._pending_requests or self._pending_appends or self._load_waiter_count or self._chores
        return not (self.has_state or is_pending)

    def refuse_pending_requests(self, error: ErrorCode) -> None:
        """Refuse all pending requests with ``error``."""
        for asked in self._pending_requests.values():
            _set_response(asked, self._machine.refusal_response(asked.request, error))
        self._pending_requests.clear()

    def _replay_records(self, records: Sequence[RecordT]) -> GroupT:
        """The group's state after all ``records`` are applied. The machine has not handled the notifications of
        ``notifications_after_load`` yet."""
        group = self._machine.new_group(self.group_id)
        for record in records:
            self._machine.apply(group, record)
        return group

    def _handle_load_notifications(self, records: Sequence[RecordT]) -> None:
        """Let the machine handle the notifications that ``notifications_after_load`` returns for ``records``, which
        were just loaded."""
        for news in self._machine.notifications_after_load(records):
            self.notify(news)

    # -- step, append, perform ----------------------------------------------------------------------------------------

    def _handle_event(self, event: RequestT | NotificationT | TimerFired[KeyT]) -> None:
        """Step the machine with ``event``; an exception is a bug in Coterie (:meth:`_invalidate_after_bug`)."""
        try:
            self._step_machine(event)
        except Exception as bug:  # noqa: BLE001 a bug in Coterie: it is logged, and the group is reloaded
            self._invalidate_after_bug(bug)
        if not self._machine.has_state(self._group):  # not self.has_state: every heartbeat runs this line
            self._wake_event.set()

    def _invalidate_after_bug(self, bug: Exception) -> None:
        """Log ``bug``, an exception of a step or of its effects, and refuse all pending requests with NOT_COORDINATOR;
        then `run` reloads the group."""
        self._count_and_log_failure(
            bug,
            "Bug in Coterie: the coordinator of group %s failed%s; its pending requests are refused, and the group"
            " is reloaded from the broker's log. Its last events:\n%s",
            self._trace.recent_text(),
            stack_of=bug,
        )
        self._invalidate_and_refuse_pending()

    def _step_machine(self, event: RequestT | NotificationT | TimerFired[KeyT]) -> None:
        """Step the machine with ``event``, append the records, and perform the effects that wait for no record."""
        now_ms = self._now_ms()
        self._trace.add(now_ms, self._machine.event_summary(event))
        output = self._machine.step(self._group, event, now_ms=now_ms)
        self._outbox.put(output)
        if output.records:
            append = self._log.append(self.group_id, output.records, now_ms=now_ms)
            self._pending_appends[append] = len(output.records)
            append.add_done_callback(self._on_append_done)
        self._perform_durable_effects()

    def _on_append_done(self, append: "asyncio.Future[int]") -> None:
        """Called when an append has succeeded or failed. After a success, perform the effects that waited for it. After
        a failure, drop the machine's state and refuse all pending requests; then `run` reloads the group. Does nothing
        if the state was dropped since the append was queued."""
        records = self._pending_appends.pop(append, None)
        if records is None or append.cancelled() or self._needs_reload:
            return  # of a machine that was dropped after the append
        error = append.exception()
        if error is not None:
            self._count_and_log_failure(
                error,
                "The records of group %s could not be written%s, so its pending requests are refused, and the group is"
                " reloaded from the broker's log: %s",
                str(error),
            )
            self._invalidate_and_refuse_pending()
            return
        self._outbox.mark_durable(records)
        try:
            self._perform_durable_effects()
        except Exception as bug:  # noqa: BLE001 a bug in Coterie: it is logged, and the group is reloaded
            self._invalidate_after_bug(bug)
        if not self.has_state:
            self._wake_event.set()

    def _perform_durable_effects(self) -> None:
        """Perform the effects whose records are durable."""
        for effect in self._outbox.pop_durable_effects():
            self._perform_effect(effect)

    def _perform_effect(self, effect: Effect[ResponseT, KeyT] | RunChore[NotificationT] | Observe) -> None:
        """Set or cancel a timer, pass a response to its pending request, let `run` start a chore, or call the
        function of an `Observe`."""
        match effect:
            case SetTimer(key=key, at_ms=at_ms):
                self._timers.set(key, at_ms)
                if at_ms < self._waiting_until_ms:
                    self._wake_event.set()
            case CancelTimer(key=key):
                self._timers.cancel(key)
            case Reply(to=reply_to, response=response):
                asked = self._pending_requests.get(reply_to)
                if asked is not None:
                    # If this call raises an exception, the request is refused with the other pending requests.
                    self._machine.observe_response(self._group, asked.request, response)
                    del self._pending_requests[reply_to]
                    _set_response(asked, response)
            case RunChore():
                self._new_chores.append(effect)
                self._wake_event.set()
            case Observe(observe=observe):
                observe()

    # -- chores -------------------------------------------------------------------------------------------------------

    def _start_chores_or_cancel_without_state(self, tasks: asyncio.TaskGroup) -> None:
        """Start the new chores; if the group has no state any more, cancel all chores instead."""
        if not self.has_state:
            self._cancel_chores()
        for chore in self._new_chores:
            task = tasks.create_task(self._run_chore(chore), name=f"chore of group {self.group_id}")
            self._chores.add(task)
            task.add_done_callback(self._on_chore_ended)
        self._new_chores.clear()

    async def _run_chore(self, chore: RunChore[NotificationT]) -> None:
        """Await the chore, and let the machine handle its result."""
        self.notify(await chore.run())

    def _on_chore_ended(self, task: "asyncio.Task[None]") -> None:
        """Called when the chore of ``task`` has ended: drop the task, and wake `run`, which may have to end, too."""
        self._chores.discard(task)
        self._wake_event.set()

    def _cancel_chores(self) -> None:
        """Cancel all chores, and drop those that have not begun."""
        self._new_chores.clear()
        for task in self._chores:
            task.cancel()

    # -- time ---------------------------------------------------------------------------------------------------------

    async def _wait_deadline_or_wake(self) -> None:
        """Wait until the next deadline of a timer, or until ``_wake_event`` is set."""
        self._wake_event.clear()
        due_ms = self._timers.next_deadline_ms()
        self._waiting_until_ms = float("inf") if due_ms is None else due_ms
        try:
            async with asyncio.timeout(None if due_ms is None else (due_ms - self._now_ms()) / 1000):
                await self._wake_event.wait()
        except TimeoutError:
            pass
        finally:
            self._waiting_until_ms = 0

    async def _catch_up_and_fire_due_timers(self) -> None:
        """Let the machine handle the deadlines that have passed. If this process has stalled, requests are handled
        first, for ``_CATCH_UP_S``: a member whose request arrived in time must not time out because the broker reads
        the request late."""
        due_ms = self._timers.next_deadline_ms()
        if due_ms is not None and self._now_ms() - due_ms > _STALL_MS:
            for _ in range(_CATCH_UP_TURNS):
                await asyncio.sleep(_CATCH_UP_S / _CATCH_UP_TURNS)
        while not self._needs_reload and (key := self._timers.pop_due(self._now_ms())) is not None:
            self._handle_event(TimerFired(key=key))

    # -- failures -----------------------------------------------------------------------------------------------------

    def _count_and_log_failure(
        self, error: BaseException, message: str, detail: str, *, stack_of: BaseException | None = None
    ) -> None:
        """Count the failure ``error``, which delays the next reload if failures follow one another closely, and log
        ``message`` unless one of the same kind was logged less than a minute ago. ``message`` has placeholders for the
        group id, for the number of failures that were not logged, and for ``detail``."""
        suppressed = self._recent_failures.add(error, message, now_s=asyncio.get_running_loop().time())
        if suppressed is None:
            return
        more = f" ({suppressed} more times since the last such message)" if suppressed else ""
        logger.error(message, self.group_id, more, detail, exc_info=stack_of)

    def _invalidate_and_refuse_pending(self) -> None:
        """Make the group's state invalid, cancel all chores, and refuse all pending requests with NOT_COORDINATOR; then
        `run` reloads the group. Called after a failure, and by :meth:`refuse_pending_and_start_reload`."""
        self._needs_reload = True
        self._loaded.clear()
        self.refuse_pending_requests(ErrorCode.not_coordinator)
        self._cancel_chores()
        self._wake_event.set()

    async def wait_until_loaded(self) -> None:
        """Return at once, or while the group is being reloaded after a failure, at the end of the reload."""
        self._load_waiter_count += 1
        try:
            while self._needs_reload:
                await self._loaded.wait()
        finally:
            self._load_waiter_count -= 1

    async def _reload_group_until_success(self) -> None:
        """Load the group from the log, and retry until that succeeds. Before each attempt, wait for the appends from
        before the failure.

        After several close failures there is a pause (`RecentFailures`). The pause comes after the records are read, so
        that during the pause :meth:`inspect_group` sees the state that is in the log, and not the state from before the
        failure, which may have changes that were not written.
        """
        while self._needs_reload:
            await self._await_appends()
            try:
                self._has_missed_notification = False
                records = await self._log.load(self.group_id)
                self._group = self._replay_records(records)
                await asyncio.sleep(self._recent_failures.take_pause_s())
                if self._has_missed_notification:
                    continue
                self._timers = Timers()
                self._outbox = Outbox()
                self._needs_reload = False
                self._handle_load_notifications(records)
            except WorldError as error:
                self._count_and_log_failure(
                    error,
                    "Group %s could not be reloaded from the broker's log%s; the broker serves no request of this "
                    "group until a retry succeeds: %s",
                    str(error),
                )
            except Exception as bug:  # noqa: BLE001 a bug in Coterie: it is logged, and the load is tried again
                self._needs_reload = True
                self._count_and_log_failure(
                    bug,
                    "Bug in Coterie: group %s could not be reloaded%s; the broker serves no request of this group "
                    "until a retry succeeds. The group's last events before the reload:\n%s",
                    self._trace.recent_text(),
                    stack_of=bug,
                )
            if self._needs_reload:
                await asyncio.sleep(self._recent_failures.take_pause_s())
        self._loaded.set()

    async def _await_appends(self) -> None:
        """Wait until all pending appends have succeeded or failed. Called after a failure of the group, before its
        records are read again: only then does the log contain all records that were written before the failure. Raises
        no exception of an append."""
        appending = list(self._pending_appends)
        self._pending_appends.clear()
        if appending:
            await asyncio.wait(appending)
        for append in appending:
            if not append.cancelled():
                append.exception()  # retrieved, so that asyncio does not log it; the reload's cause is already logged


def _set_response(pending: PendingRequest[RequestT, ResponseT], response: ResponseT) -> None:
    """Store the response in ``pending``, and pass it to a caller that awaits it."""
    pending.response = response
    if pending.response_future is not None and not pending.response_future.done():
        pending.response_future.set_result(response)
