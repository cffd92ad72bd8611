"""Log messages about failed logins: at most one message a minute for each address, no matter how many attempts it
makes.
"""

from coterie.broker.log_rate_limit import LogRateLimit

_USER_SIZE_MAX = 64
"""The number of characters of a user name that are logged."""


class AuthenticationFailures:
    """Creates the log messages of failed logins, and suppresses them if there are too many."""

    def __init__(self) -> None:
        self._limit = LogRateLimit()

    def message_to_log(self, host: str, user: str, mechanism: str | None, *, now_s: float) -> str | None:
        """The log message for one more failed login from the address ``host``; None if a message for this address was
        created less than a minute ago. The message names the user that the peer claimed, unless ``mechanism`` is None,
        and how many logins from ``host`` failed without a message since the last message. ``now_s`` is a monotonic
        time."""
        suppressed = self._limit.take_suppressed_count_if_allowed(host, now_s=now_s)
        if suppressed is None:
            return None
        message = "authentication failed"
        if mechanism is not None:
            # A peer can send any text as user name: quoted, it cannot imitate a log message of the broker.
            named = repr(user[:_USER_SIZE_MAX]) if user else "an unnamed user"
            message += f" for {named} with {mechanism}"
        return f"{message}; {suppressed} more failed from {host} since the last such message" if suppressed else message
