"""The confirmation that this worker is the leader: by a heartbeat that was sent after the herder's order."""

from coterie.member.connect.messages import HeartbeatRequest
from coterie.nouns.membership import ConfirmLeadership, LeadershipConfirmed
from tests.member.connect.driving import ME, OTHER, MemberDriver, accepted


def joined(leader: str) -> MemberDriver:
    worker = MemberDriver()
    worker.join(leader=ME if leader == "me" else OTHER)
    worker.end_hold()
    worker.events.clear()
    return worker


def confirmed(worker: MemberDriver) -> list[int]:
    return [event.token for event in worker.take_events(LeadershipConfirmed)]


def test_the_leader_sends_a_heartbeat_at_once_that_is_not_held() -> None:
    worker = joined("me")
    assert worker.heartbeat.max_wait_ms > 0
    worker.feed(ConfirmLeadership(token=7))
    assert worker.count(HeartbeatRequest) == 2, "the second one ends the hold of the first one"
    assert worker.heartbeat.max_wait_ms == 0
    worker.answer(accepted(1), oldest=True)
    assert confirmed(worker) == [], "the first one was sent before the order"
    worker.answer(accepted(1))
    assert confirmed(worker) == [7]
    assert worker.heartbeat.max_wait_ms > 0
    worker.end_hold()
    assert confirmed(worker) == [], "once"


def test_a_response_that_names_another_leader_confirms_nothing() -> None:
    worker = joined("me")
    worker.feed(ConfirmLeadership(token=7))
    worker.answer(accepted(1), oldest=True)
    worker.answer(accepted(1, leader=OTHER))
    assert confirmed(worker) == []
    worker.end_hold()
    assert confirmed(worker) == []


def test_a_failed_heartbeat_is_repeated_until_the_leader_is_confirmed() -> None:
    worker = joined("me")
    worker.feed(ConfirmLeadership(token=7))
    worker.fail()
    worker.advance_clock(1_000)
    worker.answer(accepted(1))
    assert confirmed(worker) == [7]


def test_a_follower_sends_no_heartbeat_for_the_order() -> None:
    worker = joined("other")
    worker.feed(ConfirmLeadership(token=7))
    assert worker.count(HeartbeatRequest) == 1
    worker.end_hold()
    assert confirmed(worker) == []
