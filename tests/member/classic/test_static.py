"""A static member (KIP-345): it never says farewell, comes back to the running generation, and may be fenced."""

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
from coterie.member.events import Left
from coterie.nouns.ids import ConfigOffset, Generation, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import Assigned, AssignmentWanted, Computed, Install, Leave, Lost, MembershipRefused
from coterie.wire.connect import ConnectProtocol, RoundResult, RoundToken, WorkerMetadata
from coterie.wire.connect_bytes import encode_metadata
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import SOME_WORK, Worker, joined, synced

ONE = InstanceId("worker-1")


@pytest.fixture
def worker() -> Worker:
    return Worker(ONE)


def begin(worker: Worker, *, known: bool = True) -> None:
    """It asks whether the group knows it, and is answered."""
    worker.subscribe()
    error = ErrorCode.fenced_instance_id if known else ErrorCode.unknown_member_id
    asked = worker.answer(HeartbeatRequest, HeartbeatResponse(error=error))
    assert (asked.member_id, asked.instance_id, asked.generation) == ("", ONE, -1)


def settle(worker: Worker) -> None:
    """Join, sync, and the round that a new life asks for."""
    begin(worker)
    for generation in (1, 2):
        worker.answer(JoinRequest, joined(generation))
        worker.answer(SyncRequest, synced(SOME_WORK))
    worker.subscribe(SOME_WORK)
    worker.told.clear()


def test_every_request_carries_the_instance_id(worker: Worker) -> None:
    begin(worker)
    assert worker.answer(JoinRequest, joined()).instance_id == ONE
    assert worker.answer(SyncRequest, synced()).instance_id == ONE
    worker.pass_time(1_000)
    heartbeat = worker.sent(HeartbeatRequest)
    assert heartbeat is not None
    assert heartbeat.instance_id == ONE


def test_it_goes_without_a_word_and_at_once(worker: Worker) -> None:
    settle(worker)
    worker.feed(Leave(reason="SIGTERM"))
    assert worker.heard(Left)
    assert worker.sent(LeaveRequest) is None


def test_in_a_new_life_it_joins_once_more_after_its_first_assignment(worker: Worker) -> None:
    begin(worker)
    worker.answer(JoinRequest, joined(7))
    worker.answer(SyncRequest, synced(NO_JOBS))
    again = worker.answer(JoinRequest, joined(8))
    assert again.member_id == "me"
    worker.answer(SyncRequest, synced(SOME_WORK))
    assert worker.sent(JoinRequest) is None, "once"
    first, second = worker.heard(Assigned)
    assert (first.epoch, second.epoch) == (7, 8)
    assert second.jobs == SOME_WORK


def test_a_new_life_whose_first_assignment_was_lost_still_joins_once_more(worker: Worker) -> None:
    """The join that asks for it again says what the first one said, and is answered with the same generation."""
    begin(worker)
    worker.answer(JoinRequest, joined(7))
    worker.fail(SyncRequest)
    worker.pass_time(1_000)
    assert worker.answer(JoinRequest, joined(7)).member_id == "me"
    worker.answer(SyncRequest, synced(NO_JOBS))
    assert worker.sent(JoinRequest) is not None


def test_its_second_join_says_something_else_than_the_first_so_that_it_makes_a_round(worker: Worker) -> None:
    """A group that is stable answers a follower that says nothing new with the generation as it stands."""
    begin(worker)
    first = worker.answer(JoinRequest, joined(7))
    worker.answer(SyncRequest, synced(NO_JOBS))
    second = worker.sent(JoinRequest)
    assert second is not None
    for (name, before), (_, after) in zip(first.protocols, second.protocols, strict=True):
        assert before != after or name == "default", "in an eager group what it was told is the whole"


def test_one_that_the_group_never_knew_joins_once(worker: Worker) -> None:
    begin(worker, known=False)
    worker.answer(JoinRequest, joined(7))
    worker.answer(SyncRequest, synced(SOME_WORK, delay_ms=300))
    (received,) = worker.heard(Assigned)
    assert RoundResult.of(received.token).delay_ms == 300
    assert worker.sent(JoinRequest) is None


def test_a_join_whose_answer_was_lost_may_have_made_it_known(worker: Worker) -> None:
    begin(worker, known=False)
    worker.fail(JoinRequest)
    worker.pass_time(1_000)
    worker.answer(JoinRequest, joined(7))
    worker.answer(SyncRequest, synced(SOME_WORK))
    assert worker.sent(JoinRequest) is not None


def test_one_whose_session_ended_asks_again_whether_it_is_known(worker: Worker) -> None:
    settle(worker)
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    begin(worker, known=False)
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.member_id == ""


@pytest.mark.parametrize("answered", [True, False])
def test_a_coordinator_that_cannot_say_is_asked_again(worker: Worker, answered: bool) -> None:
    worker.subscribe()
    if answered:
        worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.not_coordinator))
    else:
        worker.fail(HeartbeatRequest)
    assert not worker.out
    worker.pass_time(1_000)
    assert worker.sent(HeartbeatRequest) is not None
    assert worker.sent(JoinRequest) is None


def test_of_a_former_lifes_assignment_only_what_was_new_counts(worker: Worker) -> None:
    begin(worker)
    worker.answer(JoinRequest, joined(7))
    worker.answer(SyncRequest, synced(SOME_WORK, revoked=SOME_WORK, delay_ms=300_000))
    (received,) = worker.heard(Assigned)
    assert received.jobs == SOME_WORK
    assert received.revoked == NO_JOBS
    assert RoundResult.of(received.token).delay_ms == 0


def test_a_leader_that_is_back_computes_nothing_for_a_generation_that_has_its_assignments(worker: Worker) -> None:
    begin(worker)
    back = JoinResponse(
        error=ErrorCode.none,
        generation=Generation(7),
        protocol="compatible",
        leader=MemberId("me"),
        member_id=MemberId("me"),
        members={MemberId("me"): b""},
        skip_assignment=True,
    )
    worker.answer(JoinRequest, back)
    assert not worker.heard(AssignmentWanted)
    assert worker.answer(SyncRequest, synced(SOME_WORK)).assignments == ()
    assert worker.sent(JoinRequest) is not None


def test_a_leader_that_computes_its_first_round_knows_that_it_is_fresh(worker: Worker) -> None:
    begin(worker)
    worker.answer(JoinRequest, joined(1, leader="me", members={"me": b""}))
    (wanted,) = worker.heard(AssignmentWanted)
    assert RoundToken.of(wanted.token).generation == 1
    worker.feed(Install(token=wanted.token, computed=Computed(config_offset=ConfigOffset(4), assignments={})))
    worker.answer(SyncRequest, synced(SOME_WORK, delay_ms=300))
    (received,) = worker.heard(Assigned)
    assert RoundResult.of(received.token).delay_ms == 300
    assert worker.sent(JoinRequest) is None, "what it has computed was made for this life"


def test_a_leader_is_told_who_is_static(worker: Worker) -> None:
    said = WorkerMetadata(url=WorkerUrl("http://w/"), config_offset=ConfigOffset(4))
    metadata = encode_metadata(ConnectProtocol.COMPATIBLE, said)
    begin(worker)
    response = JoinResponse(
        error=ErrorCode.none,
        generation=Generation(1),
        protocol="compatible",
        leader=MemberId("me"),
        member_id=MemberId("me"),
        members={MemberId("me"): metadata, MemberId("other"): metadata},
        instance_ids={MemberId("me"): ONE},
    )
    worker.answer(JoinRequest, response)
    (wanted,) = worker.heard(AssignmentWanted)
    assert {member: report.instance_id for member, report in wanted.members.items()} == {"me": ONE, "other": None}


@pytest.mark.parametrize("door", [HeartbeatRequest, JoinRequest, SyncRequest])
def test_one_that_is_fenced_stops_everything_says_who_and_asks_no_more(
    worker: Worker, door: type[HeartbeatRequest | JoinRequest | SyncRequest]
) -> None:
    settle(worker)
    worker.pass_time(1_000)
    if door is HeartbeatRequest:
        worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.fenced_instance_id))
    else:
        worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
        if door is SyncRequest:
            worker.answer(JoinRequest, joined(3))
            worker.answer(SyncRequest, SyncResponse(error=ErrorCode.fenced_instance_id))
        else:
            worker.answer(JoinRequest, JoinResponse(error=ErrorCode.fenced_instance_id))
    told = list(worker.told)
    assert len(worker.heard(Lost)) == 1, "all has to stop at once"
    (refused,) = [one for one in told if isinstance(one, MembershipRefused)]
    assert "group.instance.id=worker-1" in refused.reason
    worker.subscribe(NO_JOBS)
    worker.pass_time(60_000)
    assert worker.sent(JoinRequest) is None
    assert not worker.out
