"""How heartbeats confirm the membership, and how it ends: lease, loss, abandoning, leaving."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    SyncRequest,
)
from coterie.member.classic.state import WasInGroup
from coterie.member.events import MemberEnded, RequestId, ResponseReceived
from coterie.nouns.ids import InstanceId
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import (
    LeaseRenewed,
    Leave,
    LeaveAndRejoin,
    MembershipLost,
    MemberStateChanged,
    Rejoin,
)
from coterie.wire.connect import WorkerMetadata
from coterie.wire.connect_bytes import decode_version_and_metadata
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import (
    INTERVAL_MS,
    NEXT_ROUND_WINDOW_MS,
    REBALANCE_INTERVAL_MS,
    SOME_WORK,
    MemberDriver,
    joined,
    short_heartbeat_driver,
    synced,
)

# -- heartbeats and the lease -----------------------------------------------------------------------------------------


def test_heartbeats_contain_the_generation_and_their_responses_renew_the_lease(worker: MemberDriver) -> None:
    worker.settle()
    worker.advance_clock(1_000)
    request = worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    assert request.generation == 1
    assert worker.take_events(LeaseRenewed) == [LeaseRenewed(lease_ends_ms=1_000 + 6_000, session_timeout_ms=9_000)]


@pytest.mark.parametrize("error", [ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation])
def test_a_heartbeat_response_that_reports_a_rebalance_triggers_a_join_and_stops_nothing(
    worker: MemberDriver, error: ErrorCode
) -> None:
    worker.settle()
    worker.advance_clock(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=error))
    assert worker.sent(JoinRequest) is not None
    assert worker.take_events(MemberStateChanged)
    assert not worker.take_events(MembershipLost)


def test_heartbeats_continue_while_a_join_is_parked_and_renew_the_lease(worker: MemberDriver) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="test"))
    for _ in range(30):
        worker.advance_clock(1_000)
        worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    assert not worker.take_events(MembershipLost)
    assert sum(isinstance(send.request, JoinRequest) for send in worker.sent_requests) == 1
    worker.answer(JoinRequest, joined(2))
    assert worker.sent(SyncRequest) is not None


def test_a_heartbeat_response_for_the_previous_generation_changes_nothing(worker: MemberDriver) -> None:
    worker.settle()
    worker.advance_clock(1_000)
    worker.feed(Rejoin(reason="test"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, synced())
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.illegal_generation))
    assert worker.sent(JoinRequest) is None


def test_the_lease_ends_two_thirds_of_a_session_after_the_last_answered_heartbeat_was_sent(
    worker: MemberDriver,
) -> None:
    worker.settle()
    worker.advance_clock(1_000)
    worker.now_ms += 2_000  # the response was in the socket buffer meanwhile
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    worker.advance_clock(6_999 - worker.now_ms)
    assert not worker.take_events(MembershipLost)
    worker.advance_clock(1)
    (lost,) = worker.take_events(MembershipLost)
    assert lost.has_lease_ended


def test_a_response_read_late_after_a_pause_does_not_renew_the_lease(worker: MemberDriver) -> None:
    worker.settle()
    worker.advance_clock(1_000)
    worker.now_ms += 60_000
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    worker.advance_clock(0)
    assert worker.take_events(MembershipLost)


def test_a_broker_that_is_reachable_again_within_the_lease_stops_nothing(worker: MemberDriver) -> None:
    worker.settle()
    for _ in range(4):
        worker.advance_clock(1_000)
        worker.fail(HeartbeatRequest)
    worker.advance_clock(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    worker.advance_clock(3_000)
    assert not worker.take_events(MembershipLost)


def test_an_unanswered_heartbeat_is_retried_before_the_lease_ends(worker: MemberDriver) -> None:
    worker.settle()
    worker.advance_clock(5_500)
    assert worker.heartbeat_count() == 2


# -- the shorter interval while the next rebalance is expected --------------------------------------------------------


OK_RESPONSE = HeartbeatResponse(error=ErrorCode.none)


def heartbeat_times_ms(worker: MemberDriver, ms: int) -> list[int]:
    """Times of the heartbeats sent in the next ``ms``, relative to now; each gets a response at once."""
    begin_ms, found = worker.now_ms, []
    for _ in range(ms // 10):
        worker.advance_clock(10)
        if worker.sent(HeartbeatRequest) is not None:
            found.append(worker.now_ms - begin_ms)
            worker.answer(HeartbeatRequest, OK_RESPONSE)
    return found


def test_after_an_assignment_heartbeats_are_frequent_for_the_next_round_window(
    short_heartbeat_worker: MemberDriver,
) -> None:
    short_heartbeat_worker.settle()
    heartbeats = heartbeat_times_ms(short_heartbeat_worker, NEXT_ROUND_WINDOW_MS + 3 * INTERVAL_MS)
    frequent = [*range(REBALANCE_INTERVAL_MS, NEXT_ROUND_WINDOW_MS + 1, REBALANCE_INTERVAL_MS)]
    assert heartbeats == [
        *frequent,
        NEXT_ROUND_WINDOW_MS + INTERVAL_MS,
        NEXT_ROUND_WINDOW_MS + 2 * INTERVAL_MS,
        NEXT_ROUND_WINDOW_MS + 3 * INTERVAL_MS,
    ]


def test_a_frequent_heartbeat_detects_the_next_rebalance_early(short_heartbeat_worker: MemberDriver) -> None:
    short_heartbeat_worker.settle()
    short_heartbeat_worker.advance_clock(REBALANCE_INTERVAL_MS)
    short_heartbeat_worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    assert short_heartbeat_worker.sent(JoinRequest) is not None


def test_another_rebalance_restarts_the_next_round_window(short_heartbeat_worker: MemberDriver) -> None:
    short_heartbeat_worker.settle()
    heartbeat_times_ms(short_heartbeat_worker, NEXT_ROUND_WINDOW_MS + INTERVAL_MS)
    short_heartbeat_worker.feed(Rejoin(reason="test"))
    short_heartbeat_worker.answer(JoinRequest, joined(2))
    short_heartbeat_worker.answer(SyncRequest, synced())
    assert heartbeat_times_ms(short_heartbeat_worker, 4 * REBALANCE_INTERVAL_MS) == [
        REBALANCE_INTERVAL_MS * n for n in (1, 2, 3, 4)
    ]


def test_a_shorter_regular_heartbeat_interval_is_kept_in_the_next_round_window() -> None:
    worker = short_heartbeat_driver(interval_ms=150)
    worker.settle()
    assert heartbeat_times_ms(worker, 300) == [150, 300]


def test_no_heartbeat_is_sent_while_another_is_unanswered(short_heartbeat_worker: MemberDriver) -> None:
    short_heartbeat_worker.settle()
    short_heartbeat_worker.advance_clock(10 * REBALANCE_INTERVAL_MS)
    assert short_heartbeat_worker.heartbeat_count() == 1


def test_after_the_membership_is_lost_heartbeats_are_not_frequent(short_heartbeat_worker: MemberDriver) -> None:
    short_heartbeat_worker.settle()
    short_heartbeat_worker.advance_clock(REBALANCE_INTERVAL_MS)
    short_heartbeat_worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    assert short_heartbeat_worker.take_events(MembershipLost)
    assert isinstance(short_heartbeat_worker.member.place, WasInGroup)
    short_heartbeat_worker.set_worker_state(NO_JOBS)
    short_heartbeat_worker.answer(JoinRequest, joined(2))
    short_heartbeat_worker.sent_requests.clear()
    assert heartbeat_times_ms(short_heartbeat_worker, INTERVAL_MS) == [INTERVAL_MS], "nothing has been assigned yet"
    assert short_heartbeat_worker.sent(LeaveRequest) is None


ANSWERS = st.sampled_from(
    (
        ErrorCode.none,
        ErrorCode.rebalance_in_progress,
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.coordinator_load_in_progress,
    )
)


@given(st.lists(st.tuples(st.integers(0, 2_000), ANSWERS, st.booleans()), max_size=30))
def test_after_any_events_heartbeats_return_to_the_regular_interval(
    steps: list[tuple[int, ErrorCode, bool]],
) -> None:
    worker = short_heartbeat_driver()
    worker.settle()
    for number, (ms, error, rejoins) in enumerate(steps):
        worker.advance_clock(ms)
        if worker.sent(HeartbeatRequest) is not None:
            worker.answer(HeartbeatRequest, HeartbeatResponse(error=error))
        if rejoins:
            worker.feed(Rejoin(reason="test"))
        continue_in_generation(worker, number + 2)
    for _ in range(2 * NEXT_ROUND_WINDOW_MS // REBALANCE_INTERVAL_MS):
        worker.advance_clock(REBALANCE_INTERVAL_MS)
        continue_in_generation(worker, len(steps) + 2)
        if worker.sent(HeartbeatRequest) is not None:
            worker.answer(HeartbeatRequest, OK_RESPONSE)
    heartbeats = heartbeat_times_ms(worker, 4 * INTERVAL_MS)
    assert len(heartbeats) >= 3
    assert all(later - former == INTERVAL_MS for former, later in pairwise(heartbeats)), heartbeats


def continue_in_generation(worker: MemberDriver, generation: int) -> None:
    """Answer JoinGroup and SyncGroup requests; after a loss of the membership, report no owned jobs first."""
    if worker.take_events(MembershipLost):
        worker.set_worker_state(NO_JOBS)
    while worker.sent(JoinRequest) is not None or worker.sent(SyncRequest) is not None:
        if worker.sent(SyncRequest) is not None:
            worker.answer(SyncRequest, synced())
        else:
            worker.answer(JoinRequest, joined(generation))


# -- endings ----------------------------------------------------------------------------------------------------------


def metadata_of_join(request: JoinRequest) -> WorkerMetadata:
    return decode_version_and_metadata(request.protocols[0][1])[1]


def test_an_unknown_member_stops_everything_and_then_joins_as_a_new_one(worker: MemberDriver) -> None:
    worker.settle()
    worker.advance_clock(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    assert worker.take_events(MembershipLost)
    worker.advance_clock(30_000)
    assert worker.sent(JoinRequest) is None, "its jobs have not stopped"
    worker.set_worker_state(NO_JOBS)
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.member_id == ""
    assert metadata_of_join(request).allocation is None


def test_a_member_whose_lease_expired_joins_with_its_old_id(worker: MemberDriver) -> None:
    worker.settle()
    worker.advance_clock(6_000)
    assert worker.take_events(MembershipLost)
    worker.set_worker_state(NO_JOBS)
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.member_id == "me"
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.unknown_member_id))
    assert not worker.take_events(MembershipLost), "the loss is reported only once"
    worker.advance_clock(1_000)
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.member_id == ""


def test_before_it_joins_a_lost_member_also_stops_jobs_that_were_just_assigned(worker: MemberDriver) -> None:
    worker.set_worker_state()
    worker.answer(JoinRequest, joined())
    worker.answer(SyncRequest, synced(SOME_WORK))
    worker.advance_clock(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    assert worker.sent(JoinRequest) is None, "the herder may have begun to start the jobs"


@pytest.mark.parametrize("answered", [True, False])
def test_leaving_sends_a_leave_request_and_completes_even_without_a_response(
    worker: MemberDriver, answered: bool
) -> None:
    worker.settle()
    worker.feed(Leave(reason="shutdown"))
    request = worker.sent(LeaveRequest)
    assert request is not None
    assert request.member_id == "me"
    if answered:
        worker.fail(LeaveRequest)
    else:
        worker.advance_clock(1_000)
    assert worker.take_events(MemberEnded)
    worker.feed(Rejoin(reason="test"))
    worker.feed(Leave(reason="again"))
    worker.feed(ResponseReceived(id=RequestId(1), response=joined()))
    worker.advance_clock(60_000)
    assert not worker.herder_events


def test_a_worker_that_was_never_a_member_leaves_without_a_request(worker: MemberDriver) -> None:
    worker.set_worker_state()
    worker.feed(Leave(reason="shutdown"))
    assert worker.sent(LeaveRequest) is None
    assert worker.take_events(MemberEnded)


# -- a membership that is abandoned because the herder is stuck -------------------------------------------------------


STUCK = LeaveAndRejoin(reason="the herder is stuck")


def test_an_abandoned_membership_is_left_at_once_and_joined_again_after_all_jobs_stopped(worker: MemberDriver) -> None:
    worker.settle()
    worker.feed(STUCK)
    leave = worker.sent(LeaveRequest)
    assert leave is not None
    assert leave.member_id == "me"
    (lost,) = worker.take_events(MembershipLost)
    assert lost.reason == STUCK.reason
    worker.fail(LeaveRequest)
    worker.advance_clock(60_000)
    assert not worker.sent_requests, "not before all jobs have stopped"
    worker.set_worker_state(NO_JOBS)
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.member_id == "", "it left, so it joins as a new member"


def test_abandoning_the_membership_also_drops_a_parked_join(worker: MemberDriver) -> None:
    worker.set_worker_state()
    worker.feed(STUCK)
    assert len(worker.take_events(MembershipLost)) == 1
    assert worker.sent(LeaveRequest) is None, "the member had no id yet"


def test_a_static_member_abandons_its_membership_without_a_request_and_keeps_its_id() -> None:
    worker = MemberDriver(InstanceId("one"))
    worker.settle()
    worker.sent_requests.clear()
    worker.feed(STUCK)
    assert not worker.sent_requests
    worker.set_worker_state(NO_JOBS)
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.member_id == "me"


def test_a_lost_or_leaving_member_ignores_an_order_to_abandon_its_membership(worker: MemberDriver) -> None:
    worker.settle()
    worker.feed(STUCK)
    worker.herder_events.clear()
    worker.feed(STUCK)
    assert not worker.herder_events
    worker.feed(Leave(reason="shutdown"))
    worker.feed(STUCK)
    assert worker.take_events(MemberEnded)
