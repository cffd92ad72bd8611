"""Invariants of a member for any sequence of events; and a member that starts with a handover."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.member.classic.machine import step
from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    Request,
    Response,
    SyncRequest,
    SyncResponse,
    Timer,
)
from coterie.member.classic.state import HasLeft, InGroup, Member, MemberSettings, StoppingAllJobs
from coterie.member.events import (
    MemberEnded,
    MemberStarted,
    RequestFailed,
    RequestId,
    ResponseReceived,
    Send,
    SetTimer,
    TimerFired,
)
from coterie.nouns.ids import ConfigOffset, GenerationId, GroupId, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import (
    Assigned,
    ComputedAssignments,
    LeaseRenewed,
    Leave,
    LeaveAndRejoin,
    MembershipLost,
    MembershipOrder,
    MembershipRefused,
    Rejoin,
    SendAssignments,
    SetWorkerState,
)
from coterie.wire.connect import ConnectProtocol, RoundToken
from coterie.wire.errors import ErrorCode
from tests.member.classic.driving import HANDOVER, SOME_WORK, MemberDriver, synced

ERRORS = st.sampled_from(
    [
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.member_id_required,
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.rebalance_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.inconsistent_group_protocol,
        ErrorCode.fenced_instance_id,
    ]
)
GENERATIONS = st.integers(-1, 5).map(GenerationId)
IDS = st.sampled_from(["me", "me", "", "other"]).map(MemberId)
INSTANCE_IDS = st.sampled_from([None, InstanceId("one")])
TIMERS: st.SearchStrategy[Timer] = st.sampled_from(["heartbeat", "lease", "answer", "retry", "leave"])
JOINS = st.builds(
    JoinResponse,
    error=ERRORS,
    generation=GENERATIONS,
    protocol=st.sampled_from(["compatible", "compatible", "sessioned"]),
    leader=IDS,
    member_id=IDS,
    metadata_by_member=st.sampled_from([None, {MemberId("me"): b"\x00"}]),
    skip_assignment=st.booleans(),
)
SYNCS = st.one_of(
    st.builds(SyncResponse, error=ERRORS, assignment=st.binary(max_size=8)),
    st.sampled_from([synced(SOME_WORK), synced(), synced(revoked=SOME_WORK)]),
)
STRAY_EVENTS = st.one_of(
    st.builds(SetWorkerState, config_offset=st.just(ConfigOffset(1)), owned=st.sampled_from([NO_JOBS, SOME_WORK])),
    st.builds(Rejoin, reason=st.just("test")),
    st.just(LeaveAndRejoin(reason="the herder is stuck")),
    st.builds(
        SendAssignments,
        token=st.builds(RoundToken, generation=GENERATIONS, protocol=st.just(ConnectProtocol.COMPATIBLE)),
        computed=st.just(ComputedAssignments(config_offset=ConfigOffset(1), assignments={})),
    ),
    st.builds(RequestFailed, id=st.integers(1, 30).map(RequestId), reason=st.just("the connection broke")),
    st.builds(TimerFired, timer=TIMERS),
    st.just(Leave(reason="shutdown")),
)
TURNS = st.one_of(
    st.tuples(st.just("event"), STRAY_EVENTS), st.tuples(st.just("pass"), st.integers(0, 4_000)), st.just("reply")
)


def random_response(request: Request, data: st.DataObject) -> Response:
    match request:
        case JoinRequest():
            return data.draw(JOINS)
        case SyncRequest():
            return data.draw(SYNCS)
        case HeartbeatRequest():
            return HeartbeatResponse(error=data.draw(ERRORS))
        case _:
            return LeaveResponse(error=data.draw(ERRORS))


@settings(max_examples=300)
@given(turns=st.lists(TURNS, max_size=60), instance_id=INSTANCE_IDS, data=st.data())
def test_any_sequence_of_events_keeps_the_invariants_of_a_member(
    turns: list[object], instance_id: InstanceId | None, data: st.DataObject
) -> None:
    """`check_invariants` runs in every step; these are the invariants over several steps."""
    worker = MemberDriver(instance_id)
    worker.set_worker_state()
    for turn in turns:
        before = len(worker.herder_events)
        has_lost = isinstance(worker.member.round, StoppingAllJobs) and not isinstance(worker.member.place, InGroup)
        has_left = isinstance(worker.member.ending, HasLeft)
        sent = len(worker.sent_requests)
        match turn:
            case ("event", event):
                assert isinstance(event, MembershipOrder | RequestFailed | TimerFired)
                worker.feed(event)
            case ("pass", int(ms)):
                worker.advance_clock(ms)
            case _:
                if not worker.sent_requests:
                    continue
                send = worker.sent_requests.pop(data.draw(st.integers(0, len(worker.sent_requests) - 1)))
                sent -= 1
                worker.feed(ResponseReceived(id=send.id, response=random_response(send.request, data)))
        if has_left:
            assert len(worker.herder_events) == before, "no event after the end of the leave"
            assert len(worker.sent_requests) == sent, "no request after the end of the leave"
        for herder_event in worker.herder_events[before:]:
            assert not (has_lost and isinstance(herder_event, Assigned)), "no assignment before all jobs have stopped"
            assert not (has_lost and isinstance(herder_event, MembershipLost)), "a loss is reported once"
        for send in worker.sent_requests[sent:]:
            assert not (instance_id and isinstance(send.request, LeaveRequest)), (
                "a static member never sends LeaveGroup"
            )
            if isinstance(send.request, HeartbeatRequest):
                is_registration_check = instance_id is not None and not send.request.member_id
                assert (send.request.generation >= 0) is not is_registration_check
    assert sum(isinstance(herder_event, MemberEnded) for herder_event in worker.herder_events) <= 1


@settings(max_examples=200)
@given(turns=st.lists(TURNS, max_size=40), instance_id=INSTANCE_IDS, data=st.data())
def test_with_valid_responses_every_member_that_was_not_refused_gets_an_assignment(
    turns: list[object], instance_id: InstanceId | None, data: st.DataObject
) -> None:
    worker = MemberDriver(instance_id)
    worker.set_worker_state()
    for turn in turns:
        match turn:
            case ("event", event):
                if not isinstance(event, Leave):
                    assert isinstance(event, MembershipOrder | RequestFailed | TimerFired)
                    worker.feed(event)
            case ("pass", int(ms)):
                worker.advance_clock(ms)
            case _:
                if worker.sent_requests:
                    send = worker.sent_requests.pop()
                    worker.feed(ResponseReceived(id=send.id, response=random_response(send.request, data)))
    if worker.take_events(MembershipRefused):
        return  # a refused member only waits for its end
    worker.set_worker_state(SOME_WORK)  # A herder applies each assignment, also one that it has to stop at once.
    worker.set_worker_state(NO_JOBS)
    worker.feed(Rejoin(reason="test"))
    for _ in range(400):
        while worker.sent_requests:
            send = worker.sent_requests.pop(0)
            worker.feed(ResponseReceived(id=send.id, response=valid_response(send.request)))
        if any(isinstance(herder_event, Assigned) for herder_event in worker.herder_events):
            return
        worker.advance_clock(500)
    raise AssertionError("the member never gets an assignment")


def valid_response(request: Request) -> Response:
    match request:
        case JoinRequest():
            return JoinResponse(
                error=ErrorCode.none,
                generation=GenerationId(9),
                protocol="compatible",
                leader=MemberId("x"),
                member_id=request.member_id or MemberId("me"),
            )
        case SyncRequest():
            return synced(SOME_WORK) if request.generation == 9 else SyncResponse(error=ErrorCode.illegal_generation)
        case HeartbeatRequest():
            return HeartbeatResponse(error=ErrorCode.none if request.generation == 9 else ErrorCode.illegal_generation)
        case _:
            return LeaveResponse(error=ErrorCode.none)


# -- a membership that the previous process has handed over -----------------------------------------------------------


SETTINGS = MemberSettings(group_id=GroupId("group"), url=WorkerUrl("http://here:8083/"))


def first_heartbeat(member: Member) -> Send[Request]:
    """The heartbeat that is due as soon as the driver starts."""
    assert step(member, MemberStarted(), now_ms=1_000).effects == (SetTimer(timer="heartbeat", at_ms=1_000),)
    output = step(member, TimerFired(timer="heartbeat"), now_ms=1_000)
    (send,) = [effect for effect in output.effects if isinstance(effect, Send)]
    return send


def test_a_member_with_a_handover_sends_no_join_and_heartbeats_with_its_previous_id() -> None:
    for its_settings in (SETTINGS, replace(SETTINGS, instance_id=InstanceId("place"))):
        send = first_heartbeat(Member(its_settings, HANDOVER))
        assert isinstance(send.request, HeartbeatRequest)
        assert (send.request.member_id, send.request.generation) == (HANDOVER.member_id, HANDOVER.generation)
        assert send.request.instance_id == its_settings.instance_id


def test_no_heartbeat_is_due_at_the_start_outside_a_group() -> None:
    assert not step(Member(SETTINGS), MemberStarted(), now_ms=1_000).effects


def test_a_heartbeat_response_confirms_the_membership() -> None:
    member = Member(SETTINGS, HANDOVER)
    send = first_heartbeat(member)
    output = step(member, ResponseReceived(id=send.id, response=HeartbeatResponse(error=ErrorCode.none)), now_ms=1_100)
    assert (
        LeaseRenewed(lease_ends_ms=1_000 + SETTINGS.lease_duration_ms, session_timeout_ms=SETTINGS.session_timeout_ms)
        in output.effects
    )


def test_a_handed_over_membership_that_the_group_has_ended_is_lost() -> None:
    member = Member(SETTINGS, HANDOVER)
    send = first_heartbeat(member)
    unknown = HeartbeatResponse(error=ErrorCode.unknown_member_id)
    output = step(member, ResponseReceived(id=send.id, response=unknown), now_ms=1_100)
    assert any(isinstance(effect, MembershipLost) for effect in output.effects)


def test_the_next_join_reports_the_jobs_of_the_handover() -> None:
    member = Member(SETTINGS, HANDOVER)
    output = step(member, Rejoin(reason="a new process"), now_ms=1_000)
    (join,) = [effect.request for effect in output.effects if isinstance(effect, Send)]
    assert isinstance(join, JoinRequest)
    assert join.member_id == HANDOVER.member_id
    assert member.owned == HANDOVER.jobs


def test_a_handover_with_jobs_and_a_possibly_missed_vote_prevents_an_offer_of_eager() -> None:
    for may_have_missed_protocol_change in (True, False):
        member = Member(SETTINGS, replace(HANDOVER, may_have_missed_protocol_change=may_have_missed_protocol_change))
        output = step(member, Rejoin(reason="a new process"), now_ms=1_000)
        (join,) = [effect.request for effect in output.effects if isinstance(effect, Send)]
        assert isinstance(join, JoinRequest)
        offered = [name for name, _ in join.protocols]
        assert (ConnectProtocol.EAGER.wire_name in offered) is not may_have_missed_protocol_change
