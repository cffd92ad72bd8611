"""One member against a coordinator that is played by hand."""

from dataclasses import replace

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
from coterie.member.events import Answered, Installed, LeaveWanted, Left, RejoinWanted, RequestId
from coterie.nouns.ids import Generation, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import (
    Assigned,
    AssignmentWanted,
    Computed,
    Lost,
    MemberAssignment,
    MembershipRefused,
    MemberStateChanged,
    ProvedUntil,
)
from coterie.wire.connect import ConnectProtocol, RoundResult, RoundToken, WorkerAssignment, WorkerMetadata
from coterie.wire.connect_bytes import decode_assignment, decode_metadata, encode_metadata
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import SOME_WORK, Worker, joined, synced

COORDINATOR_AWAY = [
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_load_in_progress,
]


def said(request: JoinRequest) -> WorkerMetadata:
    return decode_metadata(request.protocols[0][1])[1]


def settle(worker: Worker, work: Jobs = SOME_WORK) -> None:
    """Join and receive ``work``."""
    worker.subscribe()
    worker.answer(JoinRequest, joined())
    worker.answer(SyncRequest, synced(work))
    worker.subscribe(work)
    worker.told.clear()


# -- rounds -----------------------------------------------------------------------------------------------------------


def test_nothing_is_asked_before_the_herder_has_said_what_it_runs(worker: Worker) -> None:
    worker.feed(RejoinWanted(reason="impatience"))
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
    worker.feed(Installed(token=replace(wanted.token, generation=Generation(2)), computed=computed))
    assert worker.sent(SyncRequest) is None, "an answer for another generation is dropped"
    worker.feed(Installed(token=wanted.token, computed=computed))
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
    settle(worker)
    worker.feed(RejoinWanted(reason="the delay is over"))
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.reason == "the delay is over"
    allocation = said(request).allocation
    assert allocation is not None
    assert allocation.assigned == SOME_WORK
    assert not worker.heard(Lost)


def test_a_wish_that_comes_during_a_round_is_granted_after_it(worker: Worker) -> None:
    settle(worker)
    worker.feed(RejoinWanted(reason="first"))
    assert sum(isinstance(send.request, JoinRequest) for send in worker.out) == 1
    worker.answer(JoinRequest, joined(2))
    worker.feed(RejoinWanted(reason="second"))
    worker.answer(SyncRequest, synced())
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.reason == "second"


@pytest.mark.parametrize("says_more", [False, True])
def test_a_wish_while_the_join_is_out_is_granted_by_that_round_unless_there_is_more_to_say(
    worker: Worker, says_more: bool
) -> None:
    """A worker that joins as soon as it has released what was revoked asks for a round for that, too."""
    settle(worker)
    worker.feed(RejoinWanted(reason="first"))
    if says_more:
        worker.subscribe(NO_JOBS)
    worker.feed(RejoinWanted(reason="second"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, synced())
    assert (worker.sent(JoinRequest) is not None) is says_more


@pytest.mark.parametrize("error", [ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation])
def test_a_sync_of_a_round_that_is_over_leads_to_the_next_join(worker: Worker, error: ErrorCode) -> None:
    settle(worker)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, SyncResponse(error=error))
    assert worker.sent(JoinRequest) is not None
    assert not worker.heard(Lost)


@pytest.mark.parametrize("error", COORDINATOR_AWAY)
def test_a_coordinator_that_is_away_is_asked_again_by_the_same_member(worker: Worker, error: ErrorCode) -> None:
    settle(worker)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.answer(JoinRequest, JoinResponse(error=error))
    assert worker.sent(JoinRequest) is None, "not at once"
    worker.pass_time(1_000)
    again = worker.sent(JoinRequest)
    assert again is not None
    assert again.member_id == "me"
    assert not worker.heard(Lost)


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (ErrorCode.invalid_session_timeout, ["session.timeout.ms=9000", "group.min.session.timeout.ms"]),
        (
            ErrorCode.inconsistent_group_protocol,
            ["connect.protocol static, sessioned, compatible, default", "group.id"],
        ),
        (ErrorCode.invalid_group_id, ["group.id=fleet"]),
        (ErrorCode.group_authorization_failed, ["authorized", "group.id"]),
    ],
)
def test_an_answer_that_a_wrong_setting_brought_about_is_told_once_and_nothing_more_is_asked(
    worker: Worker, error: ErrorCode, names: list[str]
) -> None:
    worker.subscribe()
    worker.answer(JoinRequest, JoinResponse(error=error))
    (refused,) = worker.heard(MembershipRefused)
    assert all(name in refused.reason for name in names), refused.reason
    worker.subscribe(SOME_WORK)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.pass_time(60_000)
    assert not worker.out
    worker.feed(LeaveWanted(reason=refused.reason))
    assert worker.heard(Left)


def test_a_member_that_is_refused_later_keeps_its_place_until_it_leaves(worker: Worker) -> None:
    settle(worker)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.group_authorization_failed))
    assert worker.heard(MembershipRefused)
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    assert worker.heard(ProvedUntil)
    assert worker.sent(JoinRequest) is None
    worker.feed(LeaveWanted(reason="refused"))
    assert worker.sent(LeaveRequest) is not None


def test_a_sync_can_be_refused_too(worker: Worker) -> None:
    worker.subscribe()
    worker.answer(JoinRequest, joined())
    worker.answer(SyncRequest, SyncResponse(error=ErrorCode.group_authorization_failed))
    assert worker.heard(MembershipRefused)
    worker.pass_time(5_000)
    assert worker.sent(JoinRequest) is None


@pytest.mark.parametrize("error", [ErrorCode.inconsistent_group_protocol, ErrorCode.group_max_size_reached])
def test_a_group_that_may_take_a_worker_back_later_is_asked_again(worker: Worker, error: ErrorCode) -> None:
    settle(worker)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.answer(JoinRequest, JoinResponse(error=error))
    worker.pass_time(1_000)
    assert worker.sent(JoinRequest) is not None
    assert not worker.heard(MembershipRefused)


def test_a_full_group_is_asked_again(worker: Worker) -> None:
    worker.subscribe()
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.group_max_size_reached))
    worker.pass_time(1_000)
    assert worker.sent(JoinRequest) is not None


def test_a_join_that_is_never_answered_is_given_up_and_its_late_answer_ignored(worker: Worker) -> None:
    worker.subscribe()
    late = worker.out[-1]
    worker.pass_time(66_000)
    assert len(worker.out) == 2
    worker.feed(Answered(id=late.id, response=joined()))
    assert worker.sent(SyncRequest) is None


# -- heartbeats and the lease -----------------------------------------------------------------------------------------


def test_heartbeats_name_the_generation_and_tell_the_herder_when_they_were_sent(worker: Worker) -> None:
    settle(worker)
    worker.pass_time(1_000)
    request = worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    assert request.generation == 1
    assert worker.heard(ProvedUntil) == [ProvedUntil(until_ms=1_000 + 6_000, session_timeout_ms=9_000)]


@pytest.mark.parametrize("error", [ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation])
def test_a_heartbeat_that_tells_of_a_rebalance_begins_a_round_and_stops_nothing(
    worker: Worker, error: ErrorCode
) -> None:
    settle(worker)
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=error))
    assert worker.sent(JoinRequest) is not None
    assert worker.heard(MemberStateChanged)
    assert not worker.heard(Lost)


def test_heartbeats_go_on_while_a_join_is_parked_and_keep_the_lease(worker: Worker) -> None:
    settle(worker)
    worker.feed(RejoinWanted(reason="a wish"))
    for _ in range(30):
        worker.pass_time(1_000)
        worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.rebalance_in_progress))
    assert not worker.heard(Lost)
    assert sum(isinstance(send.request, JoinRequest) for send in worker.out) == 1
    worker.answer(JoinRequest, joined(2))
    assert worker.sent(SyncRequest) is not None


def test_a_heartbeat_of_the_generation_before_changes_nothing(worker: Worker) -> None:
    settle(worker)
    worker.pass_time(1_000)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.answer(JoinRequest, joined(2))
    worker.answer(SyncRequest, synced())
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.illegal_generation))
    assert worker.sent(JoinRequest) is None


def test_the_lease_ends_at_two_thirds_of_the_session_from_the_sending_of_the_last_answered(worker: Worker) -> None:
    settle(worker)
    worker.pass_time(1_000)
    worker.now_ms += 2_000  # the answer lay in the socket meanwhile
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    worker.pass_time(6_999 - worker.now_ms)
    assert not worker.heard(Lost)
    worker.pass_time(1)
    assert worker.heard(Lost)


def test_an_answer_that_comes_out_of_the_socket_after_a_pause_does_not_save_the_lease(worker: Worker) -> None:
    settle(worker)
    worker.pass_time(1_000)
    worker.now_ms += 60_000
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    worker.pass_time(0)
    assert worker.heard(Lost)


def test_a_broker_that_is_back_within_the_lease_stops_nothing(worker: Worker) -> None:
    settle(worker)
    for _ in range(4):
        worker.pass_time(1_000)
        worker.fail(HeartbeatRequest)
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.none))
    worker.pass_time(3_000)
    assert not worker.heard(Lost)


def test_an_unanswered_heartbeat_is_tried_again_before_the_lease_is_over(worker: Worker) -> None:
    settle(worker)
    worker.pass_time(5_500)
    assert worker.beats() == 2


# -- endings ----------------------------------------------------------------------------------------------------------


def test_an_unknown_member_stops_everything_then_joins_as_a_new_one(worker: Worker) -> None:
    settle(worker)
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    assert worker.heard(Lost)
    worker.pass_time(30_000)
    assert worker.sent(JoinRequest) is None, "what it ran has not stopped"
    worker.subscribe(NO_JOBS)
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.member_id == ""
    assert said(request).allocation is None


def test_a_member_whose_lease_ran_out_joins_with_its_old_id(worker: Worker) -> None:
    settle(worker)
    worker.pass_time(6_000)
    assert worker.heard(Lost)
    worker.subscribe(NO_JOBS)
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.member_id == "me"
    worker.answer(JoinRequest, JoinResponse(error=ErrorCode.unknown_member_id))
    assert not worker.heard(Lost), "once is enough"
    worker.pass_time(1_000)
    request = worker.sent(JoinRequest)
    assert request is not None
    assert request.member_id == ""


def test_work_that_was_just_handed_over_has_to_stop_too_before_a_lost_member_joins(worker: Worker) -> None:
    worker.subscribe()
    worker.answer(JoinRequest, joined())
    worker.answer(SyncRequest, synced(SOME_WORK))
    worker.pass_time(1_000)
    worker.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
    assert worker.sent(JoinRequest) is None, "the herder may have begun to start it"


def test_a_late_answer_to_a_join_of_a_former_life_means_nothing(worker: Worker) -> None:
    settle(worker)
    worker.feed(RejoinWanted(reason="a wish"))
    parked = worker.out[-1]
    worker.pass_time(6_000)
    assert worker.heard(Lost)
    worker.feed(Answered(id=parked.id, response=joined(2)))
    assert worker.sent(SyncRequest) is None


@pytest.mark.parametrize("answered", [True, False])
def test_leaving_says_farewell_and_ends_even_if_nobody_answers(worker: Worker, answered: bool) -> None:
    settle(worker)
    worker.feed(LeaveWanted(reason="shutdown"))
    request = worker.sent(LeaveRequest)
    assert request is not None
    assert request.member_id == "me"
    if answered:
        worker.fail(LeaveRequest)
    else:
        worker.pass_time(1_000)
    assert worker.heard(Left)
    worker.feed(RejoinWanted(reason="a wish"))
    worker.feed(LeaveWanted(reason="again"))
    worker.feed(Answered(id=RequestId(1), response=joined()))
    worker.pass_time(60_000)
    assert not worker.told


def test_whoever_never_was_a_member_leaves_without_a_word(worker: Worker) -> None:
    worker.subscribe()
    worker.feed(LeaveWanted(reason="shutdown"))
    assert worker.sent(LeaveRequest) is None
    assert worker.heard(Left)
