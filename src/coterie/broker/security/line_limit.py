"""Which lines of the log are left out, because a peer that tries on and on would fill the log with them."""

_INTERVAL_S = 60.0
_KEYS_MAX = 1_000


class LineLimit:
    """Allows one line a minute for each key, and counts the lines that were left out since."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}

    def left_out(self, key: str, *, now_s: float) -> int | None:
        """How many lines of ``key`` were left out since its last line; None: this one is left out too."""
        told_at_s, left_out = self._told.get(key, (-_INTERVAL_S, 0))
        if now_s - told_at_s < _INTERVAL_S:
            self._told[key] = told_at_s, left_out + 1
            return None
        self._told.pop(key, None)
        if len(self._told) >= _KEYS_MAX:
            # The key whose line is the oldest: its next line is not left out.
            del self._told[next(iter(self._told))]
        self._told[key] = now_s, 0
        return left_out
