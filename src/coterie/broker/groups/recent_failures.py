"""The recent failures of one group's host: the pause before the next reload, and the failures that are logged."""

from coterie.engine.backoff import doubled_delay_ms
from coterie.nouns.log_rate_limit import LogRateLimit, kind_of_error
from coterie.wire.errors import KafkaRefusal

_PAUSE_MS = 500
"""The pause after the second of several close failures; it doubles with each further one."""
_PAUSE_MAX_MS = 2_000
"""The longest pause. On a full disk, each request that writes makes its group reload. A longer pause would keep the
heartbeats of other members from the coordinator, and workers begin to stop their tasks at 2/3 of the session timeout,
which is 4 s for the shortest one."""
_CLOSE_FAILURES_INTERVAL_S = 60.0
"""A failure is close to the failure before it if it comes less than this after it."""


class RecentFailures:
    """Counts the failures of one group that follow one another closely. The first is followed by no pause. A bug may
    recur after each reload: without a pause, the host would reload the group in a busy loop. `add` returns how many
    failures of the same kind were not logged since the last that was, or None if this one must not be logged either.
    `take_pause_s` returns the pause after the last failure, and 0 if it is called again before the next failure."""

    def __init__(self) -> None:
        self._count = 0
        """The number of failures each of which was close to the one before it."""
        self._failed_at_s: float | None = None
        """When the last failure came, a monotonic time; None if there was none."""
        self._pause_s = 0.0
        self._log_limit = LogRateLimit()

    def add(self, error: BaseException, message: str, *, now_s: float) -> int | None:
        """Count the failure ``error`` at the monotonic time ``now_s``. Returns how many failures of its kind were not
        logged with ``message`` since the last that was. None: ``error`` must not be logged either, because one of its
        kind was logged with this message less than a minute ago."""
        # A refused append is no failure of the broker: its transaction was ended first. This may happen to several
        # producers at once.
        if not isinstance(error, KafkaRefusal):
            is_close = self._failed_at_s is not None and now_s - self._failed_at_s < _CLOSE_FAILURES_INTERVAL_S
            self._count = self._count + 1 if is_close else 1
            self._pause_s = (
                doubled_delay_ms(_PAUSE_MS, self._count - 2, _PAUSE_MAX_MS) / 1000 if self._count > 1 else 0.0
            )
            self._failed_at_s = now_s
        return self._log_limit.take_suppressed_count_if_allowed(f"{message} {kind_of_error(error)}", now_s=now_s)

    def take_pause_s(self) -> float:
        """The pause in seconds before the reload after the last failure. Marks the pause as taken: the next calls
        return 0, until `add` counts another failure."""
        pause_s, self._pause_s = self._pause_s, 0.0
        return pause_s
