"""Log messages about failed logins: at most one message a minute for each address, no matter how many logins from it
fail.
"""

from coterie.broker.security.sasl import MECHANISMS
from coterie.nouns.log_rate_limit import LogRateLimit
from coterie.nouns.text import quoted_name


class AuthenticationFailureMessages:
    """Creates the log messages of failed logins, and suppresses them if there are too many."""

    def __init__(self) -> None:
        self._limit = LogRateLimit()

    def message_to_log(self, host: str, user: str, mechanism: str, *, now_s: float) -> str | None:
        """The log message for one more failed login from the address ``host``; None if a message for this address was
        created less than a minute ago. The message names the user that the peer claimed, or the ``mechanism`` that the
        peer requested if the broker does not offer it, and how many logins from ``host`` failed without a message since
        the last message. ``now_s`` is a monotonic time."""
        suppressed = self._limit.take_suppressed_count_if_allowed(host, now_s=now_s)
        if suppressed is None:
            return None
        if mechanism in MECHANISMS:
            named = quoted_name(user) if user else "an unnamed user"
            message = f"authentication failed for {named} with {mechanism}"
        else:
            message = (
                f"authentication failed: the client requested the mechanism {quoted_name(mechanism)}, which is"
                f" not offered; set its sasl.mechanism to one of {', '.join(MECHANISMS)}"
            )
        return f"{message}; {suppressed} more failed from {host} since the last such message" if suppressed else message
