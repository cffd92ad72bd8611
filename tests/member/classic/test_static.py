"""A static member (KIP-345): it never sends LeaveGroup, returns into the running generation, and may be fenced."""

import pytest

from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    SyncRequest,
    SyncResponse,
)
from coterie.member.events import MemberEnded
from coterie.nouns.ids import ConfigOffset, GenerationId, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import (
    Assigned,
    AssignmentsRequested,
    ComputedAssignments,
    Leave,
    MembershipLost,
    MembershipRefused,
    SendAssignments,
)
from coterie.wire.connect import ClassicAssignmentDetails, ConnectProtocol, RoundToken, WorkerMetadata
from coterie.wire.connect_bytes import encode_metadata
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import SOME_WORK, MemberDriver, joined, synced

ONE = InstanceId("worker-1")


@pytest.fixture
def worker() -> MemberDriver:
    return MemberDriver(ONE)


def answer_registration_check(worker: MemberDriver, *, registered: bool = True) -> None:
    """Answer the member's request whether its instance id is registered in the group."""
    worker.set_worker_state()
    error = ErrorCode.fenced_instance_id if registered else ErrorCode.unknown_member_id
    request = worker.answer(HeartbeatRequest, HeartbeatResponse(error=error))
    assert (request.member_id, request.instance_id, request.generation) == ("", ONE, -1)


def settle(worker: MemberDriver) -> None:
    """Join, sync, and the rebalance that a new process requests."""
    answer_registration_check(worker)
    for generation in (1, 2):
        worker.answer(JoinRequest, joined(generation))
        worker.answer(SyncRequest, synced(SOME_WORK))
    worker.set_worker_state(SOME_WORK)
    worker.herder_events.clear()


def test_every_request_carries_the_instance_id(worker: MemberDriver) -> None:
    answer_registration_check(worker)
    assert worker.answer(JoinRequest, joined()).instance_id == ONE
    assert worker.answer(SyncRequest, synced()).instance_id == ONE
    worker.advance_clock(1_000)
    heartbeat = worker.sent(HeartbeatRequest)
    assert heartbeat is not None
    assert heartbeat.instance_id == ONE


def test_a_static_member_leaves_at_once_without_a_leave_request(worker: MemberDriver) -> None:
    settle(worker)
    worker.feed(Leave(reason="SIGTERM"))
    assert worker.take_events(MemberEnded)
    assert worker.sent(LeaveRequest) is None


def test_a_new_process_joins_a_second_time_after_its_first_assignment(worker: MemberDriver) -> None:
    answer_registration_check(worker)
    worker.answer(JoinRequest, joined(7))
    worker.answer(SyncRequest, synced(NO_JOBS))
    again = worker.answer(JoinRequest, joined(8))
    assert again.member_id == "me"
    worker.answer(SyncRequest, synced(SOME_WORK))
    assert worker.sent(JoinRequest) is None, "no third join"
    first, second = worker.take_events(Assigned)
    assert (first.epoch, second.epoch) == (7, 8)
    assert second.jobs == SOME_WORK


def test_a_new_process_whose_first_assignment_was_lost_still_joins_a_second_time(worker: MemberDriver) -> None:
    """The second join has the metadata of the first, and its response contains the same generation."""
    answer_registration_check(worker)
    worker.answer(JoinRequest, joined(7))
    worker.fail(SyncRequest)
    worker.advance_clock(1_000)
    assert worker.answer(JoinRequest, joined(7)).member_id == "me"
    worker.answer(SyncRequest, synced(NO_JOBS))
    assert worker.sent(JoinRequest) is not None


def test_the_second_join_has_other_metadata_than_the_first_so_that_it_triggers_a_rebalance(
    worker: MemberDriver,
) -> None:
    """In a stable group a follower's join with unchanged metadata gets the current generation, without a rebalance."""
    answer_registration_check(worker)
    first = worker.answer(JoinRequest, joined(7))
    worker.answer(SyncRequest, synced(NO_JOBS))
    second = worker.sent(JoinRequest)
    assert second is not None
    for (name, before), (_, after) in zip(first.protocols, second.protocols, strict=True):
        assert before != after or name == "default", "in an eager group the first assignment is already whole"


def test_a_static_member_unknown_to_the_group_joins_once(worker: MemberDriver) -> None:
    answer_registration_check(worker, registered=False)
    worker.answer(JoinRequest, joined(7))
    worker.answer(SyncRequest, synced(SOME_WORK, delay_ms=300))
    (received,) = worker.take_events(Assigned)
    assert ClassicAssignmentDetails.checked_instance(received.protocol_details).delay_ms == 300
    assert worker.sent(JoinRequest) is None


def test_a_join_without_a_response_may_have_registered_the_static_member(worker: MemberDriver) -> None:
    answer_registration_check(worker, registered=False)
    worker.fail(JoinRequest)
    worker.advance_clock(1_000)
    worker.answer(JoinRequest, joined(7))
    worker.answer(SyncRequest, synced(SOME_WORK))
    assert worker.sent(JoinRequest) is not None


def test_a_static_member_whose_session_expired_checks_again_if_it_is_registered(worker: MemberDriver) -> None:
    settle(worker)
    worker.advance_clock(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    answer_registration_check(worker, registered=False)
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.member_id == ""


@pytest.mark.parametrize("answered", [True, False])
def test_the_registration_check_is_retried_if_the_coordinator_is_not_available(
    worker: MemberDriver, answered: bool
) -> None:
    worker.set_worker_state()
    if answered:
        worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.not_coordinator))
    else:
        worker.fail(HeartbeatRequest)
    assert not worker.sent_requests
    worker.advance_clock(1_000)
    assert worker.sent(HeartbeatRequest) is not None
    assert worker.sent(JoinRequest) is None


def test_only_the_assigned_jobs_of_a_previous_processs_assignment_are_used(worker: MemberDriver) -> None:
    answer_registration_check(worker)
    worker.answer(JoinRequest, joined(7))
    worker.answer(SyncRequest, synced(SOME_WORK, revoked=SOME_WORK, delay_ms=300_000))
    (received,) = worker.take_events(Assigned)
    assert received.jobs == SOME_WORK
    assert received.revoked == NO_JOBS
    assert ClassicAssignmentDetails.checked_instance(received.protocol_details).delay_ms == 0


def test_a_returning_leader_computes_nothing_for_a_generation_that_has_its_assignments(worker: MemberDriver) -> None:
    answer_registration_check(worker)
    rejoin_response = JoinResponse(
        error=ErrorCode.none,
        generation=GenerationId(7),
        protocol="compatible",
        leader=MemberId("me"),
        member_id=MemberId("me"),
        metadata_by_member={MemberId("me"): b""},
        skip_assignment=True,
    )
    worker.answer(JoinRequest, rejoin_response)
    assert not worker.take_events(AssignmentsRequested)
    assert worker.answer(SyncRequest, synced(SOME_WORK)).assignments == ()
    assert worker.sent(JoinRequest) is not None


def test_a_leader_that_computed_the_assignments_of_its_first_join_does_not_join_again(worker: MemberDriver) -> None:
    answer_registration_check(worker)
    worker.answer(JoinRequest, joined(1, leader="me", members={"me": b""}))
    (wanted,) = worker.take_events(AssignmentsRequested)
    assert RoundToken.checked_instance(wanted.token).generation == 1
    worker.feed(
        SendAssignments(token=wanted.token, computed=ComputedAssignments(config_offset=ConfigOffset(4), assignments={}))
    )
    worker.answer(SyncRequest, synced(SOME_WORK, delay_ms=300))
    (received,) = worker.take_events(Assigned)
    assert ClassicAssignmentDetails.checked_instance(received.protocol_details).delay_ms == 300
    assert worker.sent(JoinRequest) is None, "it computed the assignments for this process"


def test_a_leader_receives_the_instance_ids_of_the_members(worker: MemberDriver) -> None:
    worker_metadata = WorkerMetadata(url=WorkerUrl("http://w/"), config_offset=ConfigOffset(4))
    metadata = encode_metadata(ConnectProtocol.COMPATIBLE, worker_metadata)
    answer_registration_check(worker)
    response = JoinResponse(
        error=ErrorCode.none,
        generation=GenerationId(1),
        protocol="compatible",
        leader=MemberId("me"),
        member_id=MemberId("me"),
        metadata_by_member={MemberId("me"): metadata, MemberId("other"): metadata},
        instance_id_by_member={MemberId("me"): ONE},
    )
    worker.answer(JoinRequest, response)
    (wanted,) = worker.take_events(AssignmentsRequested)
    assert {member: report.instance_id for member, report in wanted.members.items()} == {"me": ONE, "other": None}


@pytest.mark.parametrize("request_type", [HeartbeatRequest, JoinRequest, SyncRequest])
def test_a_fenced_member_stops_everything_reports_its_instance_id_and_sends_no_more_requests(
    worker: MemberDriver, request_type: type[HeartbeatRequest | JoinRequest | SyncRequest]
) -> None:
    settle(worker)
    worker.advance_clock(1_000)
    if request_type is HeartbeatRequest:
        worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.fenced_instance_id))
    else:
        worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
        if request_type is SyncRequest:
            worker.answer(JoinRequest, joined(3))
            worker.answer(SyncRequest, SyncResponse(error=ErrorCode.fenced_instance_id))
        else:
            worker.answer(JoinRequest, JoinResponse(error=ErrorCode.fenced_instance_id))
    events = list(worker.herder_events)
    assert len(worker.take_events(MembershipLost)) == 1, "all jobs have to stop at once"
    (refused,) = [event for event in events if isinstance(event, MembershipRefused)]
    assert "group.instance.id=worker-1" in refused.reason
    worker.set_worker_state(NO_JOBS)
    worker.advance_clock(60_000)
    assert worker.sent(JoinRequest) is None
    assert not worker.sent_requests
