"""A rebalance: joining, computing assignments, syncing; the effect of an eager protocol and of malformed bytes."""

from dataclasses import replace

import pytest

from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    SyncRequest,
    SyncResponse,
)
from coterie.member.classic.state import AssignmentReceived
from coterie.member.events import MemberEnded
from coterie.nouns.ids import ConfigOffset, GenerationId, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import (
    Assigned,
    AssignmentChange,
    AssignmentsRequested,
    ComputedAssignments,
    Leave,
    MembershipLost,
    MemberStateChanged,
    Rejoin,
    SendAssignments,
    StopAllBeforeJoin,
)
from coterie.wire.connect import ClassicAssignmentDetails, ConnectProtocol, RoundToken, WorkerAssignment, WorkerMetadata
from coterie.wire.connect_bytes import decode_version_and_assignment, decode_version_and_metadata, encode_metadata
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import REBALANCE_INTERVAL_MS, SOME_WORK, MemberDriver, joined, synced

EAGER, COMPATIBLE, SESSIONED, STATIC = ConnectProtocol


ALL = pytest.mark.parametrize("protocol", list(ConnectProtocol))


CLAIMS = Jobs(tasks=frozenset({ConnectorTaskId(ConnectorName("a-b"), 7)}))


def metadata_of_join(request: JoinRequest) -> WorkerMetadata:
    return decode_version_and_metadata(request.protocols[0][1])[1]


def owned_jobs_of_join(request: JoinRequest | None) -> Jobs:
    """The jobs that a join reports as owned."""
    assert request is not None
    allocation = metadata_of_join(request).allocation
    assert allocation is not None
    return allocation.assigned


# -- joining and syncing ----------------------------------------------------------------------------------------------


COORDINATOR_UNAVAILABLE = [
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_load_in_progress,
]


def test_no_request_is_sent_before_the_herder_reports_its_jobs(worker: MemberDriver) -> None:
    worker.feed(Rejoin(reason="test"))
    worker.advance_clock(60_000)
    assert not worker.sent_requests


def test_a_new_member_receives_its_id_and_joins_with_it_at_once(worker: MemberDriver) -> None:
    worker.set_worker_state()
    request = worker.answer(JoinRequest, JoinResponse(error=ErrorCode.member_id_required, member_id=MemberId("me")))
    assert request.member_id == ""
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.member_id == "me"


def test_a_follower_syncs_at_once_and_delivers_its_assignment(worker: MemberDriver) -> None:
    worker.set_worker_state()
    worker.answer(JoinRequest, joined(generation=7))
    request = worker.answer(SyncRequest, synced(SOME_WORK, delay_ms=300))
    assert request.generation == 7
    assert request.assignments == ()
    (assigned,) = worker.take_events(Assigned)
    assert assigned.epoch == 7
    assert assigned.jobs == SOME_WORK
    assert ClassicAssignmentDetails.checked_instance(assigned.protocol_details).delay_ms == 300


def test_a_leader_syncs_what_its_herder_computed(worker: MemberDriver) -> None:
    metadata = encode_metadata(
        ConnectProtocol.COMPATIBLE,
        WorkerMetadata(url=WorkerUrl("http://o/"), config_offset=worker.member.worker_state.config_offset),
    )
    worker.set_worker_state()
    worker.answer(JoinRequest, joined(3, leader="me", members={"me": metadata, "other": metadata}))
    (wanted,) = worker.take_events(AssignmentsRequested)
    assert sorted(wanted.members) == ["me", "other"]
    assert worker.sent(SyncRequest) is None
    assert isinstance(wanted.token, RoundToken)
    computed = ComputedAssignments(
        config_offset=worker.member.worker_state.config_offset,
        assignments={MemberId("me"): AssignmentChange(assigned=SOME_WORK)},
    )
    worker.feed(SendAssignments(token=replace(wanted.token, generation=GenerationId(2)), computed=computed))
    assert worker.sent(SyncRequest) is None, "assignments for another generation are dropped"
    worker.feed(SendAssignments(token=wanted.token, computed=computed))
    request = worker.sent(SyncRequest)
    assert request is not None
    ((member_id, sent),) = request.assignments
    assert (member_id, decode_version_and_assignment(sent)[1]) == (
        "me",
        WorkerAssignment(
            leader=MemberId("me"),
            leader_url=WorkerUrl("http://w:8083/"),
            config_offset=worker.member.worker_state.config_offset,
            assigned=SOME_WORK,
        ),
    )


def test_a_rejoin_reports_the_owned_jobs_and_does_not_end_the_membership(worker: MemberDriver) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="the delay is over"))
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.reason == "the delay is over"
    allocation = metadata_of_join(request).allocation
    assert allocation is not None
    assert allocation.assigned == SOME_WORK
    assert not worker.take_events(MembershipLost)


def test_a_rejoin_requested_during_a_rebalance_happens_after_it(worker: MemberDriver) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="first"))
    assert sum(isinstance(send.request, JoinRequest) for send in worker.sent_requests) == 1
    worker.answer(JoinRequest, joined(2))
    worker.feed(Rejoin(reason="second"))
    worker.answer(SyncRequest, synced())
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.reason == "second"


@pytest.mark.parametrize("owned_changes", [False, True])
def test_a_rejoin_during_a_parked_join_needs_no_other_join_unless_the_owned_jobs_changed(
    worker: MemberDriver, owned_changes: bool
) -> None:
    """A worker that joined after it released its revoked jobs also requests a rejoin for that release."""
    worker.settle()
    worker.feed(Rejoin(reason="first"))
    if owned_changes:
        worker.set_worker_state(NO_JOBS)
    worker.feed(Rejoin(reason="second"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, synced())
    assert (worker.sent(JoinRequest) is not None) is owned_changes


@pytest.mark.parametrize("error", [ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation])
def test_a_sync_of_an_ended_rebalance_leads_to_the_next_join(worker: MemberDriver, error: ErrorCode) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="test"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, SyncResponse(error=error))
    assert worker.sent(JoinRequest) is not None
    assert not worker.take_events(MembershipLost)


@pytest.mark.parametrize("error", COORDINATOR_UNAVAILABLE)
def test_a_join_is_retried_with_the_same_member_id_while_the_coordinator_is_not_available(
    worker: MemberDriver, error: ErrorCode
) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="test"))
    worker.answer(JoinRequest, JoinResponse(error=error))
    assert worker.sent(JoinRequest) is None, "not before the retry delay"
    worker.advance_clock(1_000)
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.member_id == "me"
    assert not worker.take_events(MembershipLost)


@ALL
def test_the_herder_receives_the_selected_protocol(worker: MemberDriver, protocol: ConnectProtocol) -> None:
    metadata = encode_metadata(protocol, WorkerMetadata(url=WorkerUrl("http://w/"), config_offset=ConfigOffset(4)))
    worker.set_worker_state()
    worker.answer(JoinRequest, joined(leader="me", members={"me": metadata}, protocol=protocol))
    (wanted,) = worker.take_events(AssignmentsRequested)
    assert RoundToken.checked_instance(wanted.token).protocol is protocol
    computed = ComputedAssignments(
        config_offset=ConfigOffset(4), assignments={MemberId("me"): AssignmentChange(assigned=SOME_WORK)}
    )
    worker.feed(SendAssignments(token=wanted.token, computed=computed))
    request = worker.sent(SyncRequest)
    assert request is not None
    assert request.protocol == protocol.wire_name
    worker.answer(SyncRequest, SyncResponse(error=ErrorCode.none, assignment=dict(request.assignments)[MemberId("me")]))
    (received,) = worker.take_events(Assigned)
    assert received == Assigned(
        member_id=MemberId("me"),
        epoch=1,
        jobs=SOME_WORK,
        replaces_all=protocol is EAGER,
        leader=MemberId("me"),
        leader_url=WorkerUrl("http://w:8083/"),
        config_offset=ConfigOffset(4),
        protocol_details=ClassicAssignmentDetails(protocol=protocol),
    )


# -- a join that waits for stops --------------------------------------------------------------------------------------


def revoke_all_jobs(worker: MemberDriver) -> None:
    """The leader revokes SOME_WORK; then another member, which has released its jobs, triggers a rebalance."""
    worker.settle()
    worker.feed(Rejoin(reason="test"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, synced(revoked=SOME_WORK))
    worker.advance_clock(REBALANCE_INTERVAL_MS)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))


def test_a_member_joins_the_next_rebalance_when_its_revoked_jobs_have_stopped(
    short_heartbeat_worker: MemberDriver,
) -> None:
    revoke_all_jobs(short_heartbeat_worker)
    assert short_heartbeat_worker.sent(JoinRequest) is None
    short_heartbeat_worker.advance_clock(REBALANCE_INTERVAL_MS)
    assert short_heartbeat_worker.heartbeat_count() == 1, "its heartbeats continue and keep its membership"
    short_heartbeat_worker.set_worker_state(NO_JOBS)
    join = short_heartbeat_worker.sent(JoinRequest)
    assert join is not None
    allocation = decode_version_and_metadata(join.protocols[0][1])[1].allocation
    assert allocation is not None
    assert allocation.assigned == NO_JOBS


def test_a_join_of_a_static_group_waits_only_shortly_for_a_slow_stop(worker: MemberDriver) -> None:
    worker.settle(SOME_WORK, protocol=STATIC)
    worker.feed(Rejoin(reason="test"))
    worker.answer(JoinRequest, joined(2, protocol=STATIC))
    worker.answer(SyncRequest, synced(revoked=SOME_WORK, protocol=STATIC))
    worker.feed(Rejoin(reason="another job was released"))
    worker.advance_clock(499)
    assert worker.sent(JoinRequest) is None
    worker.advance_clock(1)
    assert owned_jobs_of_join(worker.sent(JoinRequest)) == SOME_WORK


@pytest.mark.parametrize(("rebalance_timeout_ms", "held_ms"), [(60_000, 2_000), (10_000, 2_000), (3_000, 1_500)])
def test_a_join_waits_only_for_a_limited_time_for_a_slow_stop(
    short_heartbeat_worker: MemberDriver, rebalance_timeout_ms: int, held_ms: int
) -> None:
    short_heartbeat_worker.member.settings = replace(
        short_heartbeat_worker.member.settings, rebalance_timeout_ms=rebalance_timeout_ms, next_round_window_ms=31_000
    )
    revoke_all_jobs(short_heartbeat_worker)
    short_heartbeat_worker.advance_clock(held_ms - REBALANCE_INTERVAL_MS - 1)
    assert short_heartbeat_worker.sent(JoinRequest) is None
    short_heartbeat_worker.advance_clock(1)
    join = short_heartbeat_worker.sent(JoinRequest)
    assert join is not None
    allocation = decode_version_and_metadata(join.protocols[0][1])[1].allocation
    assert allocation is not None
    assert allocation.assigned == SOME_WORK, "it still runs, so no other member may be assigned it"


# -- eager ------------------------------------------------------------------------------------------------------------


def test_in_an_eager_group_everything_has_stopped_before_a_member_joins(worker: MemberDriver) -> None:
    worker.settle(protocol=EAGER)
    worker.advance_clock(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    assert worker.sent(JoinRequest) is None
    assert worker.take_events(StopAllBeforeJoin) == [StopAllBeforeJoin()]
    worker.advance_clock(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    worker.set_worker_state(Jobs(tasks=SOME_WORK.tasks))
    assert worker.sent(JoinRequest) is None, "a task still runs"
    assert not worker.take_events(MembershipLost), "the membership is kept meanwhile"
    worker.set_worker_state(NO_JOBS)
    assert worker.sent(JoinRequest) is not None


def test_a_worker_that_joined_with_jobs_stops_them_before_the_join_that_follows_an_eager_vote(
    worker: MemberDriver,
) -> None:
    worker.settle(protocol=STATIC)
    worker.feed(Rejoin(reason="test"))
    worker.answer(JoinRequest, joined(2, protocol=EAGER))
    worker.answer(SyncRequest, SyncResponse(error=ErrorCode.rebalance_in_progress))
    assert worker.sent(JoinRequest) is None
    assert worker.take_events(StopAllBeforeJoin)
    worker.set_worker_state(NO_JOBS)
    assert worker.sent(JoinRequest) is not None


def test_a_join_waits_for_just_assigned_jobs_to_stop_though_the_herder_last_reported_none(
    worker: MemberDriver,
) -> None:
    worker.set_worker_state()
    worker.answer(JoinRequest, joined(protocol=EAGER))
    worker.answer(SyncRequest, synced(SOME_WORK, protocol=EAGER))
    worker.set_worker_state(NO_JOBS)  # The herder read a config line, and has not applied its assignment yet.
    worker.feed(Rejoin(reason="test"))
    assert worker.sent(JoinRequest) is None
    worker.set_worker_state(SOME_WORK)
    assert worker.sent(JoinRequest) is None
    worker.set_worker_state(NO_JOBS)
    assert worker.sent(JoinRequest) is not None


def test_a_join_reports_two_assignments_that_the_herder_has_not_applied_yet(worker: MemberDriver) -> None:
    first, second = (Jobs(frozenset({ConnectorName(name)})) for name in "ab")
    worker.settle(NO_JOBS)
    worker.feed(Rejoin(reason="the set of jobs has changed"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, synced(first))
    worker.feed(Rejoin(reason="the set of jobs has changed"))
    worker.answer(JoinRequest, joined(3))
    worker.answer(SyncRequest, synced(second))
    worker.set_worker_state(NO_JOBS)  # The herder sent this before it applied either assignment.
    worker.feed(Rejoin(reason="the set of jobs has changed"))
    assert owned_jobs_of_join(worker.sent(JoinRequest)) == first | second
    worker.answer(JoinRequest, joined(4))
    worker.answer(SyncRequest, synced(NO_JOBS))
    worker.set_worker_state(first)
    worker.set_worker_state(first | second)
    worker.set_worker_state(second)  # Both were applied, and the herder has released the first since.
    worker.feed(Rejoin(reason="the revoked jobs have been released"))
    assert owned_jobs_of_join(worker.sent(JoinRequest)) == second


def test_after_the_group_leaves_eager_a_join_no_longer_stops_the_jobs(worker: MemberDriver) -> None:
    worker.settle(protocol=EAGER)
    worker.feed(Rejoin(reason="test"))
    worker.set_worker_state(NO_JOBS)
    worker.settle(protocol=STATIC, generation=2)
    worker.feed(Rejoin(reason="test"))
    assert worker.sent(JoinRequest) is not None
    assert worker.take_events(MemberStateChanged) == [MemberStateChanged(state=MemberState.PREPARING_REBALANCE)]


def test_a_member_removed_while_it_stops_jobs_stops_them_and_joins_as_a_new_one(
    worker: MemberDriver,
) -> None:
    worker.settle(protocol=EAGER)
    worker.feed(Rejoin(reason="test"))
    worker.advance_clock(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    assert worker.take_events(MembershipLost)
    worker.set_worker_state(NO_JOBS)
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.member_id == ""


def test_a_member_can_leave_while_it_stops_for_an_eager_rebalance(worker: MemberDriver) -> None:
    worker.settle(protocol=EAGER)
    worker.feed(Rejoin(reason="test"))
    worker.feed(Leave(reason="SIGTERM"))
    worker.set_worker_state(NO_JOBS)
    assert worker.sent(JoinRequest) is None
    worker.advance_clock(1_000)
    assert worker.take_events(MemberEnded)


@pytest.mark.parametrize("leads", [False, True])
def test_a_returning_static_member_applies_the_whole_assignment_of_an_eager_group(leads: bool) -> None:
    worker = MemberDriver(InstanceId("one"))
    worker.set_worker_state()
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.fenced_instance_id))
    response = joined(7, protocol=EAGER, leader="me" if leads else "x")
    worker.answer(JoinRequest, replace(response, skip_assignment=leads))
    worker.answer(SyncRequest, synced(SOME_WORK, protocol=EAGER))
    (received,) = worker.take_events(Assigned)
    assert received.jobs == SOME_WORK
    worker.set_worker_state(SOME_WORK)
    worker.set_worker_state(NO_JOBS)
    assert (worker.sent(JoinRequest) is not None) is leads, (
        "a returning leader does not have the assignments that it computed"
    )


# -- malformed bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("malformed", [b"", b"\xff\xff", b"\x00\x03\x00", b"\x00\x01\x00\x09http"])
@ALL
def test_a_member_with_malformed_metadata_is_excluded_and_the_others_are_not(
    worker: MemberDriver, protocol: ConnectProtocol, malformed: bytes
) -> None:
    good = encode_metadata(protocol, WorkerMetadata(url=WorkerUrl("http://w/"), config_offset=ConfigOffset(4)))
    worker.set_worker_state()
    worker.answer(JoinRequest, joined(leader="me", members={"me": good, "other": malformed}, protocol=protocol))
    (wanted,) = worker.take_events(AssignmentsRequested)
    assert list(wanted.members) == ["me"]
    assert RoundToken.checked_instance(wanted.token).undecodable_members == {"other"}
    assert any("The metadata of member other cannot be decoded" in text for text in worker.log_warnings)


@ALL
def test_an_excluded_member_stops_everything_and_joins_again_after_a_delay(
    worker: MemberDriver, protocol: ConnectProtocol
) -> None:
    worker.settle(protocol=protocol)
    worker.feed(Rejoin(reason="test"))
    worker.set_worker_state(NO_JOBS if protocol is EAGER else SOME_WORK)
    worker.answer(JoinRequest, joined(2, protocol=protocol))
    worker.answer(SyncRequest, SyncResponse(error=ErrorCode.none, assignment=b""))
    (lost,) = worker.take_events(MembershipLost)
    assert "assigned nothing to this worker" in lost.reason
    worker.set_worker_state(NO_JOBS)
    assert worker.sent(JoinRequest) is None, "not before the retry delay"
    worker.advance_clock(1_000)
    assert worker.sent(JoinRequest) is not None


@pytest.mark.parametrize("malformed", [b"\xff\xff", b"\x00\x01\x00", b"\x00\x01\x00\x09\x00\x00"])
@ALL
def test_a_malformed_assignment_is_requested_again_and_the_jobs_keep_running(
    worker: MemberDriver, protocol: ConnectProtocol, malformed: bytes
) -> None:
    worker.settle(protocol=protocol)
    worker.feed(Rejoin(reason="test"))
    worker.set_worker_state(NO_JOBS if protocol is EAGER else SOME_WORK)
    worker.answer(JoinRequest, joined(2, protocol=protocol))
    worker.answer(SyncRequest, SyncResponse(error=ErrorCode.none, assignment=malformed))
    assert not worker.take_events(Assigned)
    assert worker.sent(JoinRequest) is None, "not before the retry delay"
    worker.advance_clock(1_000)
    worker.settle(protocol=protocol, generation=3)
    assert worker.sent(JoinRequest) is None
    assert not worker.take_events(MembershipLost)


@pytest.mark.parametrize(
    "protocol", [protocol for protocol in ConnectProtocol if protocol is not ConnectProtocol.EAGER]
)
def test_each_join_after_a_malformed_assignment_has_new_metadata_and_triggers_a_rebalance(
    protocol: ConnectProtocol,
) -> None:
    """A follower's join with unchanged metadata gets the current generation, and so the same malformed assignment."""
    worker = MemberDriver(offers=protocol)
    worker.set_worker_state(SOME_WORK)
    sent_protocols = []
    for _ in range(3):
        join = worker.answer(JoinRequest, joined(1, protocol=protocol))
        sent_protocols.append(join.protocols)
        allocation = decode_version_and_metadata(join.protocols[0][1])[1].allocation
        assert allocation is not None
        assert allocation.assigned == SOME_WORK
        worker.answer(SyncRequest, SyncResponse(error=ErrorCode.none, assignment=b"\x00\x01nonsense"))
        worker.advance_clock(1_000)
    assert len(set(sent_protocols)) == 3
    worker.answer(JoinRequest, joined(2, protocol=protocol))
    worker.answer(SyncRequest, synced(revoked=SOME_WORK, protocol=protocol))
    assert isinstance(worker.member.round, AssignmentReceived)
    assert worker.member.malformed_assignment_count == 0
