"""How a membership ends and begins again: loss, the lease, refusals, leaving, and the next process."""

import re

import pytest

from coterie.member.connect.messages import GroupDescriptionRequest, GroupDescriptionResponse, HeartbeatRequest
from coterie.member.connect.presence import ENDING_TIMEOUT_MS
from coterie.member.connect.state import HasLeft, Suspended
from coterie.member.events import MemberEnded
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import JOIN_EPOCH, LEAVE_BRIEFLY_EPOCH, LEAVE_EPOCH, HeartbeatResponse
from coterie.nouns.ids import GroupEpoch, InstanceId, MemberId
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import (
    Assigned,
    ConnectAssignmentDetails,
    ConnectMembershipHandover,
    GroupDescribed,
    LeaseRenewed,
    Leave,
    LeaveAndRejoin,
    MembershipLost,
    MembershipRefused,
    MembershipSuspended,
    RequestGroupDescription,
    SuspendMembership,
)
from tests.member.connect.driving import (
    A0,
    A1,
    HANDOVER,
    LEASE_MS,
    ME,
    OTHER,
    SESSION_MS,
    SOME,
    MemberDriver,
    accepted,
)

# -- loss -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ConnectErrorCode.UNKNOWN_MEMBER_ID, ConnectErrorCode.FENCED_MEMBER_EPOCH])
def test_a_removed_member_stops_all_jobs_and_joins_again_with_the_same_id(
    worker: MemberDriver, error: ConnectErrorCode
) -> None:
    worker.join()
    number = worker.refuse(error, "gone").request_number
    assert worker.take_events(MembershipLost) == [
        MembershipLost(reason=f"the coordinator responded {error.name}: gone")
    ]
    worker.own(A0)
    assert worker.sent == [], "a join says that all jobs have stopped"
    worker.own()
    again = worker.heartbeat
    assert (again.member_id, again.member_epoch, again.owned, again.request_number) == (
        ME,
        JOIN_EPOCH,
        NO_JOBS,
        number + 1,
    )


def test_jobs_that_the_herder_has_not_seen_yet_must_stop_before_the_next_join(worker: MemberDriver) -> None:
    worker.join(NO_JOBS)
    worker.end_hold()
    worker.answer(accepted(2, A0))
    worker.refuse(ConnectErrorCode.FENCED_MEMBER_EPOCH)
    worker.own()
    assert worker.sent == [], "the herder has sent this before it received the assignment, and starts the job"
    worker.own(A0)
    worker.own()
    assert worker.heartbeat.member_epoch == JOIN_EPOCH


def test_the_lease_lasts_two_thirds_of_the_session_from_the_sending_of_the_last_accepted_heartbeat(
    worker: MemberDriver,
) -> None:
    worker.join()
    worker.advance_clock(500)
    worker.answer(accepted(1))
    sent_at_ms = worker.now_ms - 500
    worker.advance_clock(LEASE_MS - 501)
    assert worker.take_events(MembershipLost) == []
    worker.advance_clock(1)
    assert worker.now_ms == sent_at_ms + LEASE_MS
    assert worker.take_events(MembershipLost) == [
        MembershipLost(
            reason=f"the coordinator has not accepted any heartbeat sent in the last {LEASE_MS} ms",
            has_lease_ended=True,
        )
    ]


def test_errors_do_not_renew_the_lease(worker: MemberDriver) -> None:
    worker.join()
    worker.end_hold()
    for _ in range(LEASE_MS // 100):
        worker.advance_clock(100)
        while worker.count(HeartbeatRequest):
            worker.refuse(ConnectErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    worker.advance_clock(100)
    assert len(worker.take_events(MembershipLost)) == 1


def test_a_response_that_arrives_after_its_lease_assigns_nothing(worker: MemberDriver) -> None:
    worker.join(NO_JOBS)
    worker.now_ms += LEASE_MS + 1  # the process was paused, and no timer has fired
    worker.answer(accepted(2, A0))
    assert worker.take_events(Assigned) == []
    assert worker.member.owned == NO_JOBS


def test_a_shorter_session_ends_a_longer_lease_and_a_longer_one_extends_it(worker: MemberDriver) -> None:
    worker.join()
    worker.end_hold()
    worker.events.clear()
    worker.answer(accepted(1, is_full=True, session_timeout_ms=3_000))
    assert [one.lease_ends_ms for one in worker.take_events(LeaseRenewed)] == [worker.now_ms + 2_000]
    worker.own(SOME)
    worker.answer(accepted(1, is_full=True, session_timeout_ms=30_000))
    assert worker.take_events(LeaseRenewed)[-1] == LeaseRenewed(
        lease_ends_ms=worker.now_ms + 20_000, session_timeout_ms=30_000
    )


def test_a_response_to_a_heartbeat_of_a_lost_membership_has_no_effect(worker: MemberDriver) -> None:
    worker.join()
    late = worker.pending(HeartbeatRequest)
    worker.feed(LeaveAndRejoin(reason="stuck"))
    worker.events.clear()
    worker.reply(late, accepted(4, A1))
    assert worker.events == []


def test_an_instance_id_that_is_not_free_is_asked_for_again() -> None:
    worker = MemberDriver(instance_id=InstanceId("i"))
    worker.own()
    for backoff_ms in (100, 200, 400, 800, 1_000, 1_000):
        worker.refuse(ConnectErrorCode.UNRELEASED_INSTANCE_ID, "it belongs to another member")
        worker.advance_clock(backoff_ms - 1)
        assert worker.sent == []
        worker.advance_clock(1)
        assert worker.heartbeat.member_epoch == JOIN_EPOCH
    assert len(worker.logged) == 1
    assert worker.take_events(MembershipRefused) == []


@pytest.mark.parametrize(
    ("response", "why"),
    [
        (accepted(0), "the session timeout is None"),
        (accepted(0, is_full=True, session_timeout_ms=-5), "the session timeout is -5"),
        (accepted(-1, is_full=True), "the member epoch is -1"),
        (accepted(0, SOME, is_full=True), "2 jobs are assigned with the member epoch 0"),
    ],
)
def test_a_join_with_an_invalid_response_is_repeated(
    worker: MemberDriver, response: HeartbeatResponse, why: str
) -> None:
    worker.own()
    worker.answer(response)
    assert worker.logged == [
        f"The group's coordinator sent an invalid response to a join; this worker joins again: {why}"
    ]
    worker.advance_clock(100)
    assert worker.heartbeat.member_epoch == JOIN_EPOCH
    assert worker.events == []


def test_a_member_loses_its_membership_when_the_coordinator_takes_its_epoch_away(worker: MemberDriver) -> None:
    worker.join()
    worker.answer(accepted(0, is_full=True))
    assert worker.take_events(MembershipLost) == [
        MembershipLost(reason="the coordinator sent an invalid response: the member epoch is 0")
    ]


# -- refusals ---------------------------------------------------------------------------------------------------------

REFUSALS = {
    ConnectErrorCode.UNSUPPORTED_VERSION: "group.protocol=classic",
    ConnectErrorCode.UNSUPPORTED_ASSIGNOR: r"\(cooperative 0 to 3\)",
    ConnectErrorCode.GROUP_AUTHORIZATION_FAILED: "group.id",
    ConnectErrorCode.INVALID_REQUEST: "does not accept the heartbeats of this worker: why",
    ConnectErrorCode.FENCED_INSTANCE_ID: "group.instance.id=i",
    ConnectErrorCode.GROUP_MAX_SIZE_REACHED: "group.connect.max.size",
    ConnectErrorCode.GROUP_ID_NOT_FOUND: r"group.protocol=connect; set .* \(classic or connect\) on all",
}


@pytest.mark.parametrize(("error", "text"), REFUSALS.items(), ids=[error.name for error in REFUSALS])
def test_a_wrong_setting_ends_the_member_with_one_line_that_names_it(error: ConnectErrorCode, text: str) -> None:
    worker = MemberDriver(instance_id=InstanceId("i"))
    worker.own()
    worker.refuse(error, "why")
    (refused,) = worker.take_events(MembershipRefused)
    assert "fleet" in refused.reason
    assert "\n" not in refused.reason
    assert re.search(text, refused.reason)
    worker.own()
    worker.advance_clock(60_000)
    assert worker.sent == []
    worker.feed(Leave(reason="refused"))
    assert worker.take_events(MemberEnded) == [MemberEnded()]
    assert worker.sent == []


def test_a_member_that_is_refused_loses_its_membership_first(worker: MemberDriver) -> None:
    worker.join()
    worker.refuse(ConnectErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert [type(event) for event in worker.events] == [MembershipLost, MembershipRefused]
    worker.own()
    worker.advance_clock(60_000)
    assert worker.sent == []


# -- leaving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("is_permanent", "epoch"), [(True, LEAVE_EPOCH), (False, LEAVE_BRIEFLY_EPOCH)])
def test_a_member_leaves_permanently_or_for_a_short_time(
    worker: MemberDriver, *, is_permanent: bool, epoch: int
) -> None:
    worker.join()
    worker.own()
    worker.feed(Leave(reason="stop", is_permanent=is_permanent))
    left = worker.heartbeat
    assert (left.member_epoch, left.owned) == (epoch, NO_JOBS)
    assert worker.take_events(MemberEnded) == []
    worker.answer(HeartbeatResponse())
    assert worker.take_events(MemberEnded) == [MemberEnded()]


def test_a_member_does_not_wait_for_long_until_it_has_left(worker: MemberDriver) -> None:
    worker.join(NO_JOBS)
    worker.feed(Leave(reason="stop"))
    worker.advance_clock(ENDING_TIMEOUT_MS - 1)
    assert worker.take_events(MemberEnded) == []
    worker.advance_clock(1)
    assert worker.take_events(MemberEnded) == [MemberEnded()]
    worker.own(SOME)
    assert worker.events == []


def test_a_worker_whose_jobs_have_not_stopped_sends_no_leave_request(worker: MemberDriver) -> None:
    worker.join()
    worker.sent.clear()
    worker.feed(Leave(reason="stop"))
    assert worker.sent == []
    assert "2 jobs have not stopped" in worker.logged[-1]
    assert isinstance(worker.member.ending, HasLeft)


def test_a_worker_that_has_never_sent_a_heartbeat_leaves_at_once(worker: MemberDriver) -> None:
    worker.feed(Leave(reason="stop"))
    assert worker.sent == []
    assert worker.take_events(MemberEnded) == [MemberEnded()]


def test_a_worker_that_must_rejoin_leaves_when_its_jobs_have_stopped(worker: MemberDriver) -> None:
    worker.join()
    worker.sent.clear()
    worker.feed(LeaveAndRejoin(reason="stuck"))
    assert worker.take_events(MembershipLost) == [MembershipLost(reason="stuck")]
    assert worker.sent == []
    worker.own()
    requests = [send.request for send in worker.sent if isinstance(send.request, HeartbeatRequest)]
    assert [request.member_epoch for request in requests] == [LEAVE_BRIEFLY_EPOCH, JOIN_EPOCH]
    numbers = [request.request_number for request in requests]
    assert numbers == sorted(set(numbers))


def test_a_worker_outside_the_group_has_nothing_to_leave(worker: MemberDriver) -> None:
    worker.own()
    worker.feed(LeaveAndRejoin(reason="stuck"))
    assert worker.events == []
    assert worker.heartbeat.member_epoch == JOIN_EPOCH


# -- the next process -------------------------------------------------------------------------------------------------


def test_a_process_announces_the_next_one_and_passes_its_membership_on(worker: MemberDriver) -> None:
    worker.join()
    worker.end_hold()
    worker.feed(SuspendMembership())
    announced = worker.heartbeat
    assert (announced.resumes, announced.max_wait_ms, announced.owned) == (True, 0, SOME)
    worker.answer(accepted(3, SOME, leader=ME, is_full=True))
    (suspended,) = worker.take_events(MembershipSuspended)
    assert suspended.handover is not None
    assert (suspended.handover.member_epoch, suspended.handover.leader, suspended.handover.jobs) == (3, ME, SOME)
    assert suspended.handover.request_number == announced.request_number
    worker.own()
    worker.advance_clock(60_000)
    assert worker.count(HeartbeatRequest) == 1, "only the held one: nothing was sent since"
    worker.feed(Leave(reason="no relaunch"))
    assert worker.take_events(MemberEnded) == [MemberEnded()]


def test_the_membership_is_passed_on_when_the_announcement_is_lost(worker: MemberDriver) -> None:
    worker.join()
    worker.feed(SuspendMembership())
    number = worker.heartbeat.request_number
    worker.advance_clock(ENDING_TIMEOUT_MS)
    (suspended,) = worker.take_events(MembershipSuspended)
    assert suspended.handover is not None
    assert suspended.handover.request_number == number


@pytest.mark.parametrize("error", [ConnectErrorCode.UNKNOWN_MEMBER_ID, ConnectErrorCode.FENCED_MEMBER_EPOCH])
def test_a_membership_that_is_lost_meanwhile_is_not_passed_on(worker: MemberDriver, error: ConnectErrorCode) -> None:
    worker.join()
    worker.feed(SuspendMembership())
    worker.refuse(error)
    assert worker.take_events(MembershipSuspended) == [MembershipSuspended(handover=None)]


def test_a_worker_outside_the_group_passes_nothing_on(worker: MemberDriver) -> None:
    worker.feed(SuspendMembership())
    assert worker.take_events(MembershipSuspended) == [MembershipSuspended(handover=None)]
    assert isinstance(worker.member.ending, Suspended)


def test_the_next_process_continues_member_id_epoch_and_request_numbers() -> None:
    worker = MemberDriver(HANDOVER)
    first = worker.heartbeat
    assert (first.member_id, first.member_epoch, first.request_number) == ("former", 5, 71)
    assert (first.owned, first.max_wait_ms) == (SOME, 0)
    assert first.client_assignors is not None
    worker.answer(accepted(5, SOME, leader=MemberId("former"), is_full=True))
    (assigned,) = worker.take_events(Assigned)
    assert isinstance(assigned.protocol_details, ConnectAssignmentDetails)
    assert (assigned.member_id, assigned.jobs, assigned.revoked) == ("former", SOME, NO_JOBS)
    assert assigned.protocol_details.jobs_by_assignment_epoch == {GroupEpoch(5): SOME}


def test_the_first_heartbeat_after_a_relaunch_renews_the_lease() -> None:
    worker = MemberDriver(HANDOVER)
    worker.answer(accepted(5, SOME, leader=MemberId("former"), is_full=True))
    assert worker.take_events(LeaseRenewed) == [LeaseRenewed(lease_ends_ms=LEASE_MS, session_timeout_ms=SESSION_MS)]


def test_a_handed_over_membership_that_is_never_confirmed_is_lost_after_a_lease() -> None:
    worker = MemberDriver(HANDOVER)
    worker.advance_clock(LEASE_MS - 1)
    assert worker.take_events(MembershipLost) == []
    worker.advance_clock(1)
    assert len(worker.take_events(MembershipLost)) == 1


def test_a_handover_survives_a_chain_of_processes() -> None:
    place: ConnectMembershipHandover | None = HANDOVER
    for _ in range(3):
        worker = MemberDriver(place)
        worker.answer(accepted(5, SOME, leader=OTHER, is_full=True))
        worker.feed(SuspendMembership())
        worker.answer(accepted(5, SOME, leader=OTHER, is_full=True))
        (suspended,) = worker.take_events(MembershipSuspended)
        place = suspended.handover
    assert place is not None
    assert place.request_number > HANDOVER.request_number
    assert (place.member_id, place.jobs, place.session_timeout_ms) == ("former", SOME, SESSION_MS)


# -- the description of the group -------------------------------------------------------------------------------------


def test_the_groups_description_is_requested_and_reported(worker: MemberDriver) -> None:
    worker.feed(RequestGroupDescription())
    worker.feed(RequestGroupDescription())
    assert worker.count(GroupDescriptionRequest) == 1
    response = GroupDescriptionResponse(error=ConnectErrorCode.GROUP_ID_NOT_FOUND, message="no such group")
    worker.reply(worker.pending(GroupDescriptionRequest), response)
    assert worker.take_events(GroupDescribed) == [GroupDescribed(description=None, error="no such group")]
    worker.feed(RequestGroupDescription())
    worker.fail(GroupDescriptionRequest)
    assert worker.take_events(GroupDescribed) == [GroupDescribed(description=None, error="the connection broke")]
