"""Heartbeats: what they contain, when they are sent, and what their responses change."""

import pytest

from coterie.member.connect.heartbeats import HEARTBEAT_INTERVAL_MIN_MS
from coterie.member.connect.messages import HeartbeatRequest
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import JOIN_EPOCH, Claims, ConfiguredJobs, HeartbeatResponse, SupportedAssignor
from coterie.nouns.ids import ConfigOffset, GroupEpoch, GroupId, InstanceId, LeaderEpoch, MemberEpoch, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import (
    Assigned,
    ConnectAssignmentDetails,
    LeaseRenewed,
    MembershipLost,
    MemberStateChanged,
)
from tests.member.connect.driving import (
    A0,
    A1,
    A2,
    INTERVAL_MS,
    LEASE_MS,
    ME,
    OTHER,
    SESSION_MS,
    SOME,
    MemberDriver,
    accepted,
)


def test_a_worker_joins_with_all_fields_and_no_jobs_when_the_herder_is_ready() -> None:
    worker = MemberDriver(instance_id=InstanceId("i"), worker_name="one", claims=A0)
    assert worker.sent == []
    worker.own()
    assert worker.heartbeat == HeartbeatRequest(
        group_id=GroupId("fleet"),
        member_id=ME,
        member_epoch=JOIN_EPOCH,
        request_number=1,
        instance_id=InstanceId("i"),
        rebalance_timeout_ms=60_000,
        client_assignors=(
            SupportedAssignor(name="cooperative", minimum_version=0, maximum_version=3, version=3, metadata=b"m"),
        ),
        owned=NO_JOBS,
        url=WorkerUrl("http://me"),
        name="one",
        config_offset=ConfigOffset(4),
        config_topic_id=bytes(16),
        claims=Claims(jobs=A0),
        draining=False,
        connection_grace_ms=2_000,
        response_timeout_ms=5_000,
    )


def test_a_worker_without_assignors_names_one_of_the_coordinator() -> None:
    worker = MemberDriver(assignors=(), server_assignor="cooperative")
    worker.own()
    assert (worker.heartbeat.server_assignor, worker.heartbeat.client_assignors) == ("cooperative", None)
    with pytest.raises(AssertionError, match="either"):
        MemberDriver(server_assignor="cooperative")


def test_until_the_first_target_each_heartbeat_is_a_join_whose_response_is_held(worker: MemberDriver) -> None:
    worker.own()
    assert worker.heartbeat.max_wait_ms == 0, "the response to the first join tells who leads"
    worker.answer(accepted(0, leader=OTHER, is_full=True))
    repeated = worker.heartbeat
    assert (repeated.member_epoch, repeated.owned, repeated.max_wait_ms) == (0, NO_JOBS, 1_000)
    assert repeated.rebalance_timeout_ms is not None


def test_a_repeated_join_that_the_coordinator_does_not_hold_is_followed_by_a_pause(worker: MemberDriver) -> None:
    worker.own()
    worker.answer(accepted(0, leader=OTHER, is_full=True))
    worker.answer(accepted(0))
    assert worker.sent == []
    worker.advance_clock(HEARTBEAT_INTERVAL_MIN_MS)
    assert worker.heartbeat.member_epoch == 0


def test_after_a_lost_response_a_repeated_join_is_not_held(worker: MemberDriver) -> None:
    worker.own()
    worker.answer(accepted(0, leader=OTHER, is_full=True))
    worker.fail()
    assert (worker.heartbeat.member_epoch, worker.heartbeat.max_wait_ms) == (0, 0)


def test_a_settled_heartbeat_is_held_and_contains_nothing_but_the_epoch(worker: MemberDriver) -> None:
    worker.join()
    worker.end_hold()
    small = HeartbeatRequest(
        group_id=GroupId("fleet"),
        member_id=ME,
        member_epoch=MemberEpoch(1),
        request_number=4,
        max_wait_ms=1_000,
        response_timeout_ms=1_000 + SESSION_MS // 6,
    )
    assert worker.heartbeat == small
    for _ in range(3):
        worker.end_hold()
        assert worker.count(HeartbeatRequest) == 1
        assert worker.heartbeat.owned is None


def test_a_hold_is_no_longer_than_a_sixth_of_the_session() -> None:
    worker = MemberDriver(coordinator_hold_max_ms=60_000)
    worker.join()
    assert worker.heartbeat.max_wait_ms == SESSION_MS // 6
    assert worker.heartbeat.response_timeout_ms == SESSION_MS // 3


def test_new_jobs_reach_the_herder_and_the_next_heartbeat_lists_them(worker: MemberDriver) -> None:
    worker.join(NO_JOBS)
    worker.answer(accepted(2, SOME))
    assert worker.take_events(Assigned) == [
        Assigned(
            member_id=ME,
            epoch=2,
            jobs=SOME,
            replaces_all=True,
            leader=OTHER,
            leader_url=WorkerUrl("http://other"),
            config_offset=ConfigOffset(4),
            protocol_details=ConnectAssignmentDetails(
                leader_epoch=LeaderEpoch(1),
                assignment_epoch=GroupEpoch(2),
                jobs_by_assignment_epoch={GroupEpoch(2): SOME},
            ),
        )
    ]
    assert (worker.heartbeat.member_epoch, worker.heartbeat.owned) == (2, SOME)


def test_jobs_that_the_herder_has_not_seen_yet_are_not_reported_as_stopped(worker: MemberDriver) -> None:
    worker.join(NO_JOBS)
    worker.answer(accepted(2, A0))
    worker.own(NO_JOBS)  # sent before the herder received the assignment
    assert worker.count(HeartbeatRequest) == 1
    worker.answer(accepted(2))
    assert worker.member.owned == A0
    worker.own(A0)
    worker.own(NO_JOBS)
    assert worker.heartbeat.owned == NO_JOBS, "the herder has seen the job, and it has stopped"


def test_a_revocation_names_the_jobs_to_stop_and_each_stop_is_acknowledged_at_once(worker: MemberDriver) -> None:
    worker.join(A0 | A1 | A2)
    worker.end_hold()
    worker.answer(accepted(1, A0))
    (assigned,) = worker.take_events(Assigned)
    assert (assigned.jobs, assigned.revoked) == (A0, A1 | A2)
    held = worker.heartbeat
    assert held.max_wait_ms > 0
    worker.own(A0 | A1)
    assert worker.count(HeartbeatRequest) == 2, "the held heartbeat is not cancelled"
    assert worker.heartbeat.owned == A0 | A1
    assert worker.heartbeat.client_assignors is not None, "all fields, because another heartbeat is unanswered"
    assert worker.heartbeat.max_wait_ms > 0, "the coordinator may hold this one until the next job stops"
    worker.own(A0)
    assert worker.count(HeartbeatRequest) == 2, "the response to the first one is on the way"
    worker.answer(accepted(1), oldest=True)
    assert worker.count(HeartbeatRequest) == 2
    assert worker.heartbeat.owned == A0
    worker.answer(accepted(1), oldest=True)
    worker.answer(accepted(2, A0, leader=OTHER, is_full=True))
    last = worker.heartbeat
    assert (last.member_epoch, last.owned) == (2, None)
    assert last.client_assignors is None


def test_only_the_response_to_the_newest_heartbeat_has_an_effect(worker: MemberDriver) -> None:
    worker.join(A0 | A1)
    worker.end_hold()
    worker.answer(accepted(1, A0))
    worker.own(A0)
    worker.events.clear()
    worker.advance_clock(100)
    worker.answer(accepted(3, A2), oldest=True)
    assert worker.take_events(Assigned) == []
    worker.answer(accepted(2, A0, leader=OTHER, is_full=True))
    assert [(one.epoch, one.jobs) for one in worker.take_events(Assigned)] == [(2, A0)]


def test_the_response_to_an_older_heartbeat_renews_the_lease(worker: MemberDriver) -> None:
    worker.join(A0 | A1)
    worker.end_hold()
    worker.own(A0)
    worker.events.clear()
    worker.answer(accepted(1), oldest=True)
    assert worker.take_events(LeaseRenewed) == [
        LeaseRenewed(lease_ends_ms=worker.now_ms + LEASE_MS, session_timeout_ms=SESSION_MS)
    ]


def test_a_new_leader_is_reported_although_the_jobs_are_the_same(worker: MemberDriver) -> None:
    worker.join()
    worker.answer(accepted(1, leader=ME))
    (assigned,) = worker.take_events(Assigned)
    assert (assigned.leader, assigned.leader_url, assigned.jobs, assigned.revoked) == (ME, "http://me", SOME, NO_JOBS)


def test_the_leader_sends_the_configured_jobs_at_once_and_again_only_when_they_change(worker: MemberDriver) -> None:
    worker.configure(SOME)
    assert worker.join(leader=ME).configured is None, "the member did not know that it leads"
    worker.end_hold()
    assert worker.heartbeat.configured is None
    worker.configure(SOME | A1, 5)
    assert worker.count(HeartbeatRequest) == 2
    reported = ConfiguredJobs(config_offset=ConfigOffset(5), jobs=SOME | A1)
    assert worker.heartbeat.configured == reported
    worker.fail()
    assert worker.heartbeat.configured == reported
    worker.answer(accepted(1, SOME, leader=ME, is_full=True))
    assert worker.heartbeat.configured is None


def test_the_leader_reports_the_configured_jobs_in_the_heartbeat_after_the_join(worker: MemberDriver) -> None:
    worker.configure(SOME)
    worker.own()
    worker.answer(accepted(0, leader=ME, is_full=True))
    assert worker.heartbeat.configured == ConfiguredJobs(config_offset=ConfigOffset(4), jobs=SOME)


def test_a_leader_that_is_appointed_again_does_not_send_the_jobs_of_its_former_appointment(
    worker: MemberDriver,
) -> None:
    worker.join(leader=ME)
    worker.configure(SOME)
    worker.answer(accepted(1), oldest=True)
    worker.answer(accepted(1, leader=OTHER))
    worker.answer(accepted(1, leader=ME, leader_epoch=3))
    assert worker.heartbeat.configured is None, "another leader may have reported newer ones"
    worker.configure(SOME | A1, 7, leader_epoch=3)
    assert worker.heartbeat.configured == ConfiguredJobs(config_offset=ConfigOffset(7), jobs=SOME | A1)


def test_only_the_leader_sends_configured_jobs(worker: MemberDriver) -> None:
    worker.configure(SOME)
    worker.join()
    assert worker.heartbeat.configured is None
    worker.configure(SOME | A1, 5)
    assert worker.count(HeartbeatRequest) == 1
    worker.answer(accepted(1, leader=ME))
    assert worker.heartbeat.configured == ConfiguredJobs(config_offset=ConfigOffset(5), jobs=SOME | A1)


def test_a_drain_is_reported_at_once_and_a_config_offset_with_the_next_heartbeat(worker: MemberDriver) -> None:
    worker.join()
    worker.end_hold()
    worker.own(SOME, draining=True)
    assert (worker.count(HeartbeatRequest), worker.heartbeat.draining) == (2, True)
    worker.answer(accepted(1), oldest=True)
    worker.answer(accepted(1, SOME, leader=OTHER, is_full=True))
    worker.own(SOME, draining=True, config_offset=7)
    assert (worker.count(HeartbeatRequest), worker.heartbeat.config_offset) == (1, None)
    worker.end_hold()
    assert (worker.heartbeat.config_offset, worker.heartbeat.draining) == (7, None)


def test_a_lost_response_is_followed_at_once_by_all_fields_without_a_hold(worker: MemberDriver) -> None:
    worker.join()
    worker.end_hold()
    number = worker.heartbeat.request_number
    worker.fail()
    again = worker.heartbeat
    assert (again.request_number, again.max_wait_ms, again.owned) == (number + 1, 0, SOME)
    assert again.client_assignors is not None
    worker.fail()
    assert worker.count(HeartbeatRequest) == 0
    worker.advance_clock(100)
    worker.fail()
    worker.advance_clock(199)
    assert worker.count(HeartbeatRequest) == 0
    worker.advance_clock(1)
    assert worker.count(HeartbeatRequest) == 1
    assert worker.take_events(MembershipLost) == []


def test_a_stale_request_stops_nothing_and_is_followed_by_all_fields(worker: MemberDriver) -> None:
    worker.join()
    worker.end_hold()
    worker.refuse(ConnectErrorCode.STALE_REQUEST)
    assert worker.take_events(MembershipLost) == []
    assert (worker.heartbeat.owned, worker.heartbeat.member_epoch) == (SOME, 1)


@pytest.mark.parametrize(
    "error",
    [
        ConnectErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ConnectErrorCode.COORDINATOR_NOT_AVAILABLE,
        ConnectErrorCode.NOT_COORDINATOR,
        ConnectErrorCode.UNKNOWN_SERVER_ERROR,
    ],
)
def test_a_coordinator_that_is_not_ready_is_asked_again_after_a_back_off(
    worker: MemberDriver, error: ConnectErrorCode
) -> None:
    worker.join()
    worker.refuse(error)
    assert worker.count(HeartbeatRequest) == 0
    assert worker.logged == [
        f"The group's coordinator responded to a heartbeat with {error.name}; this worker sends another one"
    ]
    worker.advance_clock(100)
    assert worker.heartbeat.owned == SOME
    assert worker.take_events(MembershipLost) == []


def test_a_coordinator_that_holds_nothing_does_not_make_the_member_busy(worker: MemberDriver) -> None:
    worker.join()
    answers = 0
    for _ in range(1_000):
        worker.advance_clock(1)
        while worker.count(HeartbeatRequest):
            worker.answer(accepted(1))
            answers += 1
    assert 8 <= answers <= 12


def test_a_member_that_asks_for_no_hold_sends_a_heartbeat_each_interval() -> None:
    worker = MemberDriver(coordinator_hold_max_ms=0)
    worker.join()
    answers = 0
    for _ in range(10 * INTERVAL_MS // 100):
        worker.advance_clock(100)
        while worker.count(HeartbeatRequest):
            assert worker.heartbeat.max_wait_ms == 0
            worker.answer(accepted(1))
            answers += 1
    assert answers == 10
    worker.own(NO_JOBS)
    assert worker.heartbeat.owned == NO_JOBS, "a stop is reported at once"


@pytest.mark.parametrize("interval_ms", [-(2**31), 0, 1, 2**31 - 1])
def test_a_senseless_interval_neither_makes_the_member_busy_nor_ends_its_lease(interval_ms: int) -> None:
    worker = MemberDriver(coordinator_hold_max_ms=0)
    worker.join()
    worker.events.clear()
    answers = 0
    for _ in range(20 * SESSION_MS // 100):
        worker.advance_clock(100)
        while worker.count(HeartbeatRequest):
            worker.answer(HeartbeatResponse(member_epoch=MemberEpoch(1), heartbeat_interval_ms=interval_ms))
            answers += 1
    assert 40 <= answers <= 20 * SESSION_MS // 100
    assert worker.take_events(MembershipLost) == []


def test_the_member_state_follows_join_revocation_and_acknowledgement(worker: MemberDriver) -> None:
    def states() -> list[MemberState]:
        return [one.state for one in worker.take_events(MemberStateChanged)]

    worker.own()
    assert states() == []
    worker.answer(accepted(0, leader=OTHER, is_full=True))
    assert states() == [MemberState.PREPARING_REBALANCE]
    worker.advance_clock(INTERVAL_MS)
    worker.answer(accepted(1, A0 | A1, is_full=True))
    assert states() == [MemberState.STABLE]
    worker.own(A0 | A1)
    worker.end_hold()
    worker.answer(accepted(1, A0))
    assert states() == [MemberState.PREPARING_REBALANCE]
    worker.own(A0)
    assert states() == [MemberState.COMPLETING_REBALANCE]
    worker.answer(accepted(2, A0, leader=OTHER, is_full=True))
    assert states() == [MemberState.STABLE]
