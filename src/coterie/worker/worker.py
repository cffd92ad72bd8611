"""One worker: the event loop of its herder, and the functions that perform the herder's effects.

    inbox ──► step ──► perform: replies, timers, membership    at once
      ▲                      └► chores: logs, tasks, plug-ins  each a separate asyncio task
      └── results, lines, membership events, task events ◄──┘

All decisions are in the herder. The worker starts in this order: the loop runs, so that the REST API can report
"starting"; both logs are read to their ends; the runtime opens and warms up; only then the worker joins its group,
because a worker that is assigned jobs must be able to run them.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum, auto

from coterie.engine.log import Line, Log
from coterie.engine.trace import Trace
from coterie.herder.machine import step
from coterie.herder.messages import (
    CancelTimer,
    Chore,
    ConfigLinesRead,
    Effect,
    Event,
    Exit,
    ForgetConnector,
    Reply,
    RequestArrived,
    RuntimeOpened,
    Say,
    SetTimer,
    ShutdownOrdered,
    StatusLinesRead,
    TimerFired,
)
from coterie.herder.requests import Answer, Problem, Request, RequestId, RequestRefused
from coterie.herder.seams import LeaderClient, Membership, TaskRuntime
from coterie.herder.state import Herder, HerderSettings
from coterie.herder.timers import Timer
from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.ids import Incarnation
from coterie.nouns.membership import Abandon, Install, PlaceHandover, ProvedUntil, Rejoin, Subscribe
from coterie.worker.chores import Chores
from coterie.worker.inbox import Inbox, now_ms
from coterie.worker.stall import StallMeter
from coterie.worker.watchdog import Watchdog

INBOX_MAX = 4096
"""The events that wait for the herder at most. A full inbox blocks the feeders, and requests are refused."""
SIGN_EVERY_MS = 1_000

logger = logging.getLogger(__name__)


class WorkerPhase(StrEnum):
    STARTING = auto()
    RUNNING = auto()
    ENDED = auto()


class _Exited(Exception):
    """Not an error: ends the asyncio task group."""


class Worker:
    """Runs one worker from its start to its end. The shells are passed in; the worker closes only the runtime."""

    def __init__(
        self,
        *,
        settings: HerderSettings,
        config_log: Log,
        status_log: Log,
        membership: Membership,
        runtime: TaskRuntime,
        leader_client: LeaderClient,
        place: PlaceHandover | None = None,
        check_settings: Callable[[], object] = lambda: None,
    ) -> None:
        """``place`` is the group membership that the previous process passed on; ``membership`` then continues it.

        ``check_settings`` raises ConfigError or WorldError when a relaunched process could not start with the current
        settings file; it may block.
        """
        self.settings = settings
        self.life = uuid.uuid4().hex[:12]
        """A random id of this process start. A client that waits for a restart compares it with the earlier id."""
        self.stall = StallMeter()
        self.phase = WorkerPhase.STARTING
        self.stage = "awaiting startup"
        """What the worker does while it starts, in Kafka Connect's wording where Connect has the same step."""
        self.ordered: str | None = None
        """Why the first shutdown was ordered. It is kept here because the order can come when the loop of a worker that
        relaunches has already ended."""
        self._herder = Herder(settings, place)
        self._goes_on = place is not None
        self._check_settings = check_settings
        self._config_log = config_log
        self._status_log = status_log
        self._membership = membership
        self._runtime = runtime
        self._chores = Chores(
            config_log=config_log,
            status_log=status_log,
            membership=membership,
            runtime=runtime,
            leader_client=leader_client,
        )
        self._inbox: Inbox[Event | asyncio.Event, Timer] = Inbox(INBOX_MAX, fired=lambda timer: TimerFired(timer=timer))
        self._trace = Trace()
        self._replies: dict[RequestId, asyncio.Future[Answer]] = {}
        self._requests = 0
        self._shutdown: ShutdownOrdered | None = None
        """A shutdown order that came while the inbox was full."""
        self._exit: Exit | None = None

    # -- for other parts of this process ------------------------------------------------------------------------------

    async def obstacle(self) -> str | None:
        """Why this worker could not start again with its current settings file, or None. The text goes to a client over
        the network: it names the invalid keys without their values, which only the log contains."""
        try:
            await asyncio.to_thread(self._check_settings)
        except ConfigError as error:
            logger.error("This worker could not start again with its current settings: %s", error)
            return f"Its settings are invalid ({', '.join(sorted(error.errors))}); its log contains the errors."
        except WorldError as error:
            return str(error)
        return None

    async def ask(self, request: Request) -> Answer:
        """Send ``request`` to the herder and await the response. When the caller is cancelled, the response is dropped;
        the herder still processes the request."""
        id_ = RequestId(self._requests)
        self._requests += 1
        event = RequestArrived(id=id_, request=request, fresh_incarnation=Incarnation(uuid.uuid4().hex[:12]))
        if self.phase is WorkerPhase.STARTING:
            return RequestRefused(problem=Problem.STARTING, message=f"Worker is still starting up. {self.stage}")
        if self.phase is WorkerPhase.ENDED:
            return RequestRefused(problem=Problem.SHUTTING_DOWN, message="Worker is shutting down")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._replies[id_] = future
        try:
            self._inbox.put_nowait(event)
            return await future
        except asyncio.QueueFull:
            return RequestRefused(problem=Problem.BUSY, message="The worker's inbox is full; retry the request")
        finally:
            self._replies.pop(id_, None)

    @property
    def lease_ends_ms(self) -> int | None:
        """The end of this worker's lease on the monotonic clock, in ms; None when no task may run. Safe on any
        thread."""
        return self._herder.place.lease_ends_ms

    def connector_type(self, config: Mapping[str, str]) -> str:
        """``source``, ``sink`` or ``unknown``, by a connector's config."""
        return self._runtime.connector_type(config)

    def lacks(self) -> Mapping[str, str]:
        """Parts that some connectors need and this worker lacks, by name: what is missing and what to do."""
        return self._runtime.lacks()

    def order_shutdown(self, reason: str) -> None:
        """Stop all tasks, leave the group and end, as on SIGTERM. Safe to call again.

        The caller of :meth:`run` must check ``ordered`` immediately before it relaunches the process after an exit
        with ``restarts``.
        """
        self.ordered = self.ordered or reason
        self._order_shutdown(ShutdownOrdered(reason=reason))

    def _order_shutdown(self, order: ShutdownOrdered) -> None:
        try:
            self._inbox.put_nowait(order)
        except asyncio.QueueFull:
            # The inbox is full, so the loop will run; it takes this order before all events of the inbox.
            self._shutdown = self._shutdown or order

    async def run(self) -> Exit:
        """Start, run and end the worker. Returns why it ended, after its asyncio tasks and its runtime have ended.

        :raises ExceptionGroup: for a bug in Coterie, after the herder's last events have been logged.
        """
        watchdog = Watchdog(
            lease_ends_ms=lambda: self.lease_ends_ms,
            silent_ms=self.stall.silent_ms,
            silent_max_ms=self.settings.lease.silence_ms,
            stop_everything=self._runtime.stop_everything_now,
        )
        try:
            with watchdog:
                await self._take_part()
        except* _Exited:
            pass
        finally:
            self.phase = WorkerPhase.ENDED
            for future in self._replies.values():
                if not future.done():
                    future.set_result(RequestRefused(problem=Problem.SHUTTING_DOWN, message="Worker is shutting down"))
            await self._runtime.close()
            logger.info("The event loop's longest stall was %.0f ms", self.stall.longest_ms)
        assert self._exit is not None
        return self._exit

    async def _take_part(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.stall.watch())
            group.create_task(self._membership.run())
            group.create_task(self._start(group))
            group.create_task(self._watch_herder(group))
            await self._loop(group)

    # -- the start ----------------------------------------------------------------------------------------------------

    async def _start(self, group: asyncio.TaskGroup) -> None:
        self.stage = "initializing and reading to the end of internal topics"
        config_read, status_read = asyncio.Event(), asyncio.Event()
        group.create_task(self._feed(self._config_log, lambda lines: ConfigLinesRead(lines=lines), config_read))
        group.create_task(self._feed(self._status_log, lambda lines: StatusLinesRead(lines=lines), status_read))
        await config_read.wait()
        await status_read.wait()
        if self._goes_on:
            # The worker is in its group already, and the group may send it events before its runtime is open.
            group.create_task(self._feed_membership_events())
        self.stage = "starting the task runtime"
        try:
            await self._runtime.open()
        except (ConfigError, WorldError) as error:
            self._end(Exit(code=1, reason=str(error)))
        self.stage = "ensuring membership in the cluster"
        group.create_task(self._feed_task_events())
        if not self._goes_on:
            group.create_task(self._feed_membership_events())
        await self._inbox.put(RuntimeOpened(wall_ms=time.time_ns() // 1_000_000))
        self.phase = WorkerPhase.RUNNING

    async def _feed(self, log: Log, event_of: Callable[[Sequence[Line]], Event], read: asyncio.Event) -> None:
        try:
            async for lines in log.follow():
                if lines:
                    await self._inbox.put(event_of(lines))
                else:
                    read.set()
        except WorldError as error:
            # The log itself has retried all errors that a retry can repair. A worker that cannot read a log receives no
            # further changes, so it ends.
            self._order_shutdown(ShutdownOrdered(reason=str(error), code=1))

    async def _feed_task_events(self) -> None:
        while True:
            await self._inbox.put(await self._runtime.next_event())

    async def _feed_membership_events(self) -> None:
        while True:
            await self._inbox.put(await self._membership.next_event())

    # -- detecting a stuck herder -------------------------------------------------------------------------------------

    async def _watch_herder(self, group: asyncio.TaskGroup) -> None:
        """Ping the herder's loop repeatedly, through the inbox of all its events.

        If the loop does not process a ping within the rebalance timeout, all tasks are stopped and the worker abandons
        its membership. When the loop runs again, the membership sends it that event, and the worker rejoins.
        """
        while True:
            await asyncio.sleep(SIGN_EVERY_MS / 1000)
            sign = group.create_task(self._sign())
            await asyncio.wait({sign}, timeout=self.settings.rebalance_timeout_ms / 1000)
            if not sign.done():
                patience = f"rebalance.timeout.ms={self.settings.rebalance_timeout_ms}"
                reason = f"the herder did not process an event within {patience}"
                logger.critical("%s: all tasks are stopped, and this worker leaves the group and rejoins", reason)
                await asyncio.to_thread(self._runtime.stop_everything_now)
                self._membership.order(Abandon(reason=reason))
                await sign

    async def _sign(self) -> None:
        given = asyncio.Event()
        await self._inbox.put(given)
        await given.wait()

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def _loop(self, group: asyncio.TaskGroup) -> None:
        while True:
            event = await self._next_event()
            if isinstance(event, asyncio.Event):
                event.set()
                continue
            at_ms = now_ms()
            if not isinstance(event, ProvedUntil | ConfigLinesRead | StatusLinesRead):
                self._trace.add(at_ms, repr(event))
            try:
                output = step(self._herder, event, now_ms=at_ms)
            except Exception:
                logger.critical("Bug in the herder's state machine. Its last events:\n%s", self._trace.story())
                raise
            for effect in output.effects:
                self._perform(effect, group)
            # A filled inbox returns its events without yielding to the event loop. Without this sleep, heartbeats and
            # requests would wait until the inbox is empty: for seconds when many tasks have started at once.
            await asyncio.sleep(0)

    async def _next_event(self) -> Event | asyncio.Event:
        if (order := self._shutdown) is not None:
            self._shutdown = None
            return order
        return await self._inbox.next()

    def _end(self, exit_: Exit) -> None:
        self._exit = exit_
        raise _Exited

    # -- performing effects -------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect, group: asyncio.TaskGroup) -> None:
        match effect:
            case Reply(id=id_, answer=answer):
                future = self._replies.get(id_)
                if future is not None and not future.done():
                    future.set_result(answer)
            case SetTimer(timer=timer, at_ms=at_ms):
                self._inbox.timers.set(timer, at_ms)
            case CancelTimer(timer=timer):
                self._inbox.timers.cancel(timer)
            case Say(text=text, is_error=is_error, warns=warns):
                logger.log(logging.ERROR if is_error else logging.WARNING if warns else logging.INFO, "%s", text)
            case ForgetConnector(connector=connector):
                self._runtime.forget(connector)
            case Subscribe() | Rejoin() | Install() | Abandon():
                self._membership.order(effect)
            case Exit():
                self._end(effect)
            case _:
                group.create_task(self._do(effect))

    async def _do(self, chore: Chore) -> None:
        await self._inbox.put(await self._chores.result(chore))
