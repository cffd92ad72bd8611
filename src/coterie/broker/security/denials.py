"""What the log says of log-ins that failed: who tried it and from where, and no more than one line a minute for each
address, however often it tries."""

from coterie.broker.security.line_limit import LineLimit

_USER_SIZE_MAX = 64


class Denials:
    """The lines of failed log-ins."""

    def __init__(self) -> None:
        self._limit = LineLimit()

    def line(self, host: str, user: str, mechanism: str | None, *, now_s: float) -> str | None:
        """What the log is to say of one more log-in that failed; None: nothing now."""
        left_out = self._limit.left_out(host, now_s=now_s)
        if left_out is None:
            return None
        line = "its authentication failed"
        if mechanism is not None:
            # A peer may write what it likes: quoted, nothing of it passes for a line of ours.
            named = repr(user[:_USER_SIZE_MAX]) if user else "no user that was named"
            line += f", of {named} with {mechanism}"
        return f"{line}; so did {left_out} more from {host} since the last such line" if left_out else line
