"""What holds for the member of a connect group after any sequence of events."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.member.connect.messages import (
    HeartbeatRequest,
    InstallAssignmentRequest,
    PrepareAssignmentRequest,
    Request,
)
from coterie.member.connect.state import InGroup
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    JOIN_EPOCH,
    HeartbeatResponse,
    InstallAssignmentResponse,
    PrepareAssignmentResponse,
)
from coterie.nouns.ids import ConfigOffset, GroupEpoch
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import (
    InstallTarget,
    Leave,
    LeaveAndRejoin,
    MembershipLost,
    MembershipRefused,
    SuspendMembership,
    TargetRequested,
)
from coterie.nouns.target_assignments import GroupSnapshot
from tests.member.connect.driving import A0, A1, A2, HANDOVER, ME, OTHER, MemberDriver, accepted

SNAPSHOT = GroupSnapshot(
    group_epoch=GroupEpoch(7), assignor="cooperative", members=(), config_offset=ConfigOffset(4), configured=A0
)
job_sets = st.sampled_from([NO_JOBS, A0, A1, A0 | A1, A0 | A1 | A2])
errors = st.sampled_from(ConnectErrorCode)
leaders = st.sampled_from([None, ME, OTHER])
heartbeat_responses = st.one_of(
    errors.map(lambda error: HeartbeatResponse(error=error)),
    st.builds(
        accepted,
        st.integers(0, 3),
        st.none() | job_sets,
        leader=leaders,
        is_full=st.booleans(),
        session_timeout_ms=st.sampled_from([1, 3_000, 9_000, 30_000]),
        error=st.sampled_from([ConnectErrorCode.NONE, ConnectErrorCode.COMPUTE_ASSIGNMENT]),
    ),
)
kinds: st.SearchStrategy[type[Request]] = st.sampled_from(
    [HeartbeatRequest, PrepareAssignmentRequest, InstallAssignmentRequest]
)
actions = st.one_of(
    st.tuples(st.just("heartbeat"), heartbeat_responses, st.booleans()),
    st.tuples(st.just("prepare"), errors),
    st.tuples(st.just("install"), errors),
    st.tuples(st.just("fail"), kinds),
    st.tuples(st.just("own"), job_sets, st.booleans()),
    st.tuples(st.just("configure"), job_sets),
    st.tuples(st.just("update"), st.sampled_from([b"m", b"n"]), st.integers(0, 3)),
    st.tuples(st.just("pass"), st.sampled_from([1, 100, 1_000, 7_000, 40_000])),
    st.tuples(st.just("pause"), st.sampled_from([1_000, 7_000, 40_000])),
    st.tuples(st.just("rejoin")),
)
endings = st.none() | st.sampled_from([Leave(reason="x"), Leave(reason="x", is_permanent=True), SuspendMembership()])


def act(worker: MemberDriver, action: tuple[Any, ...]) -> None:
    match action:
        case ("heartbeat", HeartbeatResponse() as response, bool(oldest)) if worker.count(HeartbeatRequest):
            worker.answer(response, oldest=oldest)
        case ("prepare", ConnectErrorCode() as error) if worker.count(PrepareAssignmentRequest):
            snapshot = SNAPSHOT if error is ConnectErrorCode.NONE else None
            worker.reply(
                worker.pending(PrepareAssignmentRequest), PrepareAssignmentResponse(error=error, snapshot=snapshot)
            )
            for requested in [event for event in worker.events if isinstance(event, TargetRequested)]:
                worker.feed(InstallTarget(token=requested.token, target=None))
        case ("install", ConnectErrorCode() as error) if worker.count(InstallAssignmentRequest):
            worker.reply(worker.pending(InstallAssignmentRequest), InstallAssignmentResponse(error=error))
        case ("fail", kind) if worker.count(kind):
            worker.fail(kind)
        case ("own", Jobs() as jobs, bool(draining)):
            place = worker.member.place  # a herder owns what it was assigned, and what has not stopped
            known = worker.member.owned | (place.assignment.jobs if isinstance(place, InGroup) else NO_JOBS)
            worker.own(jobs & known, draining=draining)
        case ("configure", Jobs() as jobs):
            worker.configure(jobs)
        case ("update", bytes(metadata), int(reason)):
            worker.update_assignor(metadata, reason)
        case ("pass", int(ms)):
            worker.advance_clock(ms)
        case ("pause", int(ms)):
            worker.now_ms += ms
        case ("rejoin",):
            worker.feed(LeaveAndRejoin(reason="x"))
        case _:
            pass


@settings(max_examples=300, deadline=None)
@given(is_continued=st.booleans(), steps=st.lists(actions, max_size=40), ending=endings)
def test_after_any_events_the_requests_of_a_member_are_consistent(
    *, is_continued: bool, steps: list[tuple[Any, ...]], ending: Leave | SuspendMembership | None
) -> None:
    """`step` itself checks the member's invariants after each event."""
    worker = MemberDriver(HANDOVER if is_continued else None)
    last_number = 70 if is_continued else 0
    has_ended = False
    if not is_continued:
        worker.own()
    for action in [*steps, ("end", ending), ("own", NO_JOBS, False), ("pass", 40_000)]:
        known = list(worker.sent)
        worker.events.clear()
        was_member = isinstance(worker.member.place, InGroup)
        if action[0] == "end":
            if ending is not None:
                worker.feed(ending)
                has_ended = True
        else:
            act(worker, action)
        for send in worker.sent:
            if send in known or not isinstance(send.request, HeartbeatRequest):
                continue
            request = send.request
            assert request.request_number > last_number, "request numbers rise"
            last_number = request.request_number
            if request.member_epoch <= JOIN_EPOCH:
                assert request.owned is not None, "a join and a leave acknowledge all jobs"
                assert not request.owned
            has_all_fields = request.rebalance_timeout_ms is not None
            still_awaits_first_target = request.member_epoch == JOIN_EPOCH and isinstance(worker.member.place, InGroup)
            if request.max_wait_ms and has_all_fields and not still_awaits_first_target:
                assert any(isinstance(one.request, HeartbeatRequest) for one in known), "it follows another heartbeat"
            assert 0 < request.response_timeout_ms <= 30_000 // 3 + 500
        losses = sum(isinstance(event, MembershipLost) for event in worker.events)
        if was_member and not has_ended and not isinstance(worker.member.place, InGroup):
            assert losses >= 1, "the herder learns that the membership has ended"
        if any(isinstance(event, MembershipRefused) for event in worker.events):
            assert not isinstance(worker.member.place, InGroup)
    if has_ended:
        sent = list(worker.sent)
        worker.own(A0)
        worker.advance_clock(100_000)
        assert worker.sent == sent, "a member that has ended sends nothing"
