"""A thread that stops all tasks of a worker whose event loop is blocked, before the group assigns them elsewhere.

Tasks run on threads of their own, and in the JVM, so they continue while the worker's event loop is blocked; but a
blocked loop cannot notice that the lease has ended. The watchdog's thread notices it, and has the last third of the
session timeout to stop the tasks. When the loop runs again, it finds that the lease has ended and sends that event to
the herder; the worker then rejoins like every worker that has lost its membership.
"""

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

LOOK_EVERY_MS = 50


class Watchdog:
    """The watchdog's thread; it runs while the context manager is entered."""

    def __init__(
        self,
        *,
        lease_ends_ms: Callable[[], int | None],
        silent_ms: Callable[[], float],
        silent_max_ms: int,
        stop_everything: Callable[[], None],
    ) -> None:
        """The watchdog's thread calls all three functions.

        :param lease_ends_ms: the end of the lease on the monotonic clock; None when no task may run anyway.
        :param silent_ms: the time in ms since the event loop last ran.
        :param silent_max_ms: a loop that ran within this time checks its lease itself.
        :param stop_everything: stops all tasks at once.
        """
        self._lease_ends_ms = lease_ends_ms
        self._silent_ms = silent_ms
        self._silent_max_ms = silent_max_ms
        self._stop_everything = stop_everything
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="coterie-watchdog", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        stopped_for: int | None = None
        """The end of the lease for which all tasks were stopped: they are stopped once for each lease."""
        while not self._ended.wait(LOOK_EVERY_MS / 1000):
            ends_ms = self._lease_ends_ms()
            silent_ms = self._silent_ms()
            if ends_ms in (None, stopped_for) or silent_ms <= self._silent_max_ms:
                continue
            assert ends_ms is not None
            if (late_ms := time.monotonic() * 1000 - ends_ms) < 0:
                continue
            stopped_for = ends_ms
            logger.critical(
                "The event loop was blocked for %.0f ms; the session lease expired %.0f ms ago: all tasks are stopped",
                silent_ms,
                late_ms,
            )
            try:
                self._stop_everything()
            except Exception:
                # The checkpoints' next owners are protected from queries that still run; the thread must keep watching.
                logger.exception("Some tasks could not be stopped")
