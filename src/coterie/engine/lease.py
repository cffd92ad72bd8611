"""How one session timeout is divided: for how long a worker runs on, and what is left to stop its work in."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """Shares of a session. Another worker gets this worker's jobs when its session is over, so all work here has to end
    before: the member gives its place up, the herder stops tasks and the watchdog looks at the event loop by these."""

    session_timeout_ms: int

    def __post_init__(self) -> None:
        assert self.proved_ms + self.stop_grace_ms + self.silence_ms <= self.session_timeout_ms, "a lease is too long"

    @property
    def proved_ms(self) -> int:
        """For how long an answered request proves that this worker is a member: counted from the *sending* of the
        request."""
        return self.session_timeout_ms * 2 // 3

    @property
    def request_timeout_ms(self) -> int:
        """Time limit of a request that a broker answers at once: after one that a silently dead connection has lost,
        there is time for another one before the lease ends."""
        return self.session_timeout_ms // 3

    @property
    def heartbeat_patience_ms(self) -> int:
        """For how long a heartbeat without an answer holds back the next one; a later one still arrives before the
        lease ends."""
        return self.proved_ms // 2

    @property
    def stop_grace_ms(self) -> int:
        """Grace of a stop when the lease is over; stopping itself takes more time than its grace."""
        return self.session_timeout_ms // 5

    @property
    def silence_ms(self) -> int:
        """An event loop that gave no sign for longer than this when the lease ends counts as stalled: the watchdog
        stops all tasks. Longer than a busy machine's hiccup."""
        return self.session_timeout_ms // 12
