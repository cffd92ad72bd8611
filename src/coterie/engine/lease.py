"""How a session timeout is divided into the lease, in which a worker may run its jobs, and the time left to stop
them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseDurations:
    """The parts of a session timeout. When the coordinator ends this worker's session, the group's leader assigns this
    worker's jobs to other workers, so all jobs here must stop before that. From these durations follow when the member
    considers its membership lost, how long the herder lets tasks stop, and when the watchdog stops all tasks of a
    blocked event loop. The lease is 2/3 of the session timeout; the time limits of a heartbeat and of another request
    are 1/3 each, the grace of stops is 1/5, and the stall threshold 1/12."""

    session_timeout_ms: int

    def __post_init__(self) -> None:
        assert self.duration_ms + self.stop_grace_ms + self.stall_threshold_ms <= self.session_timeout_ms, (
            "the parts of a session timeout are longer than the session timeout"
        )

    @property
    def duration_ms(self) -> int:
        """The duration of the lease that a heartbeat's response grants, counted from the *sending* of that heartbeat
        (2/3 of the session timeout). Until the lease ends, the coordinator cannot have ended this worker's session."""
        return self.session_timeout_ms * 2 // 3

    @property
    def request_timeout_ms(self) -> int:
        """The time limit of a request to which a broker responds immediately (1/3 of the session timeout). If one
        request is lost with its connection, another request can be answered before the lease ends."""
        return self.session_timeout_ms // 3

    @property
    def heartbeat_timeout_ms(self) -> int:
        """How long the member waits for the response to a heartbeat, from its sending, before it sends another
        heartbeat: half of the lease, so that the second heartbeat still arrives before the lease ends."""
        return self.duration_ms // 2

    @property
    def stop_grace_ms(self) -> int:
        """The grace period of stops that begin when the lease has ended (1/5 of the session timeout). A task that still
        runs at the end of this period is interrupted, which takes additional time."""
        return self.session_timeout_ms // 5

    @property
    def stall_threshold_ms(self) -> int:
        """The watchdog stops all tasks if the lease has ended and the event loop has not run for longer than this (1/12
        of the session timeout, which is longer than a short pause of a busy host)."""
        return self.session_timeout_ms // 12
