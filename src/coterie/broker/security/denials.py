"""Log messages about failed logins: user and address, at most one message a minute for each address, however many
attempts it makes."""

from coterie.broker.security.line_limit import LineLimit

_USER_SIZE_MAX = 64


class Denials:
    """Creates the log messages of failed logins."""

    def __init__(self) -> None:
        self._limit = LineLimit()

    def line(self, host: str, user: str, mechanism: str | None, *, now_s: float) -> str | None:
        """The log message for one more failed login; None if it is suppressed."""
        left_out = self._limit.left_out(host, now_s=now_s)
        if left_out is None:
            return None
        line = "authentication failed"
        if mechanism is not None:
            # A peer can send any text as user name: quoted, it cannot imitate a log message of the broker.
            named = repr(user[:_USER_SIZE_MAX]) if user else "an unnamed user"
            line += f" for {named} with {mechanism}"
        return f"{line}; {left_out} more failed from {host} since the last such message" if left_out else line
