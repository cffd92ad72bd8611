"""A round: joining, having the assignments computed, syncing; what an eager vote and malformed bytes change."""

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
from coterie.member.classic.state import Settled
from coterie.member.events import Left
from coterie.nouns.ids import ConfigOffset, Generation, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import (
    Assigned,
    AssignmentWanted,
    Computed,
    Install,
    Leave,
    Lost,
    MemberAssignment,
    MemberState,
    MemberStateChanged,
    MustReleaseAll,
    Rejoin,
)
from coterie.wire.connect import ConnectProtocol, RoundResult, RoundToken, WorkerAssignment, WorkerMetadata
from coterie.wire.connect_bytes import decode_assignment, decode_metadata, encode_metadata
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import OFTEN_MS, SOME_WORK, Worker, joined, synced

EAGER, COMPATIBLE, SESSIONED, STATIC = ConnectProtocol


ALL = pytest.mark.parametrize("protocol", list(ConnectProtocol))


CLAIMS = Jobs(tasks=frozenset({ConnectorTaskId(ConnectorName("a-b"), 7)}))


def said(request: JoinRequest) -> WorkerMetadata:
    return decode_metadata(request.protocols[0][1])[1]


def owned_in(request: JoinRequest | None) -> Jobs:
    """The jobs that a join reports as owned."""
    assert request is not None
    allocation = said(request).allocation
    assert allocation is not None
    return allocation.assigned


# -- joining and syncing ----------------------------------------------------------------------------------------------


COORDINATOR_AWAY = [
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_load_in_progress,
]


def test_nothing_is_asked_before_the_herder_has_said_what_it_runs(worker: Worker) -> None:
    worker.feed(Rejoin(reason="impatience"))
    worker.pass_time(60_000)
    assert not worker.out


def test_a_new_member_learns_its_id_and_joins_with_it_at_once(worker: Worker) -> None:
    worker.subscribe()
    asked = worker.answer(JoinRequest, JoinResponse(error=ErrorCode.member_id_required, member_id=MemberId("me")))
    assert asked.member_id == ""
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.member_id == "me"


def test_a_follower_syncs_at_once_and_hands_its_assignment_over(worker: Worker) -> None:
    worker.subscribe()
    worker.answer(JoinRequest, joined(generation=7))
    request = worker.answer(SyncRequest, synced(SOME_WORK, delay_ms=300))
    assert request.generation == 7
    assert request.assignments == ()
    (delivered,) = worker.heard(Assigned)
    assert delivered.epoch == 7
    assert delivered.jobs == SOME_WORK
    assert RoundResult.of(delivered.token).delay_ms == 300


def test_a_leader_syncs_what_its_herder_computed(worker: Worker) -> None:
    metadata = encode_metadata(
        ConnectProtocol.COMPATIBLE,
        WorkerMetadata(url=WorkerUrl("http://o/"), config_offset=worker.member.subscription.config_offset),
    )
    worker.subscribe()
    worker.answer(JoinRequest, joined(3, leader="me", members={"me": metadata, "other": metadata}))
    (wanted,) = worker.heard(AssignmentWanted)
    assert sorted(wanted.members) == ["me", "other"]
    assert worker.sent(SyncRequest) is None
    assert isinstance(wanted.token, RoundToken)
    computed = Computed(
        config_offset=worker.member.subscription.config_offset,
        assignments={MemberId("me"): MemberAssignment(assigned=SOME_WORK)},
    )
    worker.feed(Install(token=replace(wanted.token, generation=Generation(2)), computed=computed))
    assert worker.sent(SyncRequest) is None, "an answer for another generation is dropped"
    worker.feed(Install(token=wanted.token, computed=computed))
    request = worker.sent(SyncRequest)
    assert request is not None
    ((member_id, sent),) = request.assignments
    assert (member_id, decode_assignment(sent)[1]) == (
        "me",
        WorkerAssignment(
            leader=MemberId("me"),
            leader_url=WorkerUrl("http://w:8083/"),
            config_offset=worker.member.subscription.config_offset,
            assigned=SOME_WORK,
        ),
    )


def test_the_next_join_says_what_is_owned_and_the_work_goes_on(worker: Worker) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="the delay is over"))
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.reason == "the delay is over"
    allocation = said(request).allocation
    assert allocation is not None
    assert allocation.assigned == SOME_WORK
    assert not worker.heard(Lost)


def test_a_wish_that_comes_during_a_round_is_granted_after_it(worker: Worker) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="first"))
    assert sum(isinstance(send.request, JoinRequest) for send in worker.out) == 1
    worker.answer(JoinRequest, joined(2))
    worker.feed(Rejoin(reason="second"))
    worker.answer(SyncRequest, synced())
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.reason == "second"


@pytest.mark.parametrize("says_more", [False, True])
def test_a_wish_while_the_join_is_out_is_granted_by_that_round_unless_there_is_more_to_say(
    worker: Worker, says_more: bool
) -> None:
    """A worker that joins as soon as it has released what was revoked asks for a round for that, too."""
    worker.settle()
    worker.feed(Rejoin(reason="first"))
    if says_more:
        worker.subscribe(NO_JOBS)
    worker.feed(Rejoin(reason="second"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, synced())
    assert (worker.sent(JoinRequest) is not None) is says_more


@pytest.mark.parametrize("error", [ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation])
def test_a_sync_of_a_round_that_is_over_leads_to_the_next_join(worker: Worker, error: ErrorCode) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="a wish"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, SyncResponse(error=error))
    assert worker.sent(JoinRequest) is not None
    assert not worker.heard(Lost)


@pytest.mark.parametrize("error", COORDINATOR_AWAY)
def test_a_coordinator_that_is_away_is_asked_again_by_the_same_member(worker: Worker, error: ErrorCode) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="a wish"))
    worker.answer(JoinRequest, JoinResponse(error=error))
    assert worker.sent(JoinRequest) is None, "not at once"
    worker.pass_time(1_000)
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.member_id == "me"
    assert not worker.heard(Lost)


@ALL
def test_the_herder_is_told_what_the_group_has_voted_for(worker: Worker, protocol: ConnectProtocol) -> None:
    metadata = encode_metadata(protocol, WorkerMetadata(url=WorkerUrl("http://w/"), config_offset=ConfigOffset(4)))
    worker.subscribe()
    worker.answer(JoinRequest, joined(leader="me", members={"me": metadata}, protocol=protocol))
    (wanted,) = worker.heard(AssignmentWanted)
    assert RoundToken.of(wanted.token).protocol is protocol
    computed = Computed(
        config_offset=ConfigOffset(4), assignments={MemberId("me"): MemberAssignment(assigned=SOME_WORK)}
    )
    worker.feed(Install(token=wanted.token, computed=computed))
    request = worker.sent(SyncRequest)
    assert request is not None
    assert request.protocol == protocol.wire_name
    worker.answer(SyncRequest, SyncResponse(error=ErrorCode.none, assignment=dict(request.assignments)[MemberId("me")]))
    (received,) = worker.heard(Assigned)
    assert received == Assigned(
        member_id=MemberId("me"),
        epoch=1,
        jobs=SOME_WORK,
        is_whole=protocol is EAGER,
        leader=MemberId("me"),
        leader_url=WorkerUrl("http://w:8083/"),
        config_offset=ConfigOffset(4),
        token=RoundResult(protocol=protocol),
    )


# -- a join that waits for stops --------------------------------------------------------------------------------------


def told_to_give_back(worker: Worker) -> None:
    """It is told to give SOME_WORK back, and then another member, which has given back its own, begins a round."""
    worker.settle()
    worker.feed(Rejoin(reason="a wish"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, synced(revoked=SOME_WORK))
    worker.pass_time(OFTEN_MS)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))


def test_it_joins_the_next_round_when_what_it_gives_back_has_stopped(hurried: Worker) -> None:
    told_to_give_back(hurried)
    assert hurried.sent(JoinRequest) is None
    hurried.pass_time(OFTEN_MS)
    assert hurried.beats() == 1, "it asks on, and so keeps its place"
    hurried.subscribe(NO_JOBS)
    join = hurried.sent(JoinRequest)
    assert join is not None
    allocation = decode_metadata(join.protocols[0][1])[1].allocation
    assert allocation is not None
    assert allocation.assigned == NO_JOBS


@pytest.mark.parametrize(("rebalance_timeout_ms", "held_ms"), [(60_000, 2_000), (10_000, 2_000), (3_000, 1_500)])
def test_nobody_waits_long_for_a_slow_stop_and_the_group_never_so_long_that_it_goes_on_without(
    hurried: Worker, rebalance_timeout_ms: int, held_ms: int
) -> None:
    hurried.member.settings = replace(
        hurried.member.settings, rebalance_timeout_ms=rebalance_timeout_ms, quiet_ms=31_000
    )
    told_to_give_back(hurried)
    hurried.pass_time(held_ms - OFTEN_MS - 1)
    assert hurried.sent(JoinRequest) is None
    hurried.pass_time(1)
    join = hurried.sent(JoinRequest)
    assert join is not None
    allocation = decode_metadata(join.protocols[0][1])[1].allocation
    assert allocation is not None
    assert allocation.assigned == SOME_WORK, "it still runs, so nobody else may be given it"


# -- eager ------------------------------------------------------------------------------------------------------------


def test_in_an_eager_group_everything_has_stopped_before_a_member_joins(worker: Worker) -> None:
    worker.settle(protocol=EAGER)
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    assert worker.sent(JoinRequest) is None
    assert worker.heard(MustReleaseAll) == [MustReleaseAll()]
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    worker.subscribe(Jobs(tasks=SOME_WORK.tasks))
    assert worker.sent(JoinRequest) is None, "some of it still runs"
    assert not worker.heard(Lost), "its place is kept meanwhile"
    worker.subscribe(NO_JOBS)
    assert worker.sent(JoinRequest) is not None


def test_a_worker_that_joined_at_work_stops_before_the_next_join_once_it_has_heard_of_an_eager_vote(
    worker: Worker,
) -> None:
    worker.settle(protocol=STATIC)
    worker.feed(Rejoin(reason="a wish"))
    worker.answer(JoinRequest, joined(2, protocol=EAGER))
    worker.answer(SyncRequest, SyncResponse(error=ErrorCode.rebalance_in_progress))
    assert worker.sent(JoinRequest) is None
    assert worker.heard(MustReleaseAll)
    worker.subscribe(NO_JOBS)
    assert worker.sent(JoinRequest) is not None


def test_what_was_just_assigned_has_to_be_stopped_too_though_the_herder_said_something_before_it_heard(
    worker: Worker,
) -> None:
    worker.subscribe()
    worker.answer(JoinRequest, joined(protocol=EAGER))
    worker.answer(SyncRequest, synced(SOME_WORK, protocol=EAGER))
    worker.subscribe(NO_JOBS)  # The herder read a config line, and has not taken its assignment up yet.
    worker.feed(Rejoin(reason="a wish"))
    assert worker.sent(JoinRequest) is None
    worker.subscribe(SOME_WORK)
    assert worker.sent(JoinRequest) is None
    worker.subscribe(NO_JOBS)
    assert worker.sent(JoinRequest) is not None


def test_a_join_reports_two_assignments_that_the_herder_has_not_taken_yet(worker: Worker) -> None:
    first, second = (Jobs(frozenset({ConnectorName(name)})) for name in "ab")
    worker.settle(NO_JOBS)
    worker.feed(Rejoin(reason="the set of jobs has changed"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, synced(first))
    worker.feed(Rejoin(reason="the set of jobs has changed"))
    worker.answer(JoinRequest, joined(3))
    worker.answer(SyncRequest, synced(second))
    worker.subscribe(NO_JOBS)  # The herder sent it before it took either assignment.
    worker.feed(Rejoin(reason="the set of jobs has changed"))
    assert owned_in(worker.sent(JoinRequest)) == first | second
    worker.answer(JoinRequest, joined(4))
    worker.answer(SyncRequest, synced(NO_JOBS))
    worker.subscribe(first)
    worker.subscribe(first | second)
    worker.subscribe(second)  # Both were taken, and the herder has released the first since.
    worker.feed(Rejoin(reason="what was revoked has been released"))
    assert owned_in(worker.sent(JoinRequest)) == second


def test_after_an_eager_round_the_work_goes_on_through_the_next_but_one(worker: Worker) -> None:
    worker.settle(protocol=EAGER)
    worker.feed(Rejoin(reason="a wish"))
    worker.subscribe(NO_JOBS)
    worker.settle(protocol=STATIC, generation=2)
    worker.feed(Rejoin(reason="a wish"))
    assert worker.sent(JoinRequest) is not None
    assert worker.heard(MemberStateChanged) == [MemberStateChanged(state=MemberState.PREPARING_REBALANCE)]


def test_a_member_that_is_slow_to_stop_and_is_removed_stops_all_the_same_and_joins_as_a_new_one(worker: Worker) -> None:
    worker.settle(protocol=EAGER)
    worker.feed(Rejoin(reason="a wish"))
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    assert worker.heard(Lost)
    worker.subscribe(NO_JOBS)
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.member_id == ""


def test_a_member_can_leave_while_it_stops_for_an_eager_round(worker: Worker) -> None:
    worker.settle(protocol=EAGER)
    worker.feed(Rejoin(reason="a wish"))
    worker.feed(Leave(reason="SIGTERM"))
    worker.subscribe(NO_JOBS)
    assert worker.sent(JoinRequest) is None
    worker.pass_time(1_000)
    assert worker.heard(Left)


@pytest.mark.parametrize("leads", [False, True])
def test_a_static_member_that_is_back_in_an_eager_group_goes_on_with_the_whole_that_it_is_told(leads: bool) -> None:
    worker = Worker(InstanceId("one"))
    worker.subscribe()
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.fenced_instance_id))
    response = joined(7, protocol=EAGER, leader="me" if leads else "x")
    worker.answer(JoinRequest, replace(response, skip_assignment=leads))
    worker.answer(SyncRequest, synced(SOME_WORK, protocol=EAGER))
    (received,) = worker.heard(Assigned)
    assert received.jobs == SOME_WORK
    worker.subscribe(SOME_WORK)
    worker.subscribe(NO_JOBS)
    assert (worker.sent(JoinRequest) is not None) is leads, "a leader that is back does not know what it dealt out"


# -- bytes that are none ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nonsense", [b"", b"\xff\xff", b"\x00\x03\x00", b"\x00\x01\x00\x09http"])
@ALL
def test_a_member_whose_metadata_is_malformed_is_left_out_and_the_others_are_not(
    worker: Worker, protocol: ConnectProtocol, nonsense: bytes
) -> None:
    good = encode_metadata(protocol, WorkerMetadata(url=WorkerUrl("http://w/"), config_offset=ConfigOffset(4)))
    worker.subscribe()
    worker.answer(JoinRequest, joined(leader="me", members={"me": good, "other": nonsense}, protocol=protocol))
    (wanted,) = worker.heard(AssignmentWanted)
    assert list(wanted.members) == ["me"]
    assert RoundToken.of(wanted.token).left_out == {"other"}
    assert any("The metadata of member other cannot be decoded" in text for text in worker.warned)


@ALL
def test_a_member_that_is_left_out_stops_everything_and_asks_again_with_patience(
    worker: Worker, protocol: ConnectProtocol
) -> None:
    worker.settle(protocol=protocol)
    worker.feed(Rejoin(reason="a wish"))
    worker.subscribe(NO_JOBS if protocol is EAGER else SOME_WORK)
    worker.answer(JoinRequest, joined(2, protocol=protocol))
    worker.answer(SyncRequest, SyncResponse(error=ErrorCode.none, assignment=b""))
    (lost,) = worker.heard(Lost)
    assert "assigned nothing to this worker" in lost.reason
    worker.subscribe(NO_JOBS)
    assert worker.sent(JoinRequest) is None, "not at once"
    worker.pass_time(1_000)
    assert worker.sent(JoinRequest) is not None


@pytest.mark.parametrize("nonsense", [b"\xff\xff", b"\x00\x01\x00", b"\x00\x01\x00\x09\x00\x00"])
@ALL
def test_an_assignment_that_is_malformed_is_asked_for_again_and_the_work_goes_on(
    worker: Worker, protocol: ConnectProtocol, nonsense: bytes
) -> None:
    worker.settle(protocol=protocol)
    worker.feed(Rejoin(reason="a wish"))
    worker.subscribe(NO_JOBS if protocol is EAGER else SOME_WORK)
    worker.answer(JoinRequest, joined(2, protocol=protocol))
    worker.answer(SyncRequest, SyncResponse(error=ErrorCode.none, assignment=nonsense))
    assert not worker.heard(Assigned)
    assert worker.sent(JoinRequest) is None, "not at once"
    worker.pass_time(1_000)
    worker.settle(protocol=protocol, generation=3)
    assert worker.sent(JoinRequest) is None
    assert not worker.heard(Lost)


@pytest.mark.parametrize("protocol", [one for one in ConnectProtocol if one is not ConnectProtocol.EAGER])
def test_who_cannot_read_its_assignment_says_something_new_each_time_so_that_a_round_comes_of_it(
    protocol: ConnectProtocol,
) -> None:
    """A follower's join that says nothing new is answered with the generation that runs, and with the same bytes."""
    worker = Worker(offers=protocol)
    worker.subscribe(SOME_WORK)
    said = []
    for _ in range(3):
        join = worker.answer(JoinRequest, joined(1, protocol=protocol))
        said.append(join.protocols)
        allocation = decode_metadata(join.protocols[0][1])[1].allocation
        assert allocation is not None
        assert allocation.assigned == SOME_WORK
        worker.answer(SyncRequest, SyncResponse(error=ErrorCode.none, assignment=b"\x00\x01nonsense"))
        worker.pass_time(1_000)
    assert len(set(said)) == 3
    worker.answer(JoinRequest, joined(2, protocol=protocol))
    worker.answer(SyncRequest, synced(revoked=SOME_WORK, protocol=protocol))
    assert isinstance(worker.member.round, Settled)
    assert worker.member.malformed_assignments == 0
