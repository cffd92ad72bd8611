"""A rate limit for log messages, because a client that retries in a loop would fill the log with them."""

_INTERVAL_S = 60.0
_KEYS_MAX = 1_000


class LineLimit:
    """Allows one log message a minute for each key, and counts the suppressed messages."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}

    def left_out(self, key: str, *, now_s: float) -> int | None:
        """How many messages of ``key`` were suppressed since its last message; None: suppress this message too."""
        told_at_s, left_out = self._told.get(key, (-_INTERVAL_S, 0))
        if now_s - told_at_s < _INTERVAL_S:
            self._told[key] = told_at_s, left_out + 1
            return None
        self._told.pop(key, None)
        if len(self._told) >= _KEYS_MAX:
            # Remove the key with the oldest message: its next message is not suppressed.
            del self._told[next(iter(self._told))]
        self._told[key] = now_s, 0
        return left_out
