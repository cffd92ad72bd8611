"""What the log says of log-ins that failed: who tried it and from where, and no more than one line a minute for each
address, however often it tries."""

_INTERVAL_S = 60.0
_ADDRESSES_MAX = 1_000
_USER_SIZE_MAX = 64


class Denials:
    """When an address had its last line, and how often it has failed since."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}

    def line(self, host: str, user: str, mechanism: str | None, *, now_s: float) -> str | None:
        """What the log is to say of one more log-in that failed; None: nothing now."""
        told_at_s, unsaid = self._told.get(host, (-_INTERVAL_S, 0))
        if now_s - told_at_s < _INTERVAL_S:
            self._told[host] = told_at_s, unsaid + 1
            return None
        self._told.pop(host, None)
        if len(self._told) >= _ADDRESSES_MAX:
            # The one that had its line first: the next from there has one again.
            del self._told[next(iter(self._told))]
        self._told[host] = now_s, 0
        line = "its authentication failed"
        if mechanism is not None:
            # A peer may write what it likes: quoted, nothing of it passes for a line of ours.
            named = repr(user[:_USER_SIZE_MAX]) if user else "no user that was named"
            line += f", of {named} with {mechanism}"
        return f"{line}; so did {unsaid} more from {host} since the last such line" if unsaid else line
