"""A late response to a request that timed out has no effect."""

from coterie.member.classic.messages import (
    SyncRequest,
)
from coterie.member.events import ResponseReceived
from coterie.nouns.membership import (
    MembershipLost,
    Rejoin,
)
from tests.member.classic.driving import MemberDriver, joined


def test_a_join_request_times_out_and_its_late_response_is_ignored(worker: MemberDriver) -> None:
    worker.set_worker_state()
    late = worker.sent_requests[-1]
    worker.advance_clock(66_000)
    assert len(worker.sent_requests) == 2
    worker.feed(ResponseReceived(id=late.id, response=joined()))
    assert worker.sent(SyncRequest) is None


def test_a_late_response_to_a_join_of_a_lost_membership_is_ignored(worker: MemberDriver) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="test"))
    parked = worker.sent_requests[-1]
    worker.advance_clock(6_000)
    assert worker.take_events(MembershipLost)
    worker.feed(ResponseReceived(id=parked.id, response=joined(2)))
    assert worker.sent(SyncRequest) is None
