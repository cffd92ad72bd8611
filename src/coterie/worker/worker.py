"""One worker: the loop of its herder, and the functions that perform the herder's effects.

    inbox ──► step ──► perform: replies, timers, membership    at once
      ▲                      └► chores: logs, tasks, plug-ins  each a separate asyncio task
      └── results, lines, membership events, task events ◄──┘

All decisions are in the herder. The worker starts in this order: the herder's loop; both logs (config and status) are
read to their ends, while the runtime opens and warms up; only then the worker joins its group, because a worker that is
assigned jobs must be able to run them. A relaunched worker that continues its membership is in the group from the
start. Meanwhile the REST API reports "starting".
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum, auto
from types import MappingProxyType

from coterie.engine.log import LeaderLog, Log, LogProgress
from coterie.engine.trace import Trace, brief_text
from coterie.herder.machine import step
from coterie.herder.messages import (
    AbortTaskStart,
    CancelTimer,
    Chore,
    ConfigLinesRead,
    Effect,
    Event,
    Exit,
    NotifyRebalanceListeners,
    Reply,
    RequestArrived,
    RuntimeOpened,
    SetLoggerLevel,
    SetTimer,
    ShutdownOrdered,
    StatusLinesRead,
    StopConnector,
    TimerFired,
    WriteLogMessage,
)
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.kinds import Answer, Request
from coterie.herder.requests.refusals import Problem, RequestRefused
from coterie.herder.requests.writes import Write, WriteAttempt
from coterie.herder.seams import LeaderClient, Membership, RebalanceListeners, TaskRuntime
from coterie.herder.state import Herder, HerderSettings
from coterie.herder.timers import Timer
from coterie.nouns.errors import ConfigError, WorldError
from coterie.nouns.ids import Incarnation
from coterie.nouns.logger_levels import LoggerLevel
from coterie.nouns.membership import (
    ConfirmLeadership,
    Handover,
    InstallTarget,
    LeaseRenewed,
    LeaveAndRejoin,
    Rejoin,
    RequestGroupDescription,
    SendAssignments,
    SetConfiguredJobs,
    SetWorkerState,
    SuspendMembership,
)
from coterie.nouns.target_assignments import AssignFunction
from coterie.worker.chores import ChorePerformer
from coterie.worker.inbox import Inbox, now_ms
from coterie.worker.logger_levels import LoggerLevelControl
from coterie.worker.stall import StallMeter
from coterie.worker.watchdog import Watchdog

INBOX_EVENTS_MAX = 4096
"""The most events that wait for the herder. While the inbox is full, log lines, task events and membership events are
not read, and requests are refused."""
HERDER_PING_INTERVAL_MS = 1_000
"""The time from the herder's response to a ping until the next ping."""

logger = logging.getLogger(__name__)


class WorkerPhase(StrEnum):
    """The phases of a worker. The docstring of a phase says what the worker does with requests in this phase."""

    STARTING = auto()
    """Requests are refused, except writes, which wait: the logs are not read to their ends, or the runtime is not
    open."""
    RUNNING = auto()
    """Requests go to the herder, also while the worker stops its tasks to end."""
    ENDED = auto()
    """Requests are refused: the herder's loop has ended."""


class _Exited(Exception):
    """Not an error: the exception that ends the asyncio tasks of :meth:`Worker.run`, so that it returns."""


async def close_no_intake() -> None:
    """Does nothing: the ``close_intake`` of a worker that receives no requests from other processes."""


class Worker:
    """Runs one worker from its start to its end. The shells (logs, membership, runtime, leader client) are passed in;
    of these the worker closes only the runtime."""

    def __init__(
        self,
        *,
        settings: HerderSettings,
        config_log: Log,
        leader_log: LeaderLog,
        status_log: Log,
        membership: Membership,
        runtime: TaskRuntime,
        leader_client: LeaderClient,
        handover: Handover | None = None,
        check_settings: Callable[[], object] = lambda: None,
        assignors: Mapping[str, AssignFunction] = MappingProxyType({}),
        listeners: RebalanceListeners | None = None,
        close_intake: Callable[[], Awaitable[None]] = close_no_intake,
    ) -> None:
        """``handover`` is the group membership of the previous process of this worker, which ``membership`` continues;
        None for a worker that is not in the group.

        ``check_settings`` reads the settings file again, and raises ConfigError or WorldError when a new process of
        this worker could not start with the file. It may block: it is called on a thread.

        ``assignors`` are the assignors that this worker offers to a connect group, by name. ``listeners`` are notified
        of this worker's rebalances in a connect group; None: there are no listeners.

        ``close_intake`` lets this worker receive no more requests from other processes, and returns when the requests
        that it has received are answered.
        """
        self.settings = settings
        self.boot_id = uuid.uuid4().hex[:12]
        """A random id of this process start. A client that waits for a restart compares it with the earlier id."""
        self.started_at_ms = time.time_ns() // 1_000_000
        """When this worker was created, in milliseconds since the Unix epoch."""
        self.stall = StallMeter()
        """Measures the stalls of this worker's event loop."""
        self.logger_levels = LoggerLevelControl(runtime)
        self.phase = WorkerPhase.STARTING
        self.startup_step = "awaiting startup"
        """What the worker does while it starts, in Kafka Connect's wording where Connect has the same step."""
        self.shutdown_reason: str | None = None
        """Why the first shutdown was ordered. It is kept here because the order can come when the loop of a worker that
        relaunches has already ended."""
        self._herder = Herder(settings, handover)
        self._has_handover = handover is not None
        self._check_settings = check_settings
        self._config_log = config_log
        self._status_log = status_log
        self._membership = membership
        self._runtime = runtime
        self._listeners = listeners
        self._chores = ChorePerformer(
            config_log=config_log,
            leader_log=leader_log,
            status_log=status_log,
            membership=membership,
            runtime=runtime,
            leader_client=leader_client,
            assignors=assignors,
            close_intake=close_intake,
        )
        self._inbox: Inbox[Event | asyncio.Event, Timer] = Inbox(
            INBOX_EVENTS_MAX, event_of_timer=lambda timer: TimerFired(timer=timer)
        )
        self._trace = Trace()
        self._replies: dict[RequestId, asyncio.Future[Answer]] = {}
        """The futures for the responses that :meth:`ask` awaits."""
        self._requests = 0
        """The number of requests so far, which gives each request its id."""
        self._shutdown: ShutdownOrdered | None = None
        """A shutdown order that came while the inbox was full."""
        self._exit: Exit | None = None
        """What :meth:`run` returns; None until the worker ends."""

    # -- for other parts of this process ------------------------------------------------------------------------------

    async def settings_error(self) -> str | None:
        """Check the present settings file: return why this worker could not start again with it, or None if it could.

        The reason can be that the file is unreadable or invalid, or that the address cannot be bound. The text is sent
        to a client over the network: for invalid settings it contains only the keys, and the log contains the values.
        Texts of other errors are sent unchanged, and not logged.
        """
        try:
            await asyncio.to_thread(self._check_settings)
        except ConfigError as error:
            logger.error(
                "This worker has received a request to restart a worker, and its own settings file is invalid. If the "
                "request is to restart this worker, this worker refuses it and keeps its former settings. Correct the "
                "file, then request the restart again: %s",
                error,
            )
            keys = ", ".join(sorted(error.errors))
            return f"The worker's settings are invalid ({keys}); the worker's log contains the errors."
        except WorldError as error:
            return str(error)
        return None

    async def ask(self, request: Request, attempt: WriteAttempt | None = None) -> Answer:
        """Send ``request`` to the herder and await the response. When the caller is cancelled, the response is dropped;
        the herder still processes the request. ``attempt`` becomes :attr:`RequestArrived.attempt`, whose docstring
        lists the requests that have one; None for all other requests.

        The response is a RequestRefused, without the herder, if this worker has ended or its inbox is full. While this
        worker starts, a write waits until the worker has started, and every other request is refused. A request that
        has no response when this worker ends is refused, too.
        """
        id_ = RequestId(self._requests)
        self._requests += 1
        event = RequestArrived(
            id=id_, request=request, fresh_incarnation=Incarnation(uuid.uuid4().hex[:12]), attempt=attempt
        )
        if self.phase is WorkerPhase.STARTING and not isinstance(request, Write):
            return RequestRefused(
                problem=Problem.STARTING, message=f"Worker is still starting up. It is {self.startup_step}"
            )
        if self.phase is WorkerPhase.ENDED:
            return RequestRefused(problem=Problem.SHUTTING_DOWN, message="Worker is shutting down")
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._replies[id_] = future
        try:
            self._inbox.put_nowait(event)
            return await future
        except asyncio.QueueFull:
            return RequestRefused(
                problem=Problem.BUSY, message="This worker has too many events to process; retry the request"
            )
        finally:
            self._replies.pop(id_, None)

    @property
    def lease_ends_ms(self) -> int | None:
        """The end of this worker's lease on the monotonic clock, in ms: until then the group surely counts this worker
        as a member. None when the membership is lost, so no task may run, and before the first heartbeat of this
        process is answered. Safe on any thread."""
        return self._herder.place.lease_ends_ms

    def connector_type(self, config: Mapping[str, str]) -> str:
        """The type of the connector with this config: ``source``, ``sink`` or ``unknown``."""
        return self._runtime.connector_type(config)

    def missing_jars(self) -> Mapping[str, str]:
        """The packages of jars, of those that Coterie knows, that this worker's Spark does not have, whether or not a
        configured connector needs them: by the package's name, a message that states what is missing and what to do.
        Empty before the runtime has opened."""
        return self._runtime.missing_jars()

    def order_shutdown(self, reason: str) -> None:
        """Order this worker to stop all tasks, leave the group and end, as on SIGTERM; returns at once. A call after
        the first changes nothing. Called on the event loop's thread.

        The order may come too late, when the herder's loop has ended. Therefore a caller of :meth:`run` that has
        received an Exit with ``relaunches`` must check ``shutdown_reason`` immediately before it relaunches the
        process.
        """
        self.shutdown_reason = self.shutdown_reason or reason
        self._order_shutdown(ShutdownOrdered(reason=reason))

    def _order_shutdown(self, order: ShutdownOrdered) -> None:
        """Give ``order`` to the herder, also when the inbox is full."""
        try:
            self._inbox.put_nowait(order)
        except asyncio.QueueFull:
            # The inbox is full, so the loop will run; it takes this order before all events of the inbox.
            self._shutdown = self._shutdown or order

    async def run(self) -> Exit:
        """Start the worker, run it, and return why it ended, when its asyncio tasks and its runtime have ended.

        :raises ExceptionGroup: for a bug in Coterie. If the bug is in the herder, the herder's last events are logged
            first.
        """
        watchdog = Watchdog(
            lease_ends_ms=lambda: self.lease_ends_ms,
            stalled_ms=self.stall.stalled_ms,
            stall_threshold_ms=lambda: self._herder.lease_durations.stall_threshold_ms,
            halt_all_tasks=self._runtime.halt_all_tasks,
        )
        try:
            with watchdog:
                await self._run_asyncio_tasks()
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

    async def _run_asyncio_tasks(self) -> None:
        """Run all asyncio tasks of the worker. Always ends with an exception: :class:`_Exited`, or that of a bug."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.stall.measure_stalls())
            group.create_task(self._membership.run())
            group.create_task(self._read_logs_and_open_runtime(group))
            group.create_task(self._leave_group_if_herder_stuck(group))
            await self._run_herder_loop(group)

    # -- the start ----------------------------------------------------------------------------------------------------

    async def _read_logs_and_open_runtime(self, group: asyncio.TaskGroup) -> None:
        """Read the logs to their ends and open the runtime, both at the same time, then give the herder RuntimeOpened,
        after which the herder may join the group. A runtime that cannot open ends the worker with exit code 1.

        Also starts the asyncio tasks that give the herder the further lines of the logs and the events of the runtime
        and of the membership. A worker that continues a membership receives its events as soon as the logs are read.
        """
        self.startup_step = "initializing and reading to the end of internal topics"
        opening = group.create_task(self._open_runtime_or_exit_run())
        config_read, status_read = asyncio.Event(), asyncio.Event()
        group.create_task(
            self._feed_log_lines_or_shut_down(
                self._config_log,
                lambda progress: ConfigLinesRead(
                    lines=progress.records,
                    position=progress.position,
                    completes_first_read=progress.completes_first_read,
                ),
                config_read,
            )
        )
        group.create_task(
            self._feed_log_lines_or_shut_down(
                self._status_log, lambda progress: StatusLinesRead(lines=progress.records), status_read
            )
        )
        await config_read.wait()
        await status_read.wait()
        if self._has_handover:
            # The worker is in its group already, and the group may send it events before its runtime is open.
            group.create_task(self._feed_membership_events())
        self.startup_step = "starting the task runtime"
        await opening
        self.startup_step = "ensuring membership in the cluster"
        group.create_task(self._feed_task_events())
        if not self._has_handover:
            group.create_task(self._feed_membership_events())
        await self._inbox.put(RuntimeOpened(wall_clock_ms=time.time_ns() // 1_000_000))
        self.phase = WorkerPhase.RUNNING

    async def _open_runtime_or_exit_run(self) -> None:
        """Open the runtime.

        :raises _Exited: when the runtime cannot open: the worker ends with exit code 1.
        """
        try:
            await self._runtime.open()
        except (ConfigError, WorldError) as error:
            self._raise_to_exit_run(Exit(exit_code=1, reason=str(error)))

    async def _feed_log_lines_or_shut_down(
        self, log: Log, event_of: Callable[[LogProgress], Event], first_read_done: asyncio.Event
    ) -> None:
        """Follow ``log``: give the herder its lines as the events that ``event_of`` returns. Sets ``first_read_done``
        when all lines that existed at the call are in the inbox. If the log cannot be read, this worker is ordered to
        shut down with exit code 1."""
        try:
            async for progress in log.follow():
                await self._inbox.put(event_of(progress))
                if progress.completes_first_read:
                    first_read_done.set()
        except WorldError as error:
            # The log itself has retried all errors that a retry can repair. A worker that cannot read a log receives no
            # further changes, so it ends.
            self._order_shutdown(ShutdownOrdered(reason=str(error), exit_code=1))

    async def _feed_task_events(self) -> None:
        """Put each event of the runtime into the inbox, without end."""
        while True:
            await self._inbox.put(await self._runtime.next_event())

    async def _feed_membership_events(self) -> None:
        """Put each event of the membership into the inbox, without end."""
        while True:
            await self._inbox.put(await self._membership.next_event())

    # -- detecting a stuck herder -------------------------------------------------------------------------------------

    async def _leave_group_if_herder_stuck(self, group: asyncio.TaskGroup) -> None:
        """Ping the herder's loop repeatedly, through its inbox, as an event.

        If the loop does not process a ping within the rebalance timeout, this method stops all tasks and orders the
        member to leave the group (:class:`LeaveAndRejoin`). When the loop runs again, it receives the membership's
        event MembershipLost, and the worker rejoins.
        """
        while True:
            await asyncio.sleep(HERDER_PING_INTERVAL_MS / 1000)
            sign = group.create_task(self._ping_herder_and_wait())
            await asyncio.wait({sign}, timeout=self.settings.rebalance_timeout_ms / 1000)
            if not sign.done():
                patience = f"rebalance.timeout.ms={self.settings.rebalance_timeout_ms}"
                reason = f"the herder did not process an event within {patience}"
                logger.critical(
                    "This worker stops all its tasks and leaves the group, because %s; it rejoins when the herder "
                    "processes events again",
                    reason,
                )
                try:
                    await asyncio.to_thread(self._runtime.halt_all_tasks)
                except Exception:
                    # The checkpoints' next owners are protected from queries that still run.
                    logger.exception(
                        "This worker failed to stop all its tasks; some may still run until other workers take over "
                        "their checkpoints. To end these tasks now, restart this worker"
                    )
                self._membership.order(LeaveAndRejoin(reason=reason))
                await sign

    async def _ping_herder_and_wait(self) -> None:
        """Put a ping into the inbox, and wait until the herder's loop has taken it."""
        given = asyncio.Event()
        await self._inbox.put(given)
        await given.wait()

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def _run_herder_loop(self, group: asyncio.TaskGroup) -> None:
        """Until cancelled: take the next event from the inbox, let the herder process it, and perform the effects that
        the herder returns. An asyncio.Event is a ping, which is only set.

        :raises _Exited: when the herder ends the worker.
        """
        while True:
            event = await self._next_event_or_ping()
            if isinstance(event, asyncio.Event):
                event.set()
                continue
            at_ms = now_ms()
            if not isinstance(event, LeaseRenewed | ConfigLinesRead | StatusLinesRead):
                self._trace.add(at_ms, brief_text(event))
            try:
                output = step(self._herder, event, now_ms=at_ms)
            except Exception:
                logger.critical(
                    "Bug in Coterie: the state machine of the herder failed, and this worker ends. The machine's last "
                    "events:\n%s",
                    self._trace.recent_text(),
                )
                raise
            for effect in output.effects:
                self._perform(effect, group)
            # A filled inbox returns its events without yielding to the event loop. Without this sleep, heartbeats and
            # requests would wait until the inbox is empty: for seconds when many tasks have started at once.
            await asyncio.sleep(0)

    async def _next_event_or_ping(self) -> Event | asyncio.Event:
        """Wait for the next event of the inbox, remove and return it; an asyncio.Event is a ping. A shutdown order that
        came while the inbox was full is returned before all events of the inbox."""
        if (order := self._shutdown) is not None:
            self._shutdown = None
            return order
        return await self._inbox.next()

    def _raise_to_exit_run(self, exit_: Exit) -> None:
        """Make :meth:`run` return ``exit_``.

        :raises _Exited: always.
        """
        self._exit = exit_
        raise _Exited

    # -- performing effects -------------------------------------------------------------------------------------------

    def _perform(self, effect: Effect, group: asyncio.TaskGroup) -> None:
        """Perform an effect at once, or start an asyncio task that performs it: for a chore and for the level of a
        logger.

        :raises _Exited: for the effect Exit.
        """
        match effect:
            case Reply(id=id_, answer=answer):
                future = self._replies.get(id_)
                if future is not None and not future.done():
                    future.set_result(answer)
            case SetTimer(timer=timer, at_ms=at_ms):
                self._inbox.timers.set(timer, at_ms)
            case CancelTimer(timer=timer):
                self._inbox.timers.cancel(timer)
            case WriteLogMessage(text=text, is_error=is_error, is_warning=is_warning):
                logger.log(logging.ERROR if is_error else logging.WARNING if is_warning else logging.INFO, "%s", text)
            case StopConnector() | AbortTaskStart():
                self._abort_splits_or_task_start(effect)
            case SetLoggerLevel(logger=name, level=level):
                group.create_task(self._set_logger_level(name, level))
            case NotifyRebalanceListeners(news=news):
                if self._listeners is not None:
                    self._listeners.notify(news)
            case (
                SetWorkerState()
                | Rejoin()
                | SendAssignments()
                | SetConfiguredJobs()
                | InstallTarget()
                | RequestGroupDescription()
                | ConfirmLeadership()
                | SuspendMembership()
                | LeaveAndRejoin()
            ):
                self._membership.order(effect)
            case Exit():
                self._raise_to_exit_run(effect)
            case _:
                group.create_task(self._perform_chore(effect))

    def _abort_splits_or_task_start(self, effect: StopConnector | AbortTaskStart) -> None:
        """Order the runtime to stop a connector (end its splits and the monitoring of its source), or to end the start
        of a task that is no longer needed. Does not wait until they have ended."""
        match effect:
            case StopConnector(connector=connector):
                self._runtime.stop_connector(connector)
            case AbortTaskStart(task=task, grace_ms=grace_ms):
                self._runtime.abort_task_start(task, grace_ms=grace_ms)

    async def _set_logger_level(self, name: str, level: LoggerLevel) -> None:
        """Set the level of a logger on this worker, as a line of the config log requests it for all workers. An error
        is logged; the level is then not set, and not tried again."""
        try:
            await self.logger_levels.set_level(name, level)
        except WorldError as error:
            logger.error(
                "The level %s of logger %s, ordered for all workers, was not set on this worker; set it here again: %s",
                level,
                name,
                error,
            )

    async def _perform_chore(self, chore: Chore) -> None:
        """Perform a chore, and put its result into the inbox."""
        await self._inbox.put(await self._chores.perform_chore(chore))
