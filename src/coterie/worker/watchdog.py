"""A thread that stops the work of a worker whose event loop stands still, before its group gives that work to others.

Tasks run on threads of their own, and in the JVM, so they go on when the loop of their worker does not; but then nobody
here learns that the lease has ended. The thread does, and has the last third of the session for it. A loop that goes on
finds the lease over, says so to the herder, and the worker takes part again as any does that has lost its place.
"""

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

LOOK_EVERY_MS = 50


class Watchdog:
    """The thread; runs as long as it is entered as a context."""

    def __init__(
        self,
        *,
        lease_ends_ms: Callable[[], int | None],
        silent_ms: Callable[[], float],
        silent_max_ms: int,
        stop_everything: Callable[[], None],
    ) -> None:
        """All are called on the thread.

        :param lease_ends_ms: on the monotonic clock; None when nothing may run anyway.
        :param silent_ms: for how long the loop has given no sign.
        :param silent_max_ms: a loop that gave one since may look after its lease itself.
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
        """The lease at whose end everything was stopped: once is enough."""
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
                "The event loop has stood still for %.0f ms and the lease is over since %.0f ms: all tasks are stopped",
                silent_ms,
                late_ms,
            )
            try:
                self._stop_everything()
            except Exception:
                # Whoever takes the checkpoints next is safe from what is left; the thread has to watch on.
                logger.exception("Not everything could be stopped")
