"""A thread that stops all tasks of a worker whose event loop is blocked, before the group assigns them elsewhere.

Tasks run on other threads, and in the JVM, so they continue while the worker's event loop is blocked. But a blocked
loop does not detect the end of the lease: the two thirds of the session timeout, counted from the sending of the last
answered heartbeat, in which the group surely counts this worker as a member. The watchdog's thread detects it, and has
the last third of the session timeout to stop the tasks. When the loop runs again, it detects the end of the lease
itself, and sends the herder that event; the worker then rejoins like every worker that has lost its membership.
"""

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

POLL_INTERVAL_MS = 50
"""The time between two checks of the watchdog."""


class Watchdog:
    """During its ``with`` block, runs the thread that stops all tasks when the event loop is blocked and the worker's
    lease has ended. The lease is the time in which the group surely counts this worker as a member."""

    def __init__(
        self,
        *,
        lease_ends_ms: Callable[[], int | None],
        stalled_ms: Callable[[], float],
        stall_threshold_ms: Callable[[], int],
        halt_all_tasks: Callable[[], None],
    ) -> None:
        """The watchdog's thread calls all four functions.

        :param lease_ends_ms: the end of the lease on the monotonic clock, in ms; None when there is no lease, and so
            nothing to stop.
        :param stalled_ms: the time in ms since the event loop last ran.
        :param stall_threshold_ms: the watchdog stops no task while ``stalled_ms`` is at most this: then the event loop
            checks the lease itself.
        :param halt_all_tasks: stops all tasks, and returns when they can write nothing any more.
        """
        self._lease_ends_ms = lease_ends_ms
        self._stalled_ms = stalled_ms
        self._stall_threshold_ms = stall_threshold_ms
        self._halt_all_tasks = halt_all_tasks
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._halt_tasks_at_lease_end, name="coterie-watchdog", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        """End the thread. Waits until a running call of ``halt_all_tasks`` has returned."""
        self._ended.set()
        self._thread.join()

    def _halt_tasks_at_lease_end(self) -> None:
        """Until the ``with`` block ends: stop all tasks when the event loop is blocked and the lease has ended. For one
        end of the lease this is done once; if it fails, it is tried again while the event loop is blocked, and only the
        first failure is logged."""
        stopped_for: int | None = None
        """The end of the lease for which all tasks were stopped: they are stopped once for each lease."""
        tried_for: int | None = None
        """The end of the lease for which this thread has tried to stop all tasks, and has logged it."""
        while not self._ended.wait(POLL_INTERVAL_MS / 1000):
            ends_ms = self._lease_ends_ms()
            blocked_ms = self._stalled_ms()
            if ends_ms in (None, stopped_for) or blocked_ms <= self._stall_threshold_ms():
                continue
            assert ends_ms is not None
            if (late_ms := time.monotonic() * 1000 - ends_ms) < 0:
                continue
            is_first_try, tried_for = tried_for != ends_ms, ends_ms
            if is_first_try:
                logger.critical(
                    "The event loop has been blocked for %.0f ms, and the lease of this worker's group membership "
                    "ended %.0f ms ago: this thread stops all tasks now; the worker rejoins its group when the loop "
                    "runs again",
                    blocked_ms,
                    late_ms,
                )
            try:
                self._halt_all_tasks()
            except Exception:
                # The checkpoints' next owners are protected from queries that still run; the thread must keep watching.
                if is_first_try:
                    logger.exception(
                        "The watchdog failed to stop all tasks of this worker, and tries it again every %d ms while "
                        "the event loop is blocked; some may still run until other workers take over their "
                        "checkpoints: restart this worker if its event loop stays blocked",
                        POLL_INTERVAL_MS,
                    )
            else:
                stopped_for = ends_ms
                if not is_first_try:
                    logger.warning("The watchdog has stopped all tasks of this worker; its first attempt had failed")
