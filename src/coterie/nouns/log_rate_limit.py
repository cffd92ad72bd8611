"""A rate limit for log messages, because a client that retries in a loop would fill the log with them."""

import logging
import traceback

_INTERVAL_S = 60.0
"""The shortest time between two messages of one key."""
_KEYS_MAX = 1_000
"""The number of keys that are remembered, so that clients cannot fill the memory."""


class LogRateLimit:
    """Allows one log message a minute for each key, and counts the suppressed messages. For more than 1,000 keys, it
    forgets the key with the oldest message."""

    def __init__(self) -> None:
        self._last_logged: dict[str, tuple[float, int]] = {}
        """By key: when its last message was logged, and how many were suppressed since. The key with the oldest message
        is first."""

    def take_suppressed_count_if_allowed(self, key: str, *, now_s: float) -> int | None:
        """Decide whether a message of ``key`` may be logged. If so, return how many messages of ``key`` were suppressed
        since the last one that was logged. None: suppress this message; the last one was logged less than a minute
        before ``now_s``, a monotonic time."""
        logged_at_s, left_out = self._last_logged.get(key, (-_INTERVAL_S, 0))
        if now_s - logged_at_s < _INTERVAL_S:
            self._last_logged[key] = logged_at_s, left_out + 1
            return None
        self._last_logged.pop(key, None)
        if len(self._last_logged) >= _KEYS_MAX:
            # Remove the key with the oldest message: its next message is not suppressed.
            del self._last_logged[next(iter(self._last_logged))]
        self._last_logged[key] = now_s, 0
        return left_out

    def warn_or_debug(self, logger: logging.Logger, key: str, message: str, *, more: str, now_s: float) -> None:
        """Log ``message`` as a warning if a message of ``key`` may be logged at ``now_s``, a monotonic time; else at
        debug level. If messages of ``key`` were suppressed, "; <number> <more> since the last such message" is added to
        the warning: ``more`` says what they are, for example "more from 10.0.0.1"."""
        suppressed = self.take_suppressed_count_if_allowed(key, now_s=now_s)
        if suppressed is None:
            logger.debug("%s", message)
            return
        since = f"; {suppressed} {more} since the last such message" if suppressed else ""
        logger.warning("%s%s", message, since)


def kind_of_error(error: BaseException) -> str:
    """A key for messages about errors of the same kind as ``error``: its type and the line of code that raised it. The
    text of an error is no such key, because it may contain values that a client chooses. For an error that was not
    raised, the key is its type alone."""
    lines = [f"{frame.f_code.co_filename}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)]
    return " ".join([type(error).__name__, *lines[-1:]])
