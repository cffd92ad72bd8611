"""The confirmation that this worker is the leader: by a heartbeat that was sent after the herder's order."""

from coterie.member.classic.messages import HeartbeatRequest, HeartbeatResponse, JoinRequest, SyncRequest
from coterie.nouns.membership import ConfirmLeadership, LeadershipConfirmed
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import SOME_WORK, MemberDriver, joined, synced

OK = HeartbeatResponse(error=ErrorCode.none)


def settled(leader: str) -> MemberDriver:
    worker = MemberDriver()
    worker.set_worker_state()
    worker.answer(JoinRequest, joined())  # Whose assignments the herder computes is not of interest here.
    worker.answer(SyncRequest, synced(SOME_WORK, leader=leader))
    worker.set_worker_state(SOME_WORK)
    worker.herder_events.clear()
    return worker


def confirmed(worker: MemberDriver) -> list[int]:
    return [event.token for event in worker.take_events(LeadershipConfirmed)]


def test_the_leader_sends_a_heartbeat_at_once_whose_response_confirms_it() -> None:
    worker = settled("me")
    worker.feed(ConfirmLeadership(token=7))
    worker.answer(HeartbeatRequest, OK)
    assert confirmed(worker) == [7]
    worker.advance_clock(1_000)
    worker.answer(HeartbeatRequest, OK)
    assert confirmed(worker) == [], "once"


def test_a_response_to_a_heartbeat_that_was_sent_before_the_order_confirms_nothing() -> None:
    worker = settled("me")
    worker.advance_clock(1_000)
    before = worker.take_request(HeartbeatRequest)
    worker.sent_requests.append(before)
    worker.feed(ConfirmLeadership(token=7))
    assert worker.heartbeat_count() == 1, "one heartbeat is out at a time"
    worker.answer(HeartbeatRequest, OK)
    assert confirmed(worker) == []
    assert worker.heartbeat_count() == 1, "the next one is sent at once"
    worker.answer(HeartbeatRequest, OK)
    assert confirmed(worker) == [7]


def test_a_follower_and_a_member_of_a_round_that_runs_are_not_confirmed() -> None:
    follower = settled("x")
    follower.feed(ConfirmLeadership(token=7))
    follower.answer(HeartbeatRequest, OK)
    assert confirmed(follower) == []

    leader = settled("me")
    leader.feed(ConfirmLeadership(token=7))
    leader.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    leader.answer(JoinRequest, joined(2, leader="x"))
    leader.advance_clock(1_000)
    leader.answer(HeartbeatRequest, OK)
    assert confirmed(leader) == [], "the leader of the new generation is another worker"
    leader.answer(SyncRequest, synced(leader="x"))
    leader.advance_clock(1_000)
    leader.answer(HeartbeatRequest, OK)
    assert confirmed(leader) == []
