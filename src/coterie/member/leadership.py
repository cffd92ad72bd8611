"""The check whether this worker is still the leader, the same for each group protocol.

The herder of a leader opens the leader's log, which ends the right of all earlier leaders to write, and then orders the
check. A response to a heartbeat that was sent before the log was opened proves nothing: another worker may have become
the leader while this process was paused.
"""

from dataclasses import dataclass

from coterie.member.events import RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipCheck:
    """The herder has ordered `ConfirmLeadership`, and no heartbeat has confirmed it yet."""

    order_token: int
    """Identifies the order; the member returns it in `LeadershipConfirmed`."""
    ordered_after_request_id: RequestId
    """An id that no request has: exactly the requests that were sent after the order have greater ids."""

    def precedes_request(self, request_id: RequestId) -> bool:
        """Whether the request ``request_id`` was sent after the herder had ordered this check."""
        return request_id > self.ordered_after_request_id
