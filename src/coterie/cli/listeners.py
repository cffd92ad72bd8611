"""The listeners of a worker's rebalances: finds them by entry point, and calls them on a thread.

The thread calls one plug-in after another, in the order of the news. So a plug-in that blocks delays the later calls of
all of them, and nothing else: neither the event loop nor the end of the process waits for the thread.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from queue import SimpleQueue
from typing import Any

from coterie.assignors.connect.interface import (
    LISTENER_ENTRY_POINTS,
    ConnectAssignor,
    WorkerRebalanceListener,
)
from coterie.cli.plugin_loading import check_plugins_registered_exactly_once, load_plugin
from coterie.herder.seams import JobsAssigned, JobsLost, JobsRevoked, RebalanceNews
from coterie.nouns.target_assignments import TargetOfMember

WAITING_NEWS_MAX = 1_000
"""The most news that wait for a plug-in that blocks; later news are dropped."""
SLOW_CALL_MS = 5_000
"""After this time a call that has not returned is logged."""
CLOSE_TIMEOUT_MS = 2_000
"""How long the end of a worker waits for the calls that are not done."""
_PLUGIN_KIND = "rebalance listener"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedListener:
    """A listener of a worker's rebalances, with the name of its entry point."""

    name: str
    listener: WorkerRebalanceListener


def load_listeners(names: Sequence[str], *, key: str) -> list[NamedListener]:
    """The listeners with these ``names``, in this order. ``key`` is the config key that contains the names.

    :raises ConfigError: when no installed package registers a listener with one of the names, when several packages
        do, or when its class cannot be imported or created, or lacks a method.
    """
    found = entry_points(group=LISTENER_ENTRY_POINTS)
    return [
        NamedListener(
            name=name,
            listener=load_plugin(found, name, kind=_PLUGIN_KIND, key=key, create=_create_listener_and_check_methods),
        )
        for name in names
    ]


def check_listeners_installed(names: Sequence[str], *, key: str) -> None:
    """Check that the listeners with these ``names`` are installed. Nothing is imported.

    :raises ConfigError: when no installed package registers a listener with one of the names, or several do.
    """
    check_plugins_registered_exactly_once(LISTENER_ENTRY_POINTS, names, kind=_PLUGIN_KIND, key=key)


def _create_listener_and_check_methods(listener_class: Any) -> WorkerRebalanceListener:
    listener: WorkerRebalanceListener = listener_class()
    for method in ("on_revoked", "on_assigned", "on_lost"):
        if not callable(getattr(listener, method, None)):
            raise TypeError(
                f"the rebalance listener has no method {method}: it must have on_revoked, on_assigned and on_lost"
            )
    return listener


@dataclass(frozen=True, slots=True, kw_only=True)
class _PluginCall:
    """One call of a plug-in, for the thread and for log messages."""

    plugin_kind_and_name: str
    """The kind and the name of the plug-in, such as "rebalance listener audit"."""
    method_name: str
    function: Callable[[], object]
    """Calls the method, with its arguments."""

    def __str__(self) -> str:
        return f"{self.method_name} of {self.plugin_kind_and_name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningPluginCall:
    """The call that the thread is executing."""

    call: _PluginCall
    began_at_monotonic_ms: float
    """When the call began, in milliseconds of the monotonic clock."""


class RebalanceListenerThread:
    """Calls the plug-ins of a worker's rebalances one after the other on one thread: the listeners, and
    `ConnectAssignor.on_assignment` of the assignors. After an assignment, all assignors are called, then all listeners.

    :meth:`notify` never waits: news are queued, and dropped if :data:`WAITING_NEWS_MAX` news wait already.
    :meth:`close` waits for the queued calls, but only for ``close_timeout_ms``. Implements
    `herder.seams.RebalanceListeners`. Call the methods of this object only on the event loop's thread."""

    def __init__(
        self,
        listeners: Sequence[NamedListener],
        assignors: Sequence[ConnectAssignor],
        *,
        after_assignment: Callable[[str], None] = lambda name: None,
        slow_call_ms: int = SLOW_CALL_MS,
        close_timeout_ms: int = CLOSE_TIMEOUT_MS,
    ) -> None:
        """``after_assignment`` is called on the thread with the name of each assignor whose `on_assignment` has
        returned or raised an exception. It must not wait."""
        self._listeners = listeners
        self._assignor_by_name = {assignor.name: assignor for assignor in assignors}
        self._after_assignment = after_assignment
        self._slow_call_ms = slow_call_ms
        self._close_timeout_ms = close_timeout_ms
        self._news: SimpleQueue[RebalanceNews | None] = SimpleQueue()
        """The news that wait for the thread. None in this queue ends the thread."""
        self._thread: threading.Thread | None = None
        """The thread that calls the plug-ins. It is started with the first news; None before."""
        self._running: _RunningPluginCall | None = None
        """The call that the thread is executing; None between two calls. Only the thread assigns this field."""
        self._logged: _RunningPluginCall | None = None
        """The last call that was logged as slow; None before the first. No call is logged twice."""
        self._timer: asyncio.TimerHandle | None = None
        """Looks for a slow call; None if all calls were done when it last fired."""

    def notify(self, news: RebalanceNews) -> None:
        """Let the thread call the plug-ins for ``news``, which are assigned, revoked or lost jobs; does not wait for
        the calls. If :data:`WAITING_NEWS_MAX` news wait already, ``news`` is dropped, with an error in the log."""
        if not self._listeners and not self._assignor_by_name:
            return
        if self._news.qsize() >= WAITING_NEWS_MAX:
            logger.error(
                "The listeners of rebalances and the assignors are not called for %s of %d jobs: %d news wait already, "
                "because %s has not returned; if it never returns, restart this worker",
                type(news).__name__,
                len(news.jobs),
                WAITING_NEWS_MAX,
                self._running_call_text(),
            )
            return
        self._news.put(news)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._call_plugins_until_closed, name="rebalance listeners", daemon=True
            )
            self._thread.start()
        if self._timer is None:
            self._set_slow_call_timer()

    async def close(self) -> None:
        """Let the thread end when all calls are done, and wait for that, but not longer than ``close_timeout_ms``. If
        the thread has not ended then, a warning is logged: the call that has not returned, and those after it, are cut
        off when the process ends."""
        if self._timer is not None:
            self._timer.cancel()
        if self._thread is None:
            return
        self._news.put(None)
        await asyncio.to_thread(self._thread.join, self._close_timeout_ms / 1000)
        if self._thread.is_alive():
            logger.warning(
                "%s has not returned; this worker ends now, and its listeners are not called any more",
                self._running_call_text(),
            )

    def _running_call_text(self) -> str:
        running = self._running
        return "a plug-in" if running is None else str(running.call)

    # -- the event loop's part: logs slow calls -----------------------------------------------------------------------

    def _set_slow_call_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._slow_call_ms / 1000, self._log_slow_call_and_rearm)

    def _log_slow_call_and_rearm(self) -> None:
        """Log the running call if it has not returned within ``slow_call_ms``, but no call twice. Set the timer again
        while calls are not done."""
        running = self._running
        if running is None and self._news.empty():
            self._timer = None
            return
        if (
            running is not None
            and running is not self._logged
            and _now_ms() >= running.began_at_monotonic_ms + self._slow_call_ms
        ):
            self._logged = running
            logger.warning(
                "%s has not returned within %g s: the later calls of the listeners of rebalances wait for it. If it "
                "never returns, restart this worker",
                running.call,
                self._slow_call_ms / 1000,
            )
        self._set_slow_call_timer()

    # -- the thread's part --------------------------------------------------------------------------------------------

    def _call_plugins_until_closed(self) -> None:
        while (news := self._news.get()) is not None:
            for call in self._calls_for_news(news):
                self._running = _RunningPluginCall(call=call, began_at_monotonic_ms=_now_ms())
                try:
                    call.function()
                except BaseException as error:
                    logger.error("%s has failed", call, exc_info=error)
                finally:
                    self._running = None

    def _calls_for_news(self, news: RebalanceNews) -> Iterator[_PluginCall]:
        """The calls of plug-ins for ``news``, in their order: of the assignors, if ``news`` is an assignment, then of
        the listeners."""
        if isinstance(news, JobsAssigned):
            for name, assignor in self._assignor_by_name.items():
                function = partial(self._call_on_assignment_and_after_assignment, name, assignor, news.assignment)
                yield _PluginCall(
                    plugin_kind_and_name=f"assignor {name}", method_name="on_assignment", function=function
                )
        for one in self._listeners:
            plugin, listener = f"{_PLUGIN_KIND} {one.name}", one.listener
            match news:
                case JobsAssigned(jobs=jobs, assignment_epoch=epoch):
                    yield _PluginCall(
                        plugin_kind_and_name=plugin,
                        method_name="on_assigned",
                        function=partial(listener.on_assigned, jobs, epoch),
                    )
                case JobsRevoked(jobs=jobs):
                    yield _PluginCall(
                        plugin_kind_and_name=plugin,
                        method_name="on_revoked",
                        function=partial(listener.on_revoked, jobs),
                    )
                case JobsLost(jobs=jobs):
                    yield _PluginCall(
                        plugin_kind_and_name=plugin, method_name="on_lost", function=partial(listener.on_lost, jobs)
                    )

    def _call_on_assignment_and_after_assignment(
        self, name: str, assignor: ConnectAssignor, assignment: TargetOfMember
    ) -> None:
        """Call the assignor's `on_assignment`, then ``after_assignment``. A separate function, so that an assignor
        without that method causes an error of the call, which is logged."""
        try:
            assignor.on_assignment(assignment)
        finally:
            self._after_assignment(name)


def _now_ms() -> float:
    return time.monotonic() * 1000
