"""What a member offers, what follows from the group's vote, and what it makes of bytes that are none."""

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
from coterie.member.events import Installed, LeaveWanted, Left, RejoinWanted
from coterie.nouns.ids import ConfigOffset, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import (
    Assigned,
    AssignmentWanted,
    Computed,
    Lost,
    MemberAssignment,
    MemberState,
    MemberStateChanged,
    MustReleaseAll,
)
from coterie.wire.connect import ConnectProtocol, RoundResult, RoundToken, WorkerMetadata
from coterie.wire.connect_bytes import decode_metadata, encode_metadata
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import SOME_WORK, Worker, joined, synced

EAGER, COMPATIBLE, SESSIONED, STATIC = ConnectProtocol
ALL = pytest.mark.parametrize("protocol", list(ConnectProtocol))
CLAIMS = Jobs(tasks=frozenset({ConnectorTaskId(ConnectorName("a-b"), 7)}))


def settle(worker: Worker, protocol: ConnectProtocol, work: Jobs = SOME_WORK, generation: int = 1) -> None:
    """A round in which ``work`` is received."""
    if worker.sent(JoinRequest) is None:
        worker.subscribe()
    worker.answer(JoinRequest, joined(generation, protocol=protocol))
    worker.answer(SyncRequest, synced(work, protocol=protocol))
    worker.subscribe(work)
    worker.told.clear()


# -- what is offered --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("eager", ["default"]),
        ("compatible", ["compatible", "default"]),
        ("sessioned", ["sessioned", "compatible", "default"]),
        ("static", ["static", "sessioned", "compatible", "default"]),
    ],
)
def test_a_worker_offers_its_protocol_and_all_older_ones_the_newest_first(setting: str, names: list[str]) -> None:
    worker = Worker(offers=ConnectProtocol.named(setting))
    worker.subscribe()
    request = worker.sent(JoinRequest)
    assert request is not None
    assert [name for name, _ in request.protocols] == names
    assert [decode_metadata(data)[0] for _, data in request.protocols] == list(range(len(names) - 1, -1, -1))


@pytest.mark.parametrize("claims", [None, NO_JOBS, CLAIMS])
def test_claims_are_said_in_static_alone(claims: Jobs | None) -> None:
    worker = Worker(claims=claims)
    worker.subscribe()
    request = worker.sent(JoinRequest)
    assert request is not None
    newest, *older = [decode_metadata(data)[1] for _, data in request.protocols]
    if claims is None:
        assert (newest.static_connectors, newest.static_tasks) == (None, None)
    else:
        assert (newest.static_connectors, newest.static_tasks) == (claims.connectors, claims.tasks)
    assert all(one.static_connectors is None and one.static_tasks is None for one in older)


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
    worker.feed(Installed(token=wanted.token, computed=computed))
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


def test_a_change_of_what_the_group_speaks_is_told_once() -> None:
    worker = Worker(claims=CLAIMS)
    for generation, protocol in enumerate([STATIC, STATIC, SESSIONED, SESSIONED, STATIC], start=1):
        settle(worker, protocol, NO_JOBS, generation)
        worker.feed(RejoinWanted(reason="a wish"))
    assert worker.said == ["The group speaks static", "The group speaks static"]
    assert worker.warned == [
        "The group speaks sessioned, not static: a member's connect.protocol is that old; "
        "static.connectors and static.tasks are ignored"
    ]


# -- eager ------------------------------------------------------------------------------------------------------------


def test_in_an_eager_group_everything_has_stopped_before_a_member_joins(worker: Worker) -> None:
    settle(worker, EAGER)
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
    settle(worker, STATIC)
    worker.feed(RejoinWanted(reason="a wish"))
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
    worker.feed(RejoinWanted(reason="a wish"))
    assert worker.sent(JoinRequest) is None
    worker.subscribe(SOME_WORK)
    assert worker.sent(JoinRequest) is None
    worker.subscribe(NO_JOBS)
    assert worker.sent(JoinRequest) is not None


def test_after_an_eager_round_the_work_goes_on_through_the_next_but_one(worker: Worker) -> None:
    settle(worker, EAGER)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.subscribe(NO_JOBS)
    settle(worker, STATIC, generation=2)
    worker.feed(RejoinWanted(reason="a wish"))
    assert worker.sent(JoinRequest) is not None
    assert worker.heard(MemberStateChanged) == [MemberStateChanged(state=MemberState.PREPARING_REBALANCE)]


def test_a_member_that_is_slow_to_stop_and_is_removed_stops_all_the_same_and_joins_as_a_new_one(worker: Worker) -> None:
    settle(worker, EAGER)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    assert worker.heard(Lost)
    worker.subscribe(NO_JOBS)
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.member_id == ""


def test_a_member_can_leave_while_it_stops_for_an_eager_round(worker: Worker) -> None:
    settle(worker, EAGER)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.feed(LeaveWanted(reason="SIGTERM"))
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


# -- votes that were missed -------------------------------------------------------------------------------------------


def names(worker: Worker) -> list[str]:
    request = worker.sent(JoinRequest)
    assert request is not None
    return [name for name, _ in request.protocols]


@pytest.mark.parametrize("broken", [True, False], ids=["broken off", "never answered"])
def test_a_worker_at_work_that_may_have_missed_a_vote_offers_no_eager(worker: Worker, broken: bool) -> None:
    """The lost answer may have been of an eager round: then the leader takes this worker to have stopped by now."""
    settle(worker, STATIC)
    worker.feed(RejoinWanted(reason="a wish"))
    if broken:
        worker.fail(JoinRequest)
        worker.pass_time(1_000)
    else:
        lost = worker.sent(JoinRequest)
        while worker.sent(JoinRequest) is lost:
            worker.pass_time(1_000)
            worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    assert names(worker) == ["static", "sessioned", "compatible"]


def test_a_group_that_cannot_do_without_eager_refuses_that_and_then_everything_stops_first(worker: Worker) -> None:
    settle(worker, STATIC)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.fail(JoinRequest)
    worker.pass_time(1_000)
    worker.told.clear()
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.inconsistent_group_protocol))
    assert worker.sent(JoinRequest) is None
    assert worker.heard(MustReleaseAll) == [MustReleaseAll()]
    worker.subscribe(NO_JOBS)
    assert names(worker) == ["static", "sessioned", "compatible", "default"]


def test_any_other_group_takes_it_and_is_offered_eager_again_in_a_round_of_its_own(worker: Worker) -> None:
    settle(worker, STATIC)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.fail(JoinRequest)
    worker.pass_time(1_000)
    worker.answer(JoinRequest, joined(3, protocol=STATIC))
    worker.answer(SyncRequest, synced(protocol=STATIC))
    assert names(worker) == ["static", "sessioned", "compatible", "default"]
    worker.answer(JoinRequest, joined(4, protocol=STATIC))
    worker.answer(SyncRequest, synced(protocol=STATIC))
    assert worker.sent(JoinRequest) is None
    assert not worker.heard(Lost)


def test_a_worker_without_work_offers_everything_whatever_it_has_missed(worker: Worker) -> None:
    settle(worker, STATIC, NO_JOBS)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.fail(JoinRequest)
    worker.pass_time(1_000)
    assert names(worker) == ["static", "sessioned", "compatible", "default"]


def test_a_static_member_that_was_away_for_a_whole_rebalance_timeout_may_have_missed_a_vote() -> None:
    worker = Worker(InstanceId("one"), rebalance_timeout_ms=2_000)
    worker.subscribe()
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    settle(worker, STATIC)
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    worker.now_ms += 2_500  # Paused; its session is longer.
    worker.feed(RejoinWanted(reason="a wish"))
    assert names(worker) == ["static", "sessioned", "compatible"]


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
    assert any("What member other says of itself is malformed" in text for text in worker.warned)


@ALL
def test_a_member_that_is_left_out_stops_everything_and_asks_again_with_patience(
    worker: Worker, protocol: ConnectProtocol
) -> None:
    settle(worker, protocol)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.subscribe(NO_JOBS if protocol is EAGER else SOME_WORK)
    worker.answer(JoinRequest, joined(2, protocol=protocol))
    worker.answer(SyncRequest, SyncResponse(error=ErrorCode.none, assignment=b""))
    (lost,) = worker.heard(Lost)
    assert "left this worker out" in lost.reason
    worker.subscribe(NO_JOBS)
    assert worker.sent(JoinRequest) is None, "not at once"
    worker.pass_time(1_000)
    assert worker.sent(JoinRequest) is not None


@pytest.mark.parametrize("nonsense", [b"\xff\xff", b"\x00\x01\x00", b"\x00\x01\x00\x09\x00\x00"])
@ALL
def test_an_assignment_that_is_malformed_is_asked_for_again_and_the_work_goes_on(
    worker: Worker, protocol: ConnectProtocol, nonsense: bytes
) -> None:
    settle(worker, protocol)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.subscribe(NO_JOBS if protocol is EAGER else SOME_WORK)
    worker.answer(JoinRequest, joined(2, protocol=protocol))
    worker.answer(SyncRequest, SyncResponse(error=ErrorCode.none, assignment=nonsense))
    assert not worker.heard(Assigned)
    assert worker.sent(JoinRequest) is None, "not at once"
    worker.pass_time(1_000)
    settle(worker, protocol, generation=3)
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
