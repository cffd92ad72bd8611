"""How one session timeout is divided: the lease, in which a worker may run its jobs, and the time left to stop them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """The parts of a session timeout. When this worker's session ends, its jobs are assigned to other workers, so all
    jobs here must stop before that. These durations control when the member considers itself removed, how the herder
    stops tasks, and when the watchdog considers the event loop stalled."""

    session_timeout_ms: int

    def __post_init__(self) -> None:
        assert self.proved_ms + self.stop_grace_ms + self.silence_ms <= self.session_timeout_ms, "a lease is too long"

    @property
    def proved_ms(self) -> int:
        """The length of the lease that a response grants, counted from the *sending* of its request: for this long the
        coordinator surely counts this worker as a member."""
        return self.session_timeout_ms * 2 // 3

    @property
    def request_timeout_ms(self) -> int:
        """Time limit of a request to which a broker responds immediately. If a broken connection loses one request,
        there is time for another one before the lease ends."""
        return self.session_timeout_ms // 3

    @property
    def heartbeat_patience_ms(self) -> int:
        """How long the response to a heartbeat is awaited before the next heartbeat is sent, which still arrives before
        the lease ends."""
        return self.proved_ms // 2

    @property
    def stop_grace_ms(self) -> int:
        """Grace period for stopping tasks when the lease has ended. Stopping takes longer in total than this period."""
        return self.session_timeout_ms // 5

    @property
    def silence_ms(self) -> int:
        """An event loop that, at the end of the lease, has not run for longer than this counts as stalled: the watchdog
        stops all tasks. Longer than a short pause of a busy host."""
        return self.session_timeout_ms // 12
